"""Images of the data as JPEG files for the page, by number; those that were made last are kept in memory."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from crcl.data.images import small_jpeg
from crcl.data.pictures.base import Pictures, UnusableError

SIDES = {"small": 240, "large": 1200}
"""Longest side in pixels of each size."""
_KEPT = 64 * 2**20


class Shown:
    """The images of the data. None is found by path: the page names a number, and the data knows its file."""

    def __init__(self, pictures: Pictures | None, names: Sequence[str]) -> None:
        self.pictures = pictures
        self.names = names
        self._made: OrderedDict[tuple[int, str], bytes | None] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def jpeg(self, number: int, size: str) -> bytes | None:
        """An image as JPEG; None where it is missing or cannot be used."""
        key = (number, size)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        made = self._make(number, SIDES[size])
        with self._lock:
            if key not in self._made:
                self._made[key] = made
                self._bytes += len(made or b"") + 100
            while self._bytes > _KEPT:
                self._bytes -= len(self._made.popitem(last=False)[1] or b"") + 100
        return made

    def _make(self, number: int, side: int) -> bytes | None:
        if self.pictures is None:
            return None
        try:
            return small_jpeg(self.pictures.read(str(self.names[number])), side=side)
        except UnusableError:
            return None
