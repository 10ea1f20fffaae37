"""Reading JSON documents entry by entry, with the place of each in the text, so that all else can stay as it is."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from crcl.data.files import read_bytes, refuse, require, undecodable
from crcl.data.rows.tables import tidied
from crcl.errors import InputError

_LOOKED_AT = 2**16  # bytes at the beginning of a document by which its layout is recognised
_DEPTH = 4  # keys that lie deeper do not matter for that
_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\n\r]*")
_HALF = re.compile("[\ud800-\udfff]")
_SHOWN = 60  # characters of a text in a message
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|$)|[{}\[\],:]', re.DOTALL)
_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


class Entry(NamedTuple):
    """An entry of a list in a document."""

    value: Any
    start: int
    """Where it begins in the text."""
    end: int
    """Where it ends."""


class Cursor:
    """A place in the text of a JSON document, which moves on as values are read."""

    def __init__(self, path: Path, text: str, place: int = 0) -> None:
        self.path, self.text, self.place = path, text, place

    @classmethod
    def open(cls, path: Path, *, purpose: str) -> "Cursor":
        """The beginning of a document; `purpose` says what is expected of it."""
        require(path, purpose=purpose)
        raw = read_bytes(path)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            refuse(undecodable(path, raw.split(b"\n")))
            raise
        return cls(path, text, 1 if text.startswith("\ufeff") else 0)

    def value(self) -> Any:
        """The value that begins here."""
        self.skip()
        return self._decode()

    def _decode(self) -> Any:
        try:
            found, self.place = _DECODER.raw_decode(self.text, self.place)
        except RecursionError as error:
            what = f"nested too deeply, in the value that begins at character {self.place + 1:,}"
            raise InputError(what, where=self.path, hint="remove the nested value") from error
        except ValueError as error:
            raise self._broken(str(error)) from error
        return found

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here. The cursor stands at the value, which may be read or not."""
        self._expect("{")
        if self._passes("}"):
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise self._broken(f"a key is {kind_of(key)}")
            self._expect(":")
            self.skip()
            before = self.place
            yield key
            if self.place == before:
                self.value()
            if not self._passes(","):
                break
        self._expect("}")

    def entries(self) -> Iterator[Entry]:
        """The entries of the list that begins here."""
        self._expect("[")
        if self._passes("]"):
            return
        self.skip()
        while True:
            start = self.place
            yield Entry(self._decode(), start, self.place)
            comma = _COMMA.match(self.text, self.place)
            if comma is None:
                break
            self.place = comma.end()
        self._expect("]")

    def finish(self) -> None:
        """Refuse text after the end of the document."""
        self.skip()
        if self.place < len(self.text):
            raise self._broken(f"more text after its end, at character {self.place + 1:,}")

    def skip(self) -> None:
        """Move over white space."""
        found = _BLANK.match(self.text, self.place)
        self.place = self.place if found is None else found.end()

    def at(self, mark: str) -> bool:
        """Whether a value that begins with this sign is next."""
        self.skip()
        return self.text.startswith(mark, self.place)

    def require_kind(self, mark: str, *, name: str, expected: str) -> None:
        """Refuse a value that is not an object (`{`) or a list (`[`)."""
        if not self.at(mark):
            found = kind_of(self.value())
            wanted = "an object" if mark == "{" else "a list"
            raise InputError(f"{name} is {found} where {wanted} belongs; expected {expected}", where=self.path)

    def _passes(self, mark: str) -> bool:
        there = self.at(mark)
        self.place += there
        return there

    def _expect(self, mark: str) -> None:
        if not self._passes(mark):
            error = json.JSONDecodeError(f"Expecting '{mark}'", self.text, self.place)
            raise self._broken(str(error))

    def _broken(self, why: str) -> InputError:
        return InputError(
            f"not complete JSON ({why})", where=self.path, hint="repair it, or get the file again if it was cut off"
        )


def kind_of(value: Any) -> str:
    """What a value of a document is, in words."""
    return _KINDS.get(type(value), "null")


def missing_key(path: Path, entry: str, value: Any, keys: Sequence[str], expected: str) -> InputError | None:
    """The error for an entry that is no object or lacks one of the keys; None if it has all of them."""
    if not isinstance(value, dict):
        return InputError(f"{kind_of(value)}, expected {expected}", where=f"{path}: {entry}")
    lacks = [key for key in keys if key not in value]
    if not lacks:
        return None
    named = " and ".join(f"'{key}'" for key in lacks)
    return InputError(f"no {named}, expected {expected}", where=f"{path}: {entry}")


def not_text(path: Path, entry: str, key: str, value: Any) -> InputError | None:
    """The error for a value that is not text; None if it is text or null, which counts as empty."""
    if value is None or isinstance(value, str):
        return None
    return InputError(f"'{key}' is {kind_of(value)}, expected text", where=f"{path}: {entry}")


def as_rows(path: Path, images: list[str], captions: list[str], splits: list[str] | None = None) -> pa.Table:
    """Rows of a document, as every layout has them."""
    columns = {"image": images, "caption": captions} | ({} if splits is None else {"split": splits})
    try:
        table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    except (pa.ArrowException, UnicodeEncodeError) as error:  # half of a surrogate pair, as JSON can write it
        refuse(_halves(path, columns))
        raise InputError(f"contains text that is not Unicode ({error})", where=path) from error
    return tidied(str(path), table)


def _halves(path: Path, columns: dict[str, list[str]]) -> list[InputError]:
    """One error for each text with half of a character."""
    return [
        InputError(
            f"the {name} {ascii(text)[:_SHOWN]} has half of a character",
            where=f"{path}: pair {row + 1:,}",
            hint="a \\ud800 to \\udfff in JSON needs its other half: write the text anew",
        )
        for name, texts in columns.items()
        for row, text in enumerate(texts)
        if text and _HALF.search(text)
    ]


def keys_at_start(path: Path) -> frozenset[tuple[str, ...]]:
    """The keys at the beginning of a document by their paths, such as `("images", "[]", "id")`; empty if unreadable.

    Only the first 64 KB are read, so the document need not be complete.
    """
    if not path.is_file():
        return frozenset()
    try:
        with path.open("rb") as file:
            text = file.read(_LOOKED_AT).decode("utf-8-sig", "replace")
    except OSError:
        return frozenset()
    found: set[tuple[str, ...]] = set()
    inside: list[str] = []  # "[]" for a list, or the present key of an object
    last = ""
    for token in _TOKEN.finditer(text):
        sign = token.group()
        if sign in "{[":
            inside.append("[]" if sign == "[" else "")
        elif sign in "}]":
            if inside:
                inside.pop()
        elif sign == ":" and inside and inside[-1] != "[]":
            inside[-1] = _unquoted(last)
            if len(inside) <= _DEPTH:
                found.add(tuple(inside))
        last = sign
    return frozenset(found)


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return ""
