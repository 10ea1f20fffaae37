"""Several `.npy` files read as one array, memory-mapped and never loaded as a whole."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from crcl.data.files import open_array, refuse, require_whole
from crcl.errors import InputError


class Shards:
    """Arrays `(rows, …)` of one row size, concatenated; float16 and float32 may be mixed."""

    def __init__(self, parts: Sequence[np.ndarray], names: Sequence[str] = ()) -> None:
        """Concatenate one or more arrays; `names` are their names in messages."""
        self.parts = list(parts)
        self.names = list(names) or [f"part {number}" for number in range(len(parts))]
        self.offsets = np.cumsum([0, *(len(part) for part in parts)])
        different = [
            InputError(
                f"{_size(part)} numbers per row, but {self.names[0]} has {_size(parts[0])}; all rows need one size",
                where=name,
            )
            for name, part in zip(self.names, parts, strict=True)
            if part.shape[1:] != parts[0].shape[1:]
        ]
        refuse(different)
        self.shape = (int(self.offsets[-1]), *parts[0].shape[1:])
        self.dtype = np.result_type(*parts)
        self.ndim = len(self.shape)

    @classmethod
    def open(cls, paths: Sequence[Path]) -> "Shards":
        """Memory maps of files of vectors, (rows, size)."""
        return cls([open_vectors(path) for path in paths], [str(path) for path in paths])

    def __len__(self) -> int:
        """Rows of all parts together."""
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """A copy of some rows, in the given order."""
        rows = np.asarray(rows)
        found = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        of_part = np.searchsorted(self.offsets, rows, side="right") - 1
        for part in np.unique(of_part):
            here = of_part == part
            require_whole(self.parts[part])
            found[here] = self.parts[part][rows[here] - self.offsets[part]]
        return found

    def place(self, row: int | np.integer) -> str:
        """The file and row within it of a row, for messages."""
        part = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return f"{self.names[part]}: row {row - self.offsets[part]}"

    def as_regions(self) -> "Shards":
        """Each vector as the only region of an image, (rows, 1, size)."""
        return Shards([part[:, None, :] for part in self.parts], self.names)


def open_vectors(path: Path) -> np.ndarray:
    """A memory map of vectors, (rows, size)."""
    vectors = open_array(path, purpose="float16 or float32 vectors of shape (rows, size)")
    if vectors.dtype.kind != "f" or vectors.dtype.itemsize not in (2, 4):
        raise InputError(f"vectors are {vectors.dtype}, expected float16 or float32", where=path)
    if vectors.ndim != 2:
        raise InputError(f"vectors have shape {vectors.shape}, expected (rows, size)", where=path)
    return vectors


def _size(part: np.ndarray) -> str:
    return " x ".join(map(str, part.shape[1:]))
