"""Cache of features by the content that they were made of, one file per batch; safe to kill at any moment."""

import hashlib
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crcl import distributed
from crcl.errors import TrainingError
from crcl.storage import write_arrays

ADVICE = "the features computed so far are kept: free some disk space and try again"


class Cache:
    """Cache of float16 features by the hash of an image file or a text, with one cache file per batch."""

    def __init__(self, folder: Path, *, tidy: bool = True) -> None:
        """Read the cache; `tidy` removes files that killed processes left, which needs the lock of the folder."""
        self.folder = folder
        self.places: dict[bytes, tuple[Path, int]] = {}
        self.contents: dict[bytes, bytes] = {}
        """The hash of an image's pixels, by the hash of its file."""
        self.shape: tuple[int, ...] = ()
        self.infinite: set[bytes] = set()
        """Hashes of what has features too large for float16, or NaN."""
        for left in folder.glob(".*.tmp") if tidy else ():
            left.unlink()
        for path in sorted(folder.glob("*.npz")):
            try:
                with np.load(path, allow_pickle=False) as arrays:
                    digests, contents = (
                        [row.tobytes() for row in arrays[name]]
                        for name in ("hashes", "contents" if "contents" in arrays else "hashes")
                    )
                    self._remember(path, digests, contents, arrays["finite"])
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
                continue  # a damaged batch is computed again

    def __contains__(self, digest: bytes) -> bool:
        return digest in self.places

    def add(self, digests: list[bytes], contents: list[bytes], features: NDArray[np.float32]) -> None:
        """Store a batch: hashes of the files and of the pixels, and the features."""
        with np.errstate(over="ignore"):
            halves = features.astype(np.float16)
        finite = np.asarray(np.isfinite(halves.reshape(len(halves), -1)).all(axis=1))
        path = self.folder / f"{hashlib.sha256(b''.join(digests)).hexdigest()[:32]}.npz"
        hashes, pixels = as_rows(digests), as_rows(contents)
        write_arrays(path, advice=ADVICE, hashes=hashes, contents=pixels, finite=finite, features=halves)
        self._remember(path, digests, contents, finite)

    def rows(self, digests: Sequence[bytes]) -> Iterator[tuple[int, NDArray[np.float16]]]:
        """Yield the position in `digests` and the features of each, file by file."""
        by_file: dict[Path, list[tuple[int, int]]] = {}
        for number, digest in enumerate(digests):
            path, row = self.places[digest]
            by_file.setdefault(path, []).append((number, row))
        for path, places in by_file.items():
            try:
                with np.load(path, allow_pickle=False) as arrays:
                    features = arrays["features"]
                self.shape = self.shape or features.shape[1:]
                if features.dtype != np.float16 or features.shape[1:] != self.shape:
                    raise ValueError("features of another shape")
                found = [(number, features[row]) for number, row in places]
            except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile) as error:
                with suppress(OSError):
                    path.unlink()
                raise TrainingError(
                    f"{path}: damaged ({error}) and removed; run the extraction again to compute its features"
                ) from error
            yield from found

    def _remember(self, path: Path, digests: list[bytes], contents: list[bytes], finite: NDArray[np.bool_]) -> None:
        for row, (digest, content, fine) in enumerate(zip(digests, contents, finite, strict=True)):
            self.places.setdefault(digest, (path, row))
            self.contents.setdefault(digest, content)
            if not fine:
                self.infinite.add(digest)


def as_rows(hashes: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(len(hashes), -1)


def open_together(kept: Path) -> Cache:
    """The cache, with the same content in all processes: the first one tidies it, none adds before all have read it."""
    if distributed.leads():
        store = Cache(kept)
        distributed.meet()
    else:
        distributed.meet()
        store = Cache(kept, tidy=False)
    distributed.meet()
    return store
