"""Folders of drawings and the command that makes features of them, for several test files."""

from pathlib import Path

import numpy as np
from image_files import saved
from PIL import Image

from crcl.data.pictures.files import wanted_files
from crcl.features.extract import Extracted, extract
from crcl.features.grid import PixelGrid

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "white": (250, 250, 250)}


def draw(seed: int, colour: str = "red") -> bytes:
    """A noisy image of one colour."""
    noise = np.random.default_rng(seed).integers(-20, 20, (24, 32, 3))
    return saved(Image.fromarray((COLOURS[colour] + noise).clip(0, 255).astype(np.uint8)), "PNG")


def draw_folder(folder: Path, images: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(images):
        (folder / f"{number:03d}.png").write_bytes(draw(number))
    return folder


def run(images: Path, output: Path, extractor: PixelGrid | None = None, **options) -> Extracted:
    return extract(wanted_files([images]), extractor or PixelGrid(grid=2), output, **options)
