"""The members of a tar file in one pass over its headers; nothing is unpacked, and no link is followed.

Plain headers, which nearly all members have, are parsed here, in less than half the time of `tarfile`. All others (long
names, sparse files, sizes beyond 8 GiB) are parsed by `tarfile`.
"""

import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

BLOCK = tarfile.BLOCKSIZE
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of compressed files."""
_LONGEST = 2**20  # bytes of a header; names and dates need some hundred
_EMPTY = bytes(BLOCK)
_PLAIN = (b"0", b"\0")
_OWN = (
    b"path=",
    b"size=",
    b"GNU.",
    b"SCHILY.real",
    b"hdrcharset=",
)  # what an extended header may say of more than dates


class Member(NamedTuple):
    """One member and where it lies."""

    name: str
    is_file: bool
    """False for links, devices and sparse files."""
    is_folder: bool
    """Whether it is a folder, or tells something of the tar itself."""
    start: int
    """Where its first header begins."""
    data: int
    """Where its bytes begin."""
    size: int
    """How many these are."""
    end: int
    """Where the next member begins."""


class DamagedError(Exception):
    """A tar file cannot be read any further; the message gives the reason."""


def key_of(name: str) -> tuple[str, str] | None:
    """Key and extension of a member: all up to the first dot of its base name, and the rest; None if it has neither."""
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    return (f"{folder}{slash}{stem}", extension) if stem and dot else None


def members(file: BinaryIO) -> Iterator[Member]:
    """All members in turn; raises `DamagedError` after the last complete one, if the file is damaged or ends early.

    Others may move the position of the file meanwhile.
    """
    total = os.fstat(file.fileno()).st_size
    place = 0
    while True:
        file.seek(place)
        head = file.read(BLOCK)
        if len(head) < BLOCK:
            raise DamagedError("empty" if not total else "ends within a header" if head else "ends without an end mark")
        if head == _EMPTY:
            return
        member = _plain(file, head, place) or _other(file, head, place)
        if member.data + member.size > total or member.end - BLOCK >= total:
            raise DamagedError(f"ends within {member.name}")
        yield member
        place = member.end


def _plain(file: BinaryIO, head: bytes, start: int) -> Member | None:
    """A regular file with a plain header, maybe after an extended one that only has dates and owners; else None."""
    place = start
    if head[156:157] == b"x" and _is_intact(head):
        size = _octal(head[124:136])
        more = file.read(_padded(size)) if 0 < size <= _LONGEST else b""
        if not more or any(word in more for word in _OWN):
            return None
        place += BLOCK + len(more)
        head = file.read(BLOCK)
    if len(head) < BLOCK or head[156:157] not in _PLAIN or not _is_intact(head):
        return None
    size = _octal(head[124:136])
    name, prefix = _text(head[:100]), _text(head[345:500])
    if size < 0 or name.endswith("/"):
        return None
    data = place + BLOCK
    return Member(f"{prefix}/{name}" if prefix else name, True, False, start, data, size, data + _padded(size))


def _other(file: BinaryIO, head: bytes, start: int) -> Member:
    """Any member, by `tarfile`."""
    if head[156:157] == b"g":  # of the tar, not of the member that follows
        size = _octal(head[124:136])
        if size < 0 or not _is_intact(head):
            raise DamagedError(f"damaged at byte {start:,}")
        return Member("", False, True, start, start + BLOCK, size, start + BLOCK + _padded(size))
    tar, info = _parsed(file, start)
    is_file = info.isreg() and not info.issparse()
    size = info.size if is_file else 0
    if size < 0 or tar.offset <= start:
        raise DamagedError(f"damaged at byte {start:,}")
    return Member(info.name, is_file, info.isdir(), start, info.offset_data, size, tar.offset)


def header_of(file: BinaryIO, member: Member) -> tarfile.TarInfo:
    """All that the header of a member says."""
    return _parsed(file, member.start)[1]


def _parsed(file: BinaryIO, start: int) -> tuple[tarfile.TarFile, tarfile.TarInfo]:
    file.seek(start)
    try:
        tar = tarfile.TarFile(fileobj=_Limited(file), encoding="utf-8", errors="surrogateescape")  # type: ignore[arg-type]
        info = tar.next()
    except (tarfile.TarError, ValueError, OverflowError, IndexError, RecursionError) as error:
        raise DamagedError("not a tar file" if start == 0 else f"damaged at byte {start:,}") from error
    if info is None:
        raise DamagedError(f"damaged at byte {start:,}")
    return tar, info


class _Limited:
    """A file for `tarfile`, which takes the length of a header from the header."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LONGEST:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._read(size)


def _is_intact(head: bytes) -> bool:
    """Whether the sum of a header is the one that it has."""
    return sum(head) - sum(head[148:156]) + 8 * ord(" ") == _octal(head[148:156])


def _octal(digits: bytes) -> int:
    """A number of a header; -1 if it is not written as digits."""
    try:
        return int(digits.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
