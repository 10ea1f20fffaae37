"""Images decoded whenever they are read: the pixels that a model reads, as features that are stored nowhere.

A file `pixels.json` says how images become pixels, and has the name of each image in the `ids.txt` beside it. It takes
the place of a file of features where the images lie in tars, in Parquet files or in a folder.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from PIL import Image
from pydantic import Field, ValidationError

from crcl.data.files import read_bytes, require
from crcl.data.images import decode
from crcl.data.pictures.base import Pictures, UnusableError
from crcl.errors import InputError
from crcl.settings import Section

FILE = "pixels.json"
LONGEST = 100
"""Highest aspect ratio of an image: its short side is resized, and the long side with it."""
_Side = Annotated[int, Field(ge=1, le=4096)]
_Channels = tuple[float, float, float]


def usable(image: Image.Image) -> Image.Image:
    """The image, four times as large if it is tiny; refuses one of which one side is far longer than the other."""
    narrow, long = sorted(image.size)
    if long > LONGEST * narrow:
        raise UnusableError(f"{image.width} x {image.height} pixels, an aspect ratio above {LONGEST}")
    if narrow < 4:  # processors of models take three pixels for three channels
        return image.resize((image.width * 4, image.height * 4), Image.Resampling.NEAREST)
    return image


class Recipe(Section):
    """How an image becomes the pixels that a model reads."""

    side: _Side
    """Width and height of what the model reads."""
    resize: _Side
    """Length that the short side is resized to; the middle of the image is then cut out. Or, without `cut`, both."""
    cut: bool
    resample: Annotated[int, Field(ge=0, le=5)]
    """Number of Pillow's filter."""
    scale: float
    """Factor of the values 0 to 255."""
    mean: Annotated[_Channels, Field(strict=False)]
    deviation: Annotated[_Channels, Field(strict=False)]
    most_pixels: Annotated[int, Field(ge=1)]
    """Larger images are refused."""

    def pixels(self, image: Image.Image) -> np.ndarray:
        """The pixels of an RGB image. (3 * side * side,) float16"""
        image = usable(image)
        narrow, long = sorted(image.size)
        size = (self.resize, self.resize)
        if self.cut:
            other = int(self.resize * long / narrow)
            size = (self.resize, other) if image.width <= image.height else (other, self.resize)
        small = np.asarray(image.resize(size, resample=Image.Resampling(self.resample)))
        top, left = ((length - self.side) // 2 for length in small.shape[:2])
        values = small[top : top + self.side, left : left + self.side].astype(np.float64) * self.scale
        mean, deviation = (np.array(numbers, dtype=np.float32) for numbers in (self.mean, self.deviation))
        scaled = (values.astype(np.float32) - mean) / deviation  # (side, side, 3)
        return np.ascontiguousarray(scaled.transpose(2, 0, 1)).reshape(-1).astype(np.float16)


class Decoded:
    """Pixels of images as features, `(images, 1, 3 * side * side)`, made when they are read."""

    ndim = 3

    def __init__(self, recipe: Recipe, pictures: Pictures, names: Sequence[str]) -> None:
        self.recipe, self.pictures, self.names = recipe, pictures, names
        self.shape = (len(names), 1, 3 * recipe.side**2)
        self.dtype = np.dtype(np.float16)

    @classmethod
    def open(cls, path: Path, pictures: Pictures | None, names: Sequence[str]) -> "Decoded":
        """The images named in order, decoded as a file `pixels.json` says."""
        require(path, purpose=f"how images become pixels ({FILE})")
        try:
            recipe = Recipe.model_validate(json.loads(read_bytes(path)))
        except (ValueError, RecursionError, ValidationError) as error:
            raise InputError("does not say how images become pixels", where=path, hint="train anew") from error
        if recipe.resize < recipe.side or not all(recipe.deviation):
            raise InputError("pixels that cannot be made of any image", where=path)
        if pictures is None:
            raise InputError("its images were not found", where=path, hint="pass {images}, the folder that they lie in")
        return cls(recipe, pictures, names)

    def __len__(self) -> int:
        """The number of images."""
        return len(self.names)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """The pixels of some images, in the given order. (len(rows), 1, 3 * side * side) float16"""
        found = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        for place, row in enumerate(rows):
            name = self.names[row]
            try:
                found[place, 0] = self.recipe.pixels(
                    decode(self.pictures.read(name), most_pixels=self.recipe.most_pixels)
                )
            except UnusableError as error:
                hint = "put it back as it was; what was saved before can be resumed"
                raise InputError(f"image '{name}' cannot be used any longer: {error}", hint=hint) from error
        return found

    def place(self, row: int | np.integer) -> str:
        """The name of an image, for messages."""
        return f"'{self.names[int(row)]}'"

    def ask_for(self, rows: np.ndarray) -> None:
        """Nothing is asked for ahead: decoding takes longer than reading."""
