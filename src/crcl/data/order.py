"""The order of the pairs in an epoch: shuffled as a whole, or block by block, so that features are read in long pieces.

A whole shuffle reads single images from everywhere in their file: where this is larger than memory, each of them from
the disk. In blocks, images that lie next to each other are read together. Blocks in random order fill a window, and
the pairs of a window are shuffled, while the images of the next one are read.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Shuffle:
    """How the pairs of an epoch are shuffled."""

    block: int = 0
    """Images that lie next to each other and are read together; 0: all pairs are shuffled as a whole."""
    mixed: int = 64
    """Blocks of a window, whose pairs are shuffled together."""


WHOLE = Shuffle()


@dataclass(frozen=True)
class Order:
    """The pairs of an epoch in their order, and the order in which they are read."""

    rows: np.ndarray
    """(n,) int64, the pairs"""
    read: np.ndarray
    """(n,) int64, the same pairs: the windows as in `rows`, and within each of them as their images are stored"""
    ends: np.ndarray
    """(windows,) int64, where each window ends; empty if the pairs are shuffled as a whole"""

    @classmethod
    def shuffled(cls, rows: np.ndarray, places: np.ndarray, rng: np.random.Generator, how: Shuffle = WHOLE) -> "Order":
        """A random order of pairs.

        Args:
            rows: The pairs, `(n,)`.
            places: Where the features of the image of each pair are stored, `(n,)`; only blocks depend on it.
            rng: Source of randomness.
            how: As a whole, or in which blocks.
        """
        mixed = rng.permutation(len(rows))
        if not how.block or not len(rows):
            return cls(rows[mixed], rows[mixed], np.empty(0, dtype=np.int64))
        blocks, block = np.unique(places // how.block, return_inverse=True)
        windows = -(-len(blocks) // how.mixed)
        window = (rng.permutation(len(blocks)) * windows // len(blocks))[block]  # of equal sizes, without a small rest
        order = mixed[np.argsort(window[mixed], kind="stable")]
        return cls(rows[order], rows[np.lexsort((places, window))], np.cumsum(np.bincount(window, minlength=windows)))

    def __len__(self) -> int:
        return len(self.rows)

    def at_first(self, start: int) -> np.ndarray:
        """The pairs to ask for at the beginning, where the first `start` of the order are left out."""
        if not len(self.ends):
            return self.rows[:0]
        window = int(np.searchsorted(self.ends[:-1], start, side="right"))
        return self.read[self.ends[window - 1] if window else 0 : self._read_by(start)]

    def ahead(self, start: int, stop: int) -> np.ndarray:
        """The pairs to ask for while those from `start` to `stop` of the order are used.

        They are a share of the next window, all of which is asked for at the end of this one; without windows the
        pairs that follow.
        """
        if not len(self.ends):
            return self.rows[stop : 2 * stop - start]
        return self.read[self._read_by(start) : self._read_by(stop)]

    def _read_by(self, place: int) -> int:
        """How many pairs have been asked for when so many are used."""
        return round(float(np.interp(place, [0, *self.ends], [*self.ends, self.ends[-1]])))
