"""Reading text and arrays from files, with errors that name the file, the place and what was expected."""

import csv
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from crcl.errors import InputError, did_you_mean

SHOWN = 10
NPY_ERRORS = (ValueError, EOFError, OSError, OverflowError, MemoryError, RecursionError, tokenize.TokenError)
"""What numpy raises where a file is no array; its header is read as Python's literals."""


def refuse(problems: Sequence[InputError]) -> None:
    """Raise all problems of a file at once, the first ten written out; nothing happens where there are none."""
    if problems:
        more = [InputError(f"... and {len(problems) - SHOWN} more")] if len(problems) > SHOWN else []
        raise InputError.several([*problems[:SHOWN], *more])


def require(path: Path, *, purpose: str = "") -> Path:
    """The path, if a file is there; else an error that says what is near."""
    if path.is_file():
        return path
    wanted = f", expected {purpose}" if purpose else ""
    if path.is_dir():
        raise InputError(f"a folder, not a file{wanted}", where=path)
    if not path.parent.is_dir():
        raise InputError(f"not found, there is no folder {path.parent}{wanted}", where=path)
    names = sorted(file.name for file in path.parent.iterdir())
    near = did_you_mean(path.name, names)
    there = "" if near else f"; {path.parent} holds {', '.join(names[:SHOWN]) or 'nothing'}"
    raise InputError(f"not found{near}{wanted}{there}", where=path)


@contextmanager
def values_of_any_length() -> Iterator[None]:
    """Within, Python's csv reads cells beyond its limit of 128 KiB."""
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
    """The lines of a UTF-8 file, cut at line feeds only; every undecodable line is named."""
    raw = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    rows = raw.removesuffix(b"\n").split(b"\n") if raw else []
    try:
        return [row.decode("utf-8").removesuffix("\r") for row in rows]
    except UnicodeDecodeError:
        refuse(undecodable(path, rows))
        raise


def read_ids(path: Path) -> list[str]:
    """Names of images, one on each line."""
    return [line.strip() for line in read_lines(path)]


def refuse_duplicates(path: Path, names: Sequence[str]) -> None:
    """Refuse ids that name two images, and empty ones."""
    counts = Counter(names)
    if len(counts) < len(names):
        twice = [f"'{name}' ({count} times)" for name, count in counts.items() if count > 1]
        more = f" and {len(twice) - SHOWN} more" if len(twice) > SHOWN else ""
        raise InputError(f"an id names one image, these name several: {', '.join(twice[:SHOWN])}{more}", where=path)
    if "" in counts:
        raise InputError("empty id", where=f"{path}:{names.index('') + 1}", hint="each line names one image")


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


def open_array(path: Path, *, purpose: str) -> np.ndarray:
    """A read-only memory map of a `.npy` file; objects are never unpickled."""
    require(path, purpose=purpose)
    try:
        with path.open("rb") as stream:
            version = np.lib.format.read_magic(stream)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(stream)
        if dtype.hasobject:
            raise InputError(f"holds Python objects, which are not loaded; expected {purpose}", where=path)
        if 0 in shape:
            raise InputError(f"empty, shape {shape}; expected {purpose}", where=path)
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except InputError:
        raise
    except NPY_ERRORS as error:
        raise InputError(f"not a whole .npy file ({error}); expected {purpose}", where=path) from error


def open_features(path: Path) -> np.ndarray:
    """A memory map of features, (rows, R, F); a row of global vectors (rows, F) is one region each."""
    features = open_array(path, purpose="float16 or float32 features of shape (images, regions, size)")
    if features.dtype.kind != "f" or features.dtype.itemsize not in (2, 4):
        raise InputError(f"features are {features.dtype}, expected float16 or float32", where=path)
    return as_regions(features, path)


def as_regions(features: np.ndarray, where: str | Path) -> np.ndarray:
    """Features as (rows, R, F); a row of global vectors (rows, F) is one region each."""
    if features.ndim == 2:
        return features[:, None, :]
    if features.ndim != 3:
        raise InputError(
            f"features have shape {features.shape}, expected (images, regions, size) or (images, size)", where=where
        )
    return features
