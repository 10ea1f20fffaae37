"""Arrays in `.npz` files, memory-mapped: where they lie, if they are not compressed, else from an unpacked copy.

The copy is kept in the user's cache folder, by the path, size and time of the file. Nothing is ever unpickled.
"""

import hashlib
import math
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from crcl.data.cache import cache_folders, kept
from crcl.data.files import NPY_ERRORS, read_header, require
from crcl.errors import InputError

_BROKEN = (*NPY_ERRORS, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
_LOCAL = 30  # bytes of a local header of a zip file, before its names


class Member(NamedTuple):
    """The header of an array in an archive."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    begin: int
    """Where the numbers begin, counted from the begin of the `.npy` file."""

    @property
    def size(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def array_names(path: Path) -> list[str]:
    """The names of the arrays in a file, without looking at them."""
    require(path, purpose="an .npz file of arrays")
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except _BROKEN as error:
        raise _unreadable(path, error) from error


def open_member(path: Path, key: str, *, rows: int) -> np.ndarray:
    """A read-only memory map of vectors (rows, size) in an archive; refuses anything else.

    Args:
        path: An `.npz` file.
        key: The name of the array.
        rows: How many rows it must have; others are refused before anything is unpacked.
    """
    where = f"{path}:{key}"
    try:
        with zipfile.ZipFile(path) as archive:
            about = archive.getinfo(f"{key}.npy")
            if about.flag_bits & 1:
                raise InputError("encrypted", where=where, hint="write the file again without a password")
            with archive.open(about) as stream:
                member = _header(stream, key, where)
            _check(member, rows, where)
            if about.file_size != member.begin + member.size:
                raise InputError("has another length than its header says", where=where)
            if about.compress_type == zipfile.ZIP_STORED:
                return _mapped(path, _begin_of(path, about.header_offset), member)
            return _unpacked(path, archive, about, member)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"no array '{key}'", where=path) from error
    except _BROKEN as error:
        raise _unreadable(path, error) from error


def _header(stream: IO[bytes], key: str, where: str) -> Member:
    """The header of a `.npy` file."""
    shape, fortran, dtype = read_header(stream)
    if dtype.hasobject:
        raise InputError("contains Python objects, which are never loaded; expected vectors", where=where)
    return Member(key, shape, dtype, fortran, stream.tell())


def _check(member: Member, rows: int, where: str) -> None:
    if member.dtype.kind != "f" or member.dtype.itemsize not in (2, 4):
        raise InputError(f"vectors are {member.dtype}, expected float16 or float32", where=where)
    if len(member.shape) != 2 or 0 in member.shape[1:]:
        raise InputError(f"vectors have shape {member.shape}, expected (rows, size)", where=where)
    if member.shape[0] != rows:
        raise InputError(f"{member.shape[0]} rows, but its table has {rows}; both need the same number", where=where)


def _begin_of(path: Path, offset: int) -> int:
    """Where the bytes of a stored member begin: after its local header and its names there."""
    with path.open("rb") as file:
        file.seek(offset)
        local = file.read(_LOCAL)
    if len(local) < _LOCAL or local[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("no local header where its directory says")
    return offset + _LOCAL + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")


def _mapped(path: Path, offset: int, member: Member) -> np.ndarray:
    order = "F" if member.fortran else "C"
    begin = offset + member.begin
    return np.memmap(path, member.dtype, "r", begin, member.shape, order)  # type: ignore[call-overload]


def _unpacked(path: Path, archive: zipfile.ZipFile, about: zipfile.ZipInfo, member: Member) -> np.ndarray:
    """A map of an unpacked copy; of a copy in memory, if there is no room for a file."""
    stat = path.stat()
    known = repr((str(path.resolve()), stat.st_size, stat.st_mtime_ns, about.header_offset, about.CRC))
    name = f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.npy"

    def write(target: Path) -> None:
        try:
            with archive.open(about) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
        except (zipfile.BadZipFile, zlib.error) as error:
            raise OSError(str(error)) from error  # nothing half-written is kept

    for folder in cache_folders("arrays"):
        there = folder / name
        found = there if there.is_file() else kept(folder, name, write)
        if found is not None and found.stat().st_size == about.file_size:
            return _mapped(found, 0, member)
    with archive.open(about) as stream:
        stream.read(member.begin)
        numbers = np.frombuffer(stream.read(member.size), member.dtype)
    return numbers.reshape(member.shape, order="F" if member.fortran else "C")


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"not a readable .npz file ({error})", where=path, hint="get it again")
