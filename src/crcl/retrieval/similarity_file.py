"""Memory-mapped file of the similarities of all images with all captions, which may be larger than memory."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from crcl.data.files import open_array
from crcl.data.split import Split
from crcl.errors import InputError, TrainingError
from crcl.storage import replacing, require_writable


@contextmanager
def similarity_file(path: str | Path, pairs: Split) -> Iterator[np.ndarray]:
    """A matrix (images, captions) to fill, memory-mapped from a temporary file that becomes `path` when complete."""
    path = Path(path)
    try:
        with replacing(path) as temporary, temporary.open("w+b") as file:
            shape = (pairs.images, len(pairs))
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False}
            np.lib.format.write_array_header_1_0(file, header | {"shape": shape})
            sims = _mapped(file, shape)
            yield sims
            sims.flush()
    except OSError as error:
        raise TrainingError(
            f"could not write {path}: {error.strerror or error}; {4 * pairs.images * len(pairs):,} bytes are needed, "
            "twice as many for several runs. Make room or name a file on another disk"
        ) from error


def check_similarity_file(path: Path, *, overwrite: bool) -> None:
    """Refuse, before long work, a file that cannot be written or must not be overwritten."""
    if path.suffix != ".npy":
        raise InputError("similarities are written as .npy", where=path)
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}", where=path)
    require_writable(path)
    if not path.exists():
        return
    if not overwrite:
        raise InputError("exists already", where=path, hint="pass {overwrite} to replace it, or name another file")
    existing = open_array(path, purpose="similarities, the only thing to be overwritten")
    if existing.ndim != 2 or existing.dtype != np.float32:
        raise InputError("not similarities, so it is not overwritten", where=path, hint="name another file")


def empty_copy(sims: np.ndarray) -> np.ndarray:
    """An empty matrix of the same shape, on disk if the given one is."""
    if not isinstance(sims, np.memmap):
        return np.empty_like(sims)
    with tempfile.TemporaryFile(dir=Path(str(sims.filename)).parent) as file:  # deleted together with the map
        return _mapped(file, sims.shape)


def _mapped(file: BinaryIO, shape: tuple[int, ...]) -> np.memmap:
    """A memory map of a float32 matrix after the file's content; allocates disk space now, since writing a map on a
    full disk kills the process.
    """
    start = file.tell()
    file.flush()
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), start, 4 * int(np.prod(shape)))
    return np.memmap(file, dtype=np.float32, mode="r+", offset=start, shape=shape)
