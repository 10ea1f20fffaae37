"""Tables of verdicts as CSV or JSONL files.

A spreadsheet takes a cell that begins with = + - @ for a formula, also one that came from a stranger's caption. In CSV
such a cell gets a leading apostrophe, which a spreadsheet takes for "this is text", and which is taken off again when
the file is read. JSONL has every text as it is.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crcl.data.files import read_bytes, read_lines, refuse, values_of_any_length
from crcl.errors import InputError
from crcl.storage import replacing, require_writable

COLUMNS = ("row", "image", "caption", "verdict", "new_caption", "new_image", "reviewer", "at", "queue")
"""Row in the data, the pair as it is shown, what was said of it, what would be right, who said it, when and where."""
NEEDED = ("image", "caption", "verdict")
"""Columns that a table to import must have."""
ENDINGS = (".csv", ".jsonl")
_LONGEST_LINE = 10_000_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class Line(NamedTuple):
    """A line of a table of verdicts: its place, for messages, and its values by column."""

    place: str
    values: Mapping[str, Any]


def check_ending(path: Path) -> None:
    """Refuse a file that is neither CSV nor JSONL by its name."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            "a file of verdicts is .csv or .jsonl", where=path, hint="name a file that ends in one of these"
        )


def write_verdicts(path: Path, lines: Iterable[Mapping[str, Any]], *, overwrite: bool) -> None:
    """Write lines with the columns of `COLUMNS`; a failure leaves the old file."""
    check_ending(path)
    if path.exists() and not overwrite:
        raise InputError("exists already", where=path, hint="pass {overwrite} to replace it, or name another file")
    if path.exists() and not path.is_file():
        raise InputError("not a file, so it is not overwritten", where=path, hint="name another one")
    if path.exists() and not _has_verdicts(path):
        raise InputError("exists and holds no verdicts, so it is not replaced", where=path, hint="name another file")
    require_writable(path)
    text = _as_csv(lines) if path.suffix.lower() == ".csv" else _as_jsonl(lines)
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError("a caption or a name is no text", where=path, hint="name a .jsonl file instead") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _has_verdicts(path: Path) -> bool:
    """Whether a file was written by `write_verdicts`; one without any lines may have been."""
    with path.open("rb") as file:
        first = file.readline(_LONGEST_LINE)
    if path.suffix.lower() == ".csv":
        return first.strip() == ",".join(COLUMNS).encode()
    try:
        return not first.strip() or set(json.loads(first)) == set(COLUMNS)
    except (ValueError, TypeError, RecursionError):
        return False


def _as_csv(lines: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in lines:
        writer.writerow(["" if line[name] is None else guarded(str(line[name])) for name in COLUMNS])
    return text.getvalue()


def _as_jsonl(lines: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{_json({name: line[name] for name in COLUMNS})}\n" for line in lines)


def _json(record: dict[str, Any]) -> str:
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half a character, which only an escape can name
        return json.dumps(record)
    return text


def guarded(text: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def unguarded(text: str) -> str:
    """The text that `guarded` was given."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(_FORMULA) else text


def read_table(path: Path) -> list[Line]:
    """The lines of a CSV or JSONL file, each with its place; reports all that cannot be read at once."""
    check_ending(path)
    if path.suffix.lower() == ".csv":
        return list(_read_csv(path))
    return _read_jsonl(path)


def _read_csv(path: Path) -> Iterator[Line]:
    read_lines(path)  # tells each line that is not UTF-8
    text = read_bytes(path).decode("utf-8-sig")
    problems: list[InputError] = []
    found: list[Line] = []
    with values_of_any_length():
        reader = csv.reader(io.StringIO(text, newline=""))
        try:
            header = next(reader, [])
            check_columns([name.strip() for name in header], path)
            for values in reader:
                place = f"{path}:{reader.line_num}"
                if not values:
                    continue
                if len(values) != len(header):
                    problems.append(InputError(f"{len(values)} values, the header has {len(header)}", where=place))
                    continue
                cells = {name.strip(): unguarded(value) for name, value in zip(header, values, strict=True)}
                found.append(Line(place, cells))
        except csv.Error as error:
            problems.append(InputError(f"not CSV ({error})", where=f"{path}:{reader.line_num}"))
    refuse(problems)
    yield from found


def _read_jsonl(path: Path) -> list[Line]:
    problems: list[InputError] = []
    found: list[Line] = []
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.append(InputError(f"not a JSON object ({error})", where=place))
            continue
        if isinstance(values, dict):
            found.append(Line(place, values))
        else:
            problems.append(InputError("not a JSON object", where=place))
    refuse(problems)
    check_columns(list(dict.fromkeys(name for line in found for name in line.values)), path)
    return found


def given_lines(records: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Lines of a table in memory."""
    found = [Line(f"line {number}", record) for number, record in enumerate(records, start=1)]
    check_columns(list(dict.fromkeys(name for line in found for name in line.values)), "verdicts")
    return found


def check_columns(names: Sequence[str], where: str | Path) -> None:
    """Refuse a table without the columns that are needed, or with one twice."""
    twice = sorted({name for name in names if names.count(name) > 1 and name in COLUMNS})
    if twice:
        raise InputError(f"the column '{twice[0]}' occurs twice", where=where)
    missing = [name for name in NEEDED if name not in names]
    if missing:
        listed = ", ".join(f"'{name}'" for name in missing)
        raise InputError(
            f"no column {listed}; it has {', '.join(names) or 'none'}",
            where=where,
            hint=f"a table of verdicts has {', '.join(NEEDED)}, and may have {', '.join(set_apart())}",
        )


def set_apart() -> list[str]:
    """Columns that a table may lack."""
    return [name for name in COLUMNS if name not in NEEDED]
