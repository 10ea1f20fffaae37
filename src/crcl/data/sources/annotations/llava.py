"""LLaVA's conversations about images: a JSON list or JSONL; the first answer of each is the caption of its image."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from crcl.data.cleaning.documents import Edit, clean_list, entries_of, with_value
from crcl.data.cleaning.judged import Judged
from crcl.data.files import read_lines, refuse
from crcl.data.pictures.folders import folder_of, pictures_in
from crcl.data.rows.documents import Cursor, Entry, as_rows, keys_at_start, kind_of
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.content import Content, RowsSource
from crcl.errors import InputError

RECORD = '{"image": ..., "conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}'
_ANSWERS = ("gpt", "assistant")
_TEXT_ONLY, _SEVERAL, _UNANSWERED = "have no image", "have several images", "have no answer"


class _Pair(NamedTuple):
    """Image and caption of a record, or why it has none."""

    image: str = ""
    caption: str = ""
    reason: str = ""


def recognises(path: Path) -> bool:
    """Whether a path is such a file, by its first keys; a table that has captions besides stays a table."""
    if path.is_dir() or path.suffix.lower() not in (".json", ".jsonl"):
        return False
    keys, before = keys_at_start(path), ("[]",) if path.suffix.lower() == ".json" else ()
    return (*before, "conversations", "[]", "value") in keys and (*before, "caption") not in keys


def read(location: Location) -> Content:
    """The records that have an image and an answer, in order."""
    path = Path(location.path)
    images: list[str] = []
    captions: list[str] = []
    splits: list[str] = []
    problems: list[InputError] = []
    left_out: Counter[str] = Counter()
    for name, record in _records(path):
        pair = _pair(record)
        if isinstance(pair, str):
            problems.append(InputError(pair, where=f"{path}: {name}"))
        elif pair.reason:
            left_out[pair.reason] += 1
        else:
            images.append(pair.image)
            captions.append(pair.caption)
            splits.append(record["split"] if isinstance(record.get("split"), str) else "")
    refuse(problems)
    if left_out and not images:
        why = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        raise InputError(f"no record has an image and an answer: {why}", where=path)
    notes = tuple(f"{path.name}: {count:,} records {reason} and are left out" for reason, count in left_out.items())
    folder = folder_of(list(dict.fromkeys(images)), (path.parent, path.parent / "images", path.parent / path.stem))
    rows = as_rows(path, images, captions, splits if any(splits) else None)
    return Content(rows, pictures_in([] if folder is None else [folder]), notes)


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Each record with its name in messages."""
    if path.suffix.lower() != ".jsonl":
        for number, entry in enumerate(_entries(_open(path))):
            yield f"[{number}]", entry.value
        return
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except RecursionError as error:
                raise InputError("nested too deeply", where=f"{path}:{number}") from error
            except ValueError as error:
                raise InputError(
                    f"not one complete JSON object on a line ({error})", where=f"{path}:{number}"
                ) from error


def _open(path: Path) -> Cursor:
    return Cursor.open(path, purpose="a JSON list of conversations about images")


def _entries(cursor: Cursor) -> Iterator[Entry]:
    """The records of a document."""
    cursor.require_kind("[", name="the document", expected=f"[{RECORD}, ...]")
    yield from cursor.entries()
    cursor.finish()


def _pair(record: Any) -> _Pair | str:
    """Image and caption of a record, or what is wrong with it."""
    if not isinstance(record, dict):
        return f"{kind_of(record)}, expected {RECORD}"
    talk, image = record.get("conversations"), record.get("image")
    if not isinstance(talk, list):
        return f"no list 'conversations', expected {RECORD}"
    if image is None or image == "" or image == []:
        return _Pair(reason=_TEXT_ONLY)
    if isinstance(image, list):
        return _Pair(reason=_SEVERAL)
    if not isinstance(image, str):
        return f"'image' is {kind_of(image)}, expected the name of a file"
    for turn in talk:
        if not isinstance(turn, dict):
            return f"a turn of 'conversations' is {kind_of(turn)}, expected {RECORD}"
        if _answers(turn):
            return _Pair(image.strip(), turn["value"].strip())
    return _Pair(reason=_UNANSWERED)


def _answers(turn: dict[str, Any]) -> bool:
    """Whether a turn of a conversation is an answer with text."""
    return turn.get("from") in _ANSWERS and isinstance(turn.get("value"), str) and bool(turn["value"].strip())


def _row(record: Any) -> tuple[str, str] | None:
    """Image and caption of a record that is a row; None for one that is left out."""
    pair = _pair(record)
    return None if isinstance(pair, str) or pair.reason else (pair.image, pair.caption)


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write the records again; those without an image or an answer stay."""
    return clean_list(Path(location.path), _row, "image", judged, output, recaption=_recaption)


def _recaption(path: Path, text: str, entry: Entry, caption: str) -> list[Edit]:
    """The edit that gives a record another first answer."""
    found = entries_of(path, text, entry.start, "conversations")
    turns = [] if found is None else found[2]
    answer = next(turn for turn in turns if _answers(turn.value))
    return with_value(path, text, answer.start, "value", caption)


LAYOUT = Layout(
    "LLaVA's conversations about images (.json, .jsonl)",
    recognises,
    RowsSource.opening(read),
    clean,
)
