"""Thumbnails for the report: JPEG files named by the content of the images that they were made from."""

import hashlib
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from crcl.data.images import decode
from crcl.data.pictures.base import Pictures, UnusableError
from crcl.errors import TrainingError

_OURS = re.compile(r"[0-9a-f]{24}-[0-9]+\.jpg")
_QUALITY = 82


class Thumbnail(NamedTuple):
    """A file in the folder of thumbnails, and its size in pixels."""

    file: str
    width: int
    height: int


class Thumbnails:
    """A folder of thumbnails; those of an earlier report are used again."""

    def __init__(self, folder: Path, pictures: Pictures | None) -> None:
        self.folder = folder
        self.pictures = pictures
        self.files: set[str] = set()
        """Thumbnails of this report."""
        self.reasons: Counter[str] = Counter()
        """Why images have no thumbnail, with how many."""

    def make(self, name: str, *, side: int) -> Thumbnail | None:
        """The thumbnail of an image, at most `side` pixels wide and high; None where the image cannot be used."""
        try:
            if self.pictures is None:
                raise UnusableError("not found")
            made = self._made(self.pictures.read(name), side)
        except UnusableError as reason:
            self.reasons[str(reason).partition(" (")[0]] += 1  # details of one image are in brackets
            return None
        self.files.add(made.file)
        return made

    def _made(self, content: bytes, side: int) -> Thumbnail:
        path = self.folder / f"{hashlib.sha256(content).hexdigest()[:24]}-{side}.jpg"
        with suppress(Exception), Image.open(path, formats=["JPEG"]) as there:  # missing or damaged: made again
            if max(there.size) <= side:
                return Thumbnail(path.name, *there.size)
        small = decode(content, side=2 * side)
        small.thumbnail((side, side))
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            small.save(temporary, format="JPEG", quality=_QUALITY)
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise TrainingError(f"could not save {path}: {error.strerror or error}; make room and try again") from error
        return Thumbnail(path.name, *small.size)

    def remove_unused(self) -> None:
        """Remove thumbnails of earlier reports that this one does not show."""
        for path in self.folder.iterdir():
            name = path.name.removeprefix(".").removesuffix(".tmp")
            if _OURS.fullmatch(name) and path.name not in self.files:
                with suppress(OSError):
                    path.unlink()
