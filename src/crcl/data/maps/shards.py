"""Several `.npy` files read as one array, memory-mapped and never loaded as a whole."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from crcl.data.files import open_array, open_features, refuse, require_whole
from crcl.data.maps.ahead import ask_for
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

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """A copy of some rows, in the given order."""
        rows = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
        found = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        for part, here, own in self._divided(rows):
            require_whole(part)
            found[here] = part[own]
        return found

    def ask_for(self, rows: np.ndarray) -> None:
        """Ask the system to read rows in the background."""
        for part, _, own in self._divided(rows):
            ask_for(part, own)

    def _divided(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Each part that has some of the rows, which of them these are, and their numbers within it."""
        of_part = np.searchsorted(self.offsets, rows, side="right") - 1
        for part in np.unique(of_part):
            here = of_part == part
            yield self.parts[part], here, rows[here] - self.offsets[part]

    def place(self, row: int | np.integer) -> str:
        """The file and row within it of a row, for messages."""
        part = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return f"{self.names[part]}: row {row - self.offsets[part]}"

    def as_regions(self) -> "Shards":
        """Each vector as the only region of an image, (rows, 1, size)."""
        return Shards([part[:, None, :] for part in self.parts], self.names)


def open_sharded_features(path: Path) -> np.ndarray | Shards:
    """Memory maps of features, (rows, R, F): of a file, or of all `.npy` files of a folder in the order of their names.

    Numbers in names are ordered as numbers.
    """
    if not path.is_dir():
        return open_features(path)
    files = sorted(path.glob("*.npy"), key=lambda file: _in_parts(file.name))
    if not files:
        raise InputError("a folder without .npy files, expected features of shape (images, regions, size)", where=path)
    return Shards([open_features(file) for file in files], [str(file) for file in files])


def _in_parts(name: str) -> list[tuple[str, int]]:
    return [(text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]{0,18})", name)]


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
