"""The built-in extractor: pixel statistics on a grid of cells, without a model."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crcl.errors import InputError

CELL = 16
"""Pixels along one side of a cell, after the image has been resized to a square."""
PATCH = 4
"""A cell's colours are kept as a PATCH x PATCH thumbnail."""
DIRECTIONS = 8
"""Bins of the gradient histograms, over the whole circle."""
FEATURE_SIZE = 3 * PATCH**2 + 6 + 2 * DIRECTIONS + 2


class PixelGrid:
    """The built-in extractor, for drawings and tests: it sees colours and edges, but no objects."""

    def __init__(self, *, grid: int = 6) -> None:
        if grid < 1:
            raise InputError(f"grid must be 1 or more, not {grid}")
        self.grid, self.title = grid, "pixel grid"
        self.settings = {"extractor": "pixel grid", "grid": grid, "version": 1}

    def prepare(self, image: Image.Image) -> NDArray[np.float32]:
        """Features of one image. (grid * grid, FEATURE_SIZE)"""
        return grid_features(image, grid=self.grid)

    def preparer(self) -> Callable[[Image.Image], NDArray[np.float32]] | None:
        """`prepare` for worker processes; None for a subclass with a `prepare` of its own."""
        return partial(grid_features, grid=self.grid) if type(self).prepare is PixelGrid.prepare else None

    def compute(self, prepared: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Features of a batch. (K, grid * grid, FEATURE_SIZE)"""
        return np.stack(prepared)


def grid_features(image: Image.Image | NDArray[Any], *, grid: int = 6) -> NDArray[np.float32]:
    """Pixel statistics of the cells of a grid x grid raster, row by row. (grid * grid, FEATURE_SIZE)

    The features of a cell are its 4 x 4 thumbnail, mean and deviation of its colours, histograms of the edge directions
    in it and in its 3 x 3 neighbourhood, and its position. All are between 0 and about 1 for any size of image.
    """
    if grid < 1:
        raise InputError(f"grid must be 1 or more, not {grid}")
    pixels = _pixels(image, grid * CELL)
    cells = pixels.reshape(grid, CELL, grid, CELL, 3)
    thumbnails = pixels.reshape(grid, PATCH, CELL // PATCH, grid, PATCH, CELL // PATCH, 3).mean(axis=(2, 5))
    edges = _edges(pixels, grid)
    places = (np.arange(grid, dtype=np.float32) + 0.5) / grid
    parts = [
        thumbnails.transpose(0, 2, 1, 3, 4).reshape(grid, grid, -1),
        cells.mean(axis=(1, 3)),
        cells.std(axis=(1, 3)),
        np.sqrt(edges),
        np.sqrt(_neighbourhood(edges)),
        np.stack(np.meshgrid(places, places), axis=-1),
    ]
    return np.concatenate(parts, axis=-1, dtype=np.float32).reshape(grid * grid, FEATURE_SIZE)


def _pixels(image: Image.Image | NDArray[Any], side: int) -> NDArray[np.float32]:
    """The image as a square of RGB values in [0, 1]. (side, side, 3)"""
    if not isinstance(image, Image.Image):
        if image.dtype != np.uint8 or image.size == 0 or image.shape[2:] not in ((), (3,)) or image.ndim < 2:
            raise InputError(
                f"an image array must be uint8, (height, width) or (height, width, 3), not {image.dtype} {image.shape}"
            )
        image = Image.fromarray(image)
    image = image.convert("RGB")
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.float32) / np.float32(255)


def _edges(pixels: NDArray[np.float32], grid: int) -> NDArray[np.float32]:
    """Mean gradient strength by direction, of the channel that changes most. (grid, grid, DIRECTIONS)"""
    padded = np.pad(pixels, ((1, 1), (1, 1), (0, 0)), mode="edge")
    down = padded[2:, 1:-1] - padded[:-2, 1:-1]
    right = padded[1:-1, 2:] - padded[1:-1, :-2]
    strongest = (down**2 + right**2).argmax(axis=-1)[..., None]
    down = np.take_along_axis(down, strongest, axis=-1)[..., 0]
    right = np.take_along_axis(right, strongest, axis=-1)[..., 0]
    turns = np.arctan2(down, right) / (2 * np.pi)
    direction = np.rint(turns * DIRECTIONS).astype(np.int64) % DIRECTIONS
    row = np.arange(grid).repeat(CELL)
    cell = row[:, None] * grid + row[None, :]
    bins = (cell * DIRECTIONS + direction).ravel()
    sums = np.bincount(bins, weights=np.hypot(down, right).ravel(), minlength=grid * grid * DIRECTIONS)
    return (sums / CELL**2).reshape(grid, grid, DIRECTIONS).astype(np.float32)


def _neighbourhood(cells: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean over each cell and its 8 neighbours, with zeros beyond the border. Same shape."""
    grid = len(cells)
    padded = np.pad(cells, ((1, 1), (1, 1), (0, 0)))
    total = sum(padded[y : y + grid, x : x + grid] for y in range(3) for x in range(3))
    return np.asarray(total / 9, dtype=np.float32)
