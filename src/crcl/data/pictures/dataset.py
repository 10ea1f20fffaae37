"""Images in the rows of `datasets.Dataset` objects, as bytes; nothing is decoded."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crcl.data.pictures.base import MOST_BYTES, UnusableError
from crcl.data.pictures.files import SUFFIXES, check_name, read_file
from crcl.data.rows.cells import Cells

HEAD = 16
"""Bytes at the beginning of a file that tell its format."""


def ending(head: bytes) -> str:
    """The ending of image files that begin like this; `.bin` if no format does."""
    begins = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp"}
    begins |= {b"II*\0": ".tif", b"MM\0*": ".tif", b"P5": ".pgm", b"P6": ".ppm"}
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return ".webp"
    if head[4:12] in (b"ftypavif", b"ftypavis"):
        return ".avif"
    return next((suffix for begin, suffix in begins.items() if head.startswith(begin)), ".bin")


def ending_of(path: str) -> str:
    """The ending of an image file by its path; `.bin` if it is not one of images."""
    suffix = Path(path).suffix.lower()
    return suffix if suffix in SUFFIXES else ".bin"


class DatasetImages(Mapping[str, bytes]):
    """Images by name. As a mapping it has empty bytes where an image cannot be read; `read` says why."""

    def __init__(
        self, parts: Sequence[Any], cells: Cells, row_of: Mapping[str, int], within: Sequence[Path] | None
    ) -> None:
        """Images of data sets in the format `arrow`, one after the other.

        Args:
            parts: The data sets, with the column of images alone.
            cells: The columns.
            row_of: The row of each image, counted over all parts.
            within: Folders that image files may lie in, where a row only has a path; None: anywhere.
        """
        self.parts, self.cells, self.row_of, self.within = parts, cells, row_of, within
        self.starts = [0]
        for part in parts:
            self.starts.append(self.starts[-1] + len(part))

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __len__(self) -> int:
        return len(self.row_of)

    def __iter__(self) -> Iterator[str]:
        return iter(self.row_of)

    def __getitem__(self, name: str) -> bytes:
        """The bytes of an image, empty if it cannot be read."""
        if name not in self.row_of:
            raise KeyError(name)
        try:
            return self.read(name)
        except UnusableError:
            return b""

    def read(self, name: str, *, most: int = MOST_BYTES) -> bytes:
        """The bytes of an image: those in the data set, or of the file that it names."""
        row = self.row_of.get(name)
        if row is None:
            raise UnusableError("not found")
        number = bisect_right(self.starts, row) - 1
        table = self.parts[number][row - self.starts[number]]
        content = self.cells.contents_of(table)[0].as_py()
        if content is None:
            path = self.cells.names_of(table)[0].as_py()
            return self._read_file(path or "", most)
        if not content:
            raise UnusableError("empty file")
        if len(content) > most:
            raise UnusableError(f"{len(content):,} bytes, more than {most:,}")
        return bytes(content)

    def _read_file(self, name: str, most: int) -> bytes:
        """The bytes of a file that the data set names, as `datasets` would open it."""
        check_name(name)
        path = Path(name)
        if self.within is not None:
            try:
                whole = path.resolve()
            except (OSError, RuntimeError) as error:  # a loop of links
                raise UnusableError("not found") from error
            if not any(whole.is_relative_to(folder.resolve()) for folder in self.within):
                raise UnusableError("outside the cache of downloads")
        return read_file(path, most=most)
