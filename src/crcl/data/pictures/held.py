"""Images that are held in memory: PIL images, and the bytes of image files."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from crcl.data.images import as_rgb
from crcl.data.pictures.base import MOST_BYTES, UnusableError

Held = Image.Image | bytes
"""A PIL image, or the bytes of an image file."""


@dataclass(frozen=True, eq=False)
class HeldImages:
    """Images by name."""

    images: Mapping[str, Held]

    def read(self, name: str, *, most: int = MOST_BYTES) -> bytes:
        """The bytes of an image file; a PIL image as PNG."""
        if name not in self.images:
            raise UnusableError("not found")
        content = as_file(self.images[name])
        if len(content) > most:
            raise UnusableError(f"{len(content):,} bytes, more than {most:,}")
        return content


def as_file(image: Held) -> bytes:
    """The bytes of an image file; a PIL image as PNG, as all other images are read."""
    if isinstance(image, bytes):
        return image
    file = io.BytesIO()
    as_rgb(image).save(file, format="PNG")
    return file.getvalue()


def held_in(cell: Any) -> tuple[Any, Any]:
    """The image that a cell holds, if it does, and its name or whatever else is in the cell.

    Parquet files of the hub have structs of bytes and path, which tables in memory show as dicts.
    """
    if isinstance(cell, Mapping) and set(cell) == {"bytes", "path"}:
        content, name = cell["bytes"], cell["path"]
    else:
        content, name = (cell, None) if isinstance(cell, Image.Image | bytes | bytearray) else (None, cell)
    return bytes(content) if isinstance(content, bytearray) else content, name
