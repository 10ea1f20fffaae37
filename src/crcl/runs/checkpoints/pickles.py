"""Looking at pickled checkpoints before torch reads them: what they name, what they unfold to, what they claim to hold.

Nothing is created here: the instructions of a pickle are followed with nodes in place of values. A file of some hundred
bytes can name one list in another so often that its text would fill the memory, or ask for storages that it lacks.
"""

import io
import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

MOST_STEPS = 5_000_000
"""Instructions of a pickle; a checkpoint of a large model has some ten thousand."""
MOST_VALUES = 5_000_000
"""Values that a checkpoint may have when each mention of a value is counted."""
DEEPEST = 100
PICKLES = 5  # at the beginning of a file of torch before 1.6; its storages follow
_START = b"PK\x03\x04"
_PLAIN = frozenset(
    [
        *("NONE", "NEWFALSE", "NEWTRUE", "EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "GLOBAL"),
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING"),
    ]
)  # instructions that add a value
_TAKING = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "NEWOBJ": 2, "REDUCE": 2, "BINPERSID": 1}  # how many values
_ADDING = {"APPEND": 1, "BUILD": 1, "SETITEM": 2}
_SIZES = (
    {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2}
    | {"Char": 1, "Byte": 1, "Bool": 1, "Untyped": 1}
)  # fmt: skip
STORAGES = {f"torch {name}Storage": size for name, size in _SIZES.items()} | {"torch.storage UntypedStorage": 1}
"""Kinds of storages, with the bytes of a number."""


class RefusedError(ValueError):
    """A pickle that no training writes; the message says why."""


class _Bounded:
    """A stream that is not asked for more than it has: a file would make room for all that a pickle claims."""

    def __init__(self, stream: IO[bytes]) -> None:
        begin = stream.tell()
        self._left = stream.seek(0, io.SEEK_END) - begin
        stream.seek(begin)
        self._stream, self.tell = stream, stream.tell

    def read(self, size: int) -> bytes:
        if size > self._left:
            raise ValueError("cut off")
        return self._counted(self._stream.read(size))

    def readline(self) -> bytes:
        return self._counted(self._stream.readline())

    def _counted(self, content: bytes) -> bytes:
        self._left -= len(content)
        return content


class _Node:
    """A value of a pickle: what it is made of, and itself where it is a number, a text or a name."""

    __slots__ = ("parts", "value")

    def __init__(self, value: Any = None, parts: list["_Node"] | None = None) -> None:
        self.value, self.parts = value, parts or []


def opened(path: Path, allowed: frozenset[str]) -> IO[bytes]:
    """A checkpoint for torch to read, after all that could go wrong was looked at.

    Of a zip file it is a copy in memory, with nothing compressed: torch finds the list of what is in such a file in its
    own way, and may find another one than was checked here.

    Args:
        path: The file.
        allowed: Names (`module name`) that a pickle may have, besides those of storages and number types.
    """
    file = path.open("rb")
    size = path.stat().st_size
    if file.read(len(_START)) == _START:
        with file, zipfile.ZipFile(file) as archive:
            return _copied(archive, allowed, size)
    file.seek(0)
    for _ in range(PICKLES):
        if sum(scan(file, allowed).values()) > size:
            raise ValueError("cut off, or claims more numbers than it holds")
    file.seek(0)
    return file


def _copied(archive: zipfile.ZipFile, allowed: frozenset[str], size: int) -> IO[bytes]:
    members = archive.infolist()
    if sum(member.file_size for member in members) > size:
        raise RefusedError("it unpacks to more than it holds, which no torch checkpoint does")
    names = [member.filename for member in members]
    folders = {name.partition("/")[0] for name in names}
    if len(folders) != 1 or len({name.lower() for name in names}) < len(names):
        raise RefusedError("it has two files of one name, or files outside of its folder")
    folder, copy = folders.pop(), io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as target:
        for name in names:
            target.writestr(name, archive.read(name))
    if f"{folder}/data.pkl" in names:
        stored = {member.filename.removeprefix(f"{folder}/data/"): member.file_size for member in members}
        for key, claimed in scan(io.BytesIO(archive.read(f"{folder}/data.pkl")), allowed).items():
            if claimed > stored.get(key, 0):
                raise RefusedError("it claims more numbers than the file can hold")
    copy.seek(0)
    return copy


def scan(stream: IO[bytes], allowed: frozenset[str]) -> dict[str, int]:
    """The bytes of the storages that one pickle claims, by their keys; raises `RefusedError` for what none writes."""
    stack: list[_Node] = []
    outer: list[list[_Node]] = []
    memo: dict[int, _Node] = {}
    claimed: dict[str, int] = {}
    bounded: Any = _Bounded(stream)
    for step, (code, argument, _) in enumerate(pickletools.genops(bounded)):
        name: str = code.name
        given: Any = argument
        if step >= MOST_STEPS:
            raise RefusedError(f"it has more than {MOST_STEPS:,} instructions")
        if name in _PLAIN:
            if name == "GLOBAL":
                _check_name(given, allowed)
            stack.append(_Node(given))
        elif name in _TAKING:
            node = _Node(parts=_taken(stack, _TAKING[name]))
            if name == "BINPERSID":
                key, size = _storage(node.parts[0])
                claimed[key] = max(size, claimed.get(key, 0))
            stack.append(node)
        elif name in _ADDING:
            parts = _taken(stack, _ADDING[name])
            stack[-1].parts.extend(parts)
        elif name == "MARK":
            outer.append(stack)
            stack = []
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            parts, stack = stack, outer.pop()
            if name == "TUPLE":
                stack.append(_Node(parts=parts))
            else:
                stack[-1].parts.extend(parts)
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[given])
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[given] = stack[-1]
        elif name == "STOP":
            _measure(stack[-1])
        elif name != "PROTO":
            raise ValueError(f"instruction {name}, which torch does not write")
    return claimed


def _taken(stack: list[_Node], count: int) -> list[_Node]:
    if len(stack) < count:
        raise ValueError("takes a value where there is none")
    parts = stack[-count:]
    del stack[-count:]
    return parts


def _check_name(name: str, allowed: frozenset[str]) -> None:
    if name not in allowed and name not in STORAGES:
        raise RefusedError(
            f"it names {name.replace(' ', '.', 1)}, and a checkpoint may hold tensors, arrays, plain values and an "
            "argparse.Namespace only; nothing in it was run"
        )


def _storage(pid: _Node) -> tuple[str, int]:
    """The key of a storage, and the bytes that it claims."""
    values = [part.value for part in pid.parts[:5]]
    if len(values) < 5 or values[0] != "storage" or values[1] not in STORAGES:
        raise RefusedError("it refers to something that is no storage of numbers")
    if type(values[4]) is not int or values[4] < 0 or not isinstance(values[2], str):
        raise RefusedError("it refers to a storage without a size")
    return values[2], STORAGES[values[1]] * values[4]


def _measure(root: _Node) -> None:
    """Refuse what is nested too deeply, within itself, or has too many values when each mention is counted."""
    sizes: dict[int, tuple[int, int]] = {}  # by node: values, and depth
    under: set[int] = set()
    todo: list[tuple[_Node, Iterator[_Node]]] = [(root, iter(root.parts))]
    under.add(id(root))
    while todo:
        node, parts = todo[-1]
        part = next(parts, None)
        if part is None:
            todo.pop()
            under.discard(id(node))
            sizes[id(node)] = _size(node, sizes)
        elif id(part) in under:
            raise RefusedError("it holds a value that is part of itself")
        elif id(part) not in sizes:
            under.add(id(part))
            todo.append((part, iter(part.parts)))


def _size(node: _Node, sizes: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    known = [sizes[id(part)] for part in node.parts]
    values, depth = 1 + sum(count for count, _ in known), 1 + max((deep for _, deep in known), default=0)
    if values > MOST_VALUES:
        raise RefusedError(f"it unfolds to more than {MOST_VALUES:,} values, which no training writes")
    if depth > DEEPEST:
        raise RefusedError(f"its values are nested more than {DEEPEST} deep")
    return values, depth
