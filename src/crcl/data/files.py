"""Reading text and arrays from files, with errors that name the file, the place and what was expected."""

import csv
import mmap
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from crcl.errors import InputError, did_you_mean

SAVED = "saved.json"
"""Lies beside a `pairs.parquet` of pairs that were in memory, with a hash of them."""
SHOWN = 10
"""Problems or names that a message lists before it only counts the rest."""
NPY_ERRORS = (ValueError, EOFError, OSError, OverflowError, MemoryError, RecursionError, tokenize.TokenError)
"""Errors that numpy raises for a file that is not an array; it parses the header as a Python literal."""


def refuse(problems: Sequence[InputError]) -> None:
    """Raise all problems at once, listing the first ten; do nothing if there are none."""
    if problems:
        more = [InputError(f"... and {len(problems) - SHOWN} more")] if len(problems) > SHOWN else []
        raise InputError.several([*problems[:SHOWN], *more])


def require(path: Path, *, purpose: str = "") -> Path:
    """Return the path if it is a file; otherwise raise an error that names similar files."""
    if path.is_file():
        return path
    wanted = f", expected {purpose}" if purpose else ""
    if path.is_dir():
        raise InputError(f"a folder, not a file{wanted}", where=path)
    if path.exists():
        raise InputError(f"a pipe or a device, not a file{wanted}", where=path)
    if not path.parent.is_dir():
        raise InputError(f"not found, the folder {path.parent} does not exist{wanted}", where=path)
    names = sorted(file.name for file in path.parent.iterdir())
    near = did_you_mean(path.name, names)
    listing = "" if near else f"; {path.parent} contains {', '.join(names[:SHOWN]) or 'no files'}"
    raise InputError(f"not found{near}{wanted}{listing}", where=path)


@contextmanager
def values_of_any_length() -> Iterator[None]:
    """Lift the limit of 128 KiB that Python's csv module puts on a cell."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def read_bytes(path: Path) -> bytes:
    """The content of a file."""
    try:
        return require(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=path) from error


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, split at line feeds only; the error lists every line that is not UTF-8."""
    raw = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    rows = raw.removesuffix(b"\n").split(b"\n") if raw else []
    try:
        return [row.decode("utf-8").removesuffix("\r") for row in rows]
    except UnicodeDecodeError:
        refuse(undecodable(path, rows))
        raise


def read_ids(path: Path) -> list[str]:
    """The image ids in a file with one id per line."""
    return [line.strip() for line in read_lines(path)]


def refuse_duplicates(path: Path, names: Sequence[str]) -> None:
    """Raise an error for duplicate or empty image ids."""
    counts = Counter(names)
    if len(counts) < len(names):
        twice = [f"'{name}' ({count} times)" for name, count in counts.items() if count > 1]
        more = f" and {len(twice) - SHOWN} more" if len(twice) > SHOWN else ""
        raise InputError(f"duplicate image ids: {', '.join(twice[:SHOWN])}{more}", where=path)
    if "" in counts:
        raise InputError("empty id", where=f"{path}:{names.index('') + 1}", hint="each line must name one image")


def undecodable(path: Path, rows: Sequence[bytes]) -> list[InputError]:
    """One error for each line that is not UTF-8."""
    problems = []
    for number, row in enumerate(rows, start=1):
        try:
            row.decode("utf-8")
        except UnicodeDecodeError as error:
            problems.append(
                InputError(
                    f"not UTF-8 (byte 0x{row[error.start]:02x} at position {error.start + 1})",
                    where=f"{path}:{number}",
                    hint="save the file as UTF-8",
                )
            )
    return problems


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether it is stored by columns, and type of a `.npy` file; numpy's reader of headers runs no code."""
    try:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = header(stream)
    except ValueError as error:
        if "allow_pickle" in str(error):  # numpy's advice, which would run what the file holds
            raise ValueError("its header is far longer than that of an array") from error
        raise
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
    return shape, by_columns, dtype


def open_array(path: Path, *, purpose: str) -> np.ndarray:
    """A read-only memory map of a `.npy` file; objects are never unpickled."""
    require(path, purpose=purpose)
    try:
        with path.open("rb") as stream:
            shape, _, dtype = read_header(stream)
        if dtype.hasobject:
            raise InputError(f"contains Python objects, which are never loaded; expected {purpose}", where=path)
        if 0 in shape:
            raise InputError(f"empty, shape {shape}; expected {purpose}", where=path)
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except InputError:
        raise
    except NPY_ERRORS as error:
        raise InputError(f"not a complete .npy file ({error}); expected {purpose}", where=path) from error


def require_whole(array: np.ndarray) -> None:
    """Raise an error if the file of a memory map has become shorter: reading what is gone would kill the process.

    A file that shrinks while it is read still does; callers ask before every batch.
    """
    mapped = getattr(array, "_mmap", None)
    if not isinstance(array, np.memmap) or not isinstance(mapped, mmap.mmap):
        return
    first = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    if mapped.size() < first + len(mapped):
        raise InputError(
            f"has become shorter: {mapped.size():,} bytes, and had {first + len(mapped):,} when it was opened",
            where=array.filename or "features",
            hint="put the whole file back; what was saved before can be resumed",
        )


def open_features(path: Path) -> np.ndarray:
    """A memory map of features, (rows, R, F); a file of vectors (rows, F) becomes one region per row."""
    features = open_array(path, purpose="float16 or float32 features of shape (images, regions, size)")
    if features.dtype.kind != "f" or features.dtype.itemsize not in (2, 4):
        raise InputError(f"features are {features.dtype}, expected float16 or float32", where=path)
    return as_regions(features, path)


def as_regions(features: np.ndarray, where: str | Path) -> np.ndarray:
    """Features as (rows, R, F); vectors (rows, F) become one region per row."""
    if features.ndim == 2:
        return features[:, None, :]
    if features.ndim != 3:
        raise InputError(
            f"features have shape {features.shape}, expected (images, regions, size) or (images, size)", where=where
        )
    return features
