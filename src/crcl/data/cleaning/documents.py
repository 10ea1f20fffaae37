"""Writing a JSON document again without the suspects, or with correspondences; all else stays byte by byte.

The text of the document is kept, and only what changes is cut out of it or put into it. So indentation, order, numbers
and keys stay as they are.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crcl.data.cleaning.judged import COLUMN, Judged, written
from crcl.data.rows.documents import Cursor, Entry

_FIRST = re.compile(
    r'\{(\s*)"[^"\\]*(?:\\.[^"\\]*)*"\s*:(\s?)', re.DOTALL
)  # of an object: space before and after a key


Pair = Callable[[Any], tuple[str, str] | None]
"""Image and caption of a record; None if it is no row."""
Recaption = Callable[[Path, str, "Entry", str], list["Edit"]]
"""The edits that give a record of a document's text another caption."""


class Edit(NamedTuple):
    """Text that takes the place of a part of the document."""

    start: int
    end: int
    text: str


def write_document(text: str, edits: Iterable[Edit], path: Path) -> None:
    """Write a document with these changes, of which no two overlap."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for part in _parts(text, edits):
            file.write(part)


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Text with these changes."""
    return "".join(_parts(text, edits))


def _parts(text: str, edits: Iterable[Edit]) -> Iterator[str]:
    place = 0
    for edit in sorted(edits):
        yield text[place : edit.start]
        yield edit.text
        place = edit.end
    yield text[place:]


def removals(spans: Sequence[tuple[int, int]], kept: Sequence[bool]) -> Iterator[Edit]:
    """The edits that leave entries out of a list, each with one of the commas beside it."""
    any_before = False
    for number, ((start, end), keep) in enumerate(zip(spans, kept, strict=True)):
        if keep:
            any_before = True
        elif any_before:
            yield Edit(spans[number - 1][1], end, "")
        else:
            yield Edit(start, end if number + 1 == len(spans) else spans[number + 1][0], "")


def with_correspondence(text: str, start: int, end: int, value: np.float32 | None) -> Edit:
    """The edit that adds the correspondence to an object as its last key, spaced as its other keys are."""
    number = "null" if value is None else str(value)
    last = start + len(text[start : end - 1].rstrip())  # after the last value
    first = _FIRST.match(text, start, end)
    if first is None:  # no keys
        return Edit(last, last, f'"{COLUMN}": {number}')
    before, after = first.groups()
    comma = f",{before}" if "\n" in before else f",{' ' if after else ''}"
    return Edit(last, last, f'{comma}"{COLUMN}":{" " if after else ""}{number}')


def with_value(path: Path, text: str, start: int, key: str, value: Any) -> list[Edit]:
    """The edit that gives a key of an object another value; none if the object lacks the key."""
    cursor, found = Cursor(path, text, start), None
    for name in cursor.members():
        if name == key:  # of a key that occurs twice the last value counts
            begin = cursor.place
            cursor.value()
            found = Edit(begin, cursor.place, json.dumps(value, ensure_ascii=False))
    return [] if found is None else [found]


def entries_of(path: Path, text: str, start: int, key: str) -> tuple[int, int, list[Entry]] | None:
    """Where a list lies that is a value of an object, and its entries; None if the object has no such list."""
    cursor, found = Cursor(path, text, start), None
    for name in cursor.members():
        if name == key and cursor.at("["):
            begin = cursor.place
            entries = list(cursor.entries())
            found = begin, cursor.place, entries
    return found


def with_entries(text: str, start: int, end: int, old: Sequence[Entry], new: Sequence[str]) -> Edit:
    """The edit that gives a list other entries, spaced as the old ones are."""
    if not new:
        return Edit(start, end, "[]")
    before = text[start + 1 : old[0].start] if old else ""
    after = text[old[-1].end : end - 1] if old else ""
    comma = text[old[0].end : old[1].start] if len(old) > 1 else f",{before}" if "\n" in before else ", "
    return Edit(start, end, f"[{before}{comma.join(new)}{after}]")


def clean_list(path: Path, pair: Pair, image_key: str, judged: Judged, output: Path, *, recaption: Recaption) -> int:
    """Write a list of records again, a JSON document or one record per line; returns the number of its rows.

    Args:
        path: The file; `.jsonl` has one record per line.
        pair: Image and caption of a record. Records that are no rows stay.
        image_key: The key that names the image of a record.
        judged: What was judged of it.
        output: The file to write.
        recaption: How a record gets another caption.
    """
    write = _write_lines if path.suffix.lower() == ".jsonl" else _write_list
    return written(output, lambda temporary: write(path, _Rows(path, pair, image_key, judged, recaption), temporary))


class _Rows:
    """Counts the records that are rows, and says what becomes of each record."""

    def __init__(self, path: Path, pair: Pair, image_key: str, judged: Judged, recaption: Recaption) -> None:
        self.path, self.pair, self.image_key, self.judged, self.count = path, pair, image_key, judged, 0
        self.recaption = recaption

    def next(self, text: str, entry: Entry) -> tuple[bool, list[Edit]]:
        """Whether the next record is kept, and its edits."""
        judged, pair, row = self.judged, self.pair(entry.value), self.count
        edits: list[Edit] = []
        if pair is not None:
            judged.check(row, *pair)
            self.count += 1
            if row in judged.moved:
                edits += with_value(self.path, text, entry.start, self.image_key, judged.moved[row])
            if row in judged.corrected:
                edits += self.recaption(self.path, text, entry, judged.corrected[row])
        if judged.mark and isinstance(entry.value, dict):
            refuse_marked(judged, entry.value)
            belief = None if pair is None else judged.correspondence.get(row)
            edits.append(with_correspondence(text, entry.start, entry.end, belief))
        return pair is None or judged.keeps(row), edits


def _write_list(path: Path, rows: _Rows, output: Path) -> int:
    cursor = Cursor.open(path, purpose="a JSON list")
    kept: list[bool] = []
    spans: list[tuple[int, int]] = []
    edits: list[Edit] = []
    for entry in cursor.entries():
        keep, changes = rows.next(cursor.text, entry)
        kept.append(keep)
        spans.append((entry.start, entry.end))
        edits += changes
    rows.judged.check_count(rows.count)
    write_document(cursor.text, [*edits, *removals(spans, kept)], output)
    return rows.count


def _write_lines(path: Path, rows: _Rows, output: Path) -> int:
    with (
        path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as source,
        output.open("w", encoding="utf-8", errors="surrogateescape", newline="") as target,
    ):
        for line in source:
            cursor = Cursor(path, line, 1 if line.startswith("\ufeff") else 0)
            cursor.skip()
            if cursor.place == len(line):
                target.write(line)
                continue
            start = cursor.place
            keep, changes = rows.next(line, Entry(cursor.value(), start, cursor.place))
            if keep:
                target.write(edited(line, changes))
    rows.judged.check_count(rows.count)
    return rows.count


def refuse_marked(judged: Judged, value: dict[str, Any]) -> None:
    """Refuse to mark an entry that has a correspondence already."""
    if judged.mark and COLUMN in value:
        raise judged.has_column()
