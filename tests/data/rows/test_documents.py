"""JSON documents read entry by entry: the same values as by json, with their places, and errors that name the place."""

import json
from pathlib import Path
from typing import Any

import pytest

from crcl.data.rows.documents import Cursor, keys_at_start
from crcl.errors import InputError

DOCUMENT: dict[str, Any] = {
    "a": [1, "x, ]", {"b": [[]], 'é"\\': None}, [], 2.50, True],
    "empty": [],
    "none": {},
    "deep": {"a": [{"b": 1}]},
}
STYLES = pytest.mark.parametrize(
    "style", [{}, {"indent": 3}, {"separators": (",", ":")}, {"ensure_ascii": False}], ids=str
)


def opened(path: Path, text: str | bytes) -> Cursor:
    """The cursor at the beginning of this text."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Cursor.open(path, purpose="a document")


def told(path: Path, text: str | bytes) -> str:
    """The message with which a list, or an object of lists, is refused."""
    with pytest.raises(InputError) as caught:
        walk(path, text)
    return str(caught.value)


def walk(path: Path, text: str | bytes) -> None:
    """Read a list or an object to its end."""
    cursor = opened(path, text)
    for _ in cursor.members() if cursor.at("{") else cursor.entries():
        pass
    cursor.finish()


@STYLES
def test_keys_entries_and_places_are_those_of_the_text(tmp_path: Path, style: dict[str, Any]) -> None:
    cursor = opened(tmp_path / "a.json", "\ufeff \n" + json.dumps(DOCUMENT, **style) + "\n\n")
    found = {}
    for key in cursor.members():
        if cursor.at("["):
            entries = list(cursor.entries())
            assert [json.loads(cursor.text[one.start : one.end]) for one in entries] == [one.value for one in entries]
            found[key] = [one.value for one in entries]
        elif key == "none":
            found[key] = cursor.value()
    cursor.finish()
    assert found == {key: DOCUMENT[key] for key in ("a", "empty", "none")}  # what is not read is skipped


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"a": 1}, {"a": "never', "not complete JSON (Unterminated string starting at: line 1 column 18 (char 17))"),
        ('[{"a": 1},\n {"a": 1}', "not complete JSON (Expecting ']': line 2 column 10 (char 20))"),
        ('{"a": [1, 2', "not complete JSON (Expecting ',' delimiter: line 1 column 12 (char 11))"),
        ('{"a" 1}', "not complete JSON (Expecting ':': line 1 column 6 (char 5))"),
        ('{"a": 1,}', "not complete JSON (Expecting value: line 1 column 9 (char 8))"),
        ("[1, 2,]", "not complete JSON (Expecting value: line 1 column 7 (char 6))"),
        ("{1: 2}", "not complete JSON (a key is a number)"),
        ("[1] [2]", "not complete JSON (more text after its end, at character 5)"),
        ("", "not complete JSON (Expecting '[': line 1 column 1 (char 0))"),
        ("[" + "9" * 5000 + "]", "not complete JSON (Exceeds the limit"),
        (f"[1, {'[' * 100_000}", "nested too deeply, in the value that begins at character 5"),
        (b'[1,\n"caf\xe9"]', ":2: not UTF-8 (byte 0xe9 at position 5); save the file as UTF-8"),
    ],
)
def test_text_that_is_no_document_is_refused_with_the_place(tmp_path: Path, text: str | bytes, expected: str) -> None:
    message = told(tmp_path / "a.json", text)
    assert message.startswith(str(tmp_path / "a.json"))
    assert expected in message


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.json: not found"):
        Cursor.open(tmp_path / "a.json", purpose="a document")


@STYLES
def test_the_first_keys_are_found_in_a_part_of_a_document(tmp_path: Path, style: dict[str, Any]) -> None:
    path, text = tmp_path / "a.json", json.dumps(DOCUMENT, **style)
    path.write_text(text, "utf-8")
    keys = {("a",), ("a", "[]", "b"), ("a", "[]", 'é"\\'), ("empty",), ("none",), ("deep",), ("deep", "a")}
    assert keys_at_start(path) == keys | {("deep", "a", "[]", "b")}
    for length in range(len(text)):
        path.write_text(text[:length], "utf-8")
        assert keys_at_start(path) <= keys | {("deep", "a", "[]", "b")}


def test_looking_never_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert keys_at_start(path) == keys_at_start(tmp_path) == frozenset()
    for content in (b"\xff\xfe\x00", b"[" * 100_000, b"]}:,", b'{"a": "' + b"\\" * 70_000, b'{"\xed\xa0\x80": 1}'):
        path.write_bytes(content)
        assert all(len(key) <= 4 for key in keys_at_start(path))
