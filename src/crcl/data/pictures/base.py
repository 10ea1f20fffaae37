"""The interface of image containers."""

from typing import NamedTuple, Protocol

MOST_BYTES = 512 * 2**20
"""Larger files are not read."""


class UnusableError(ValueError):
    """An image cannot be used and is left out; the message gives the reason."""


class Pictures(Protocol):
    """A container of images: a folder of files, tars, a column of Parquet files. Nothing outside of it is ever read.

    Two threads or processes may read from copies of one container at the same time, so it can be pickled.
    """

    def read(self, name: str, *, most: int = MOST_BYTES) -> bytes:
        """The bytes of an image file by the image's name; raises `UnusableError` with the reason why it cannot be used.

        Args:
            name: The name of the image, as rows have it.
            most: Longer files are refused.
        """


class Wanted(NamedTuple):
    """An image and the container that it lies in."""

    name: str
    pictures: Pictures

    def read(self) -> bytes:
        """The bytes of the image file."""
        return self.pictures.read(self.name)
