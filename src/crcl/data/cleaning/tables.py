"""Writing a table again without the suspects, or with a column of correspondences; all else stays byte by byte.

CSV, TSV   records as they are in the file, quotes and line ends too; the correspondence is added as the last value
JSONL      lines as they are; the correspondence is added as the last key
Parquet    the same schema, row group by row group; the correspondence is added as the last column

Data that was in memory was saved as Parquet, and may be written as CSV too.

A row that is moved to another image gets another value in the column of images, one with a new caption another value in
that of captions; it stays as it is otherwise.
"""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from crcl.data.cleaning.judged import COLUMN, Judged, written
from crcl.data.files import values_of_any_length
from crcl.data.rows.tables import Columns, delimiter_of
from crcl.errors import nth_row


class _Table(NamedTuple):
    path: Path
    columns: Columns
    delimiter: str


def clean_table(path: Path, columns: Columns, judged: Judged, output: Path, *, delimiter: str | None = None) -> int:
    """Write a table again in its own format; returns the number of its rows.

    Args:
        path: The table.
        columns: The names of its columns.
        judged: What was judged of it.
        output: The file to write.
        delimiter: What separates the columns of a `.csv` or `.tsv` file, if it is not what the ending says.
    """
    write = {".jsonl": _write_jsonl, ".parquet": _write_parquet}.get(path.suffix.lower(), _write_csv)
    if write is _write_parquet and output.suffix.lower() == ".csv":
        write = _write_parquet_as_csv
    table = _Table(path, columns, delimiter_of(path, delimiter))
    return written(output, lambda temporary: write(table, judged, temporary))


def _write_csv(table: _Table, judged: Judged, output: Path) -> int:
    delimiter = table.delimiter
    header: list[str] = []
    image = caption = row = 0
    with _open(table.path, newline="") as source, _open(output, "w", newline="") as target:
        for record, values in _records(judged, source, delimiter):
            if not values:  # a blank line is no row
                target.write(record)
            elif not header:
                header = [values[0].removeprefix("\ufeff"), *values[1:]]
                image, caption = _columns(table, judged, header)
                target.write(_extended(record, f"{delimiter}{COLUMN}") if judged.mark else record)
            else:
                if len(values) != len(header):
                    raise judged.changed(f"{nth_row(row)} has {len(values)} values, the header {len(header)}")
                judged.check(row, values[image], values[caption])
                if row in judged.moved:
                    record = _with_value(record, image, judged.moved[row], delimiter)
                if row in judged.corrected:
                    record = _with_value(record, caption, judged.corrected[row], delimiter)
                if judged.keeps(row):
                    value = judged.correspondence.get(row)
                    more = f"{delimiter}{'' if value is None else str(value)}"
                    target.write(_extended(record, more) if judged.mark else record)
                row += 1
    judged.check_count(row)
    return row


def _records(judged: Judged, source: TextIO, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Each record as text and as values."""
    lines: list[str] = []

    def read() -> Iterator[str]:
        for line in source:
            lines.append(line)
            yield line

    with values_of_any_length():
        try:
            for values in csv.reader(read(), delimiter=delimiter):
                yield "".join(lines), values
                lines.clear()
        except csv.Error as error:
            raise judged.changed(str(error)) from error


def _columns(table: _Table, judged: Judged, header: list[str]) -> tuple[int, int]:
    """Places of image and caption in the header."""
    if judged.mark and COLUMN in header:
        raise judged.has_column()
    if not set(table.columns) <= set(header):
        raise judged.changed("the first record is not the header")
    return header.index(table.columns.image), header.index(table.columns.caption)


def _extended(record: str, more: str) -> str:
    """A record with text added before its line end."""
    whole = record.rstrip("\r\n")
    return f"{whole}{more}{record[len(whole) :]}"


def _with_value(record: str, column: int, value: str, delimiter: str) -> str:
    """A record with another value in one column, quoted if the old one was or if it must be."""
    # quoted text, in which quotes are doubled and anything else may occur, if any; then all up to the end of the value
    one = re.compile(rf'(?:"(?:[^"]|"")*"?)?[^{delimiter}\r\n]*')
    start = 0
    for _ in range(column):
        found = one.match(record, start)
        start = (found.end() if found else start) + len(delimiter)
    old = one.match(record, start)
    end = old.end() if old else start
    if record[start : start + 1] == '"' or re.search(rf'[{delimiter}"\r\n]', value):
        value = '"' + value.replace('"', '""') + '"'
    return record[:start] + value + record[end:]


def _write_jsonl(table: _Table, judged: Judged, output: Path) -> int:
    row = 0
    with _open(table.path, newline="\n") as source, _open(output, "w", newline="") as target:
        for line in source:
            if not line.strip("\ufeff \t\r\n"):
                target.write(line)
                continue
            try:
                found = dict(json.loads(line.removeprefix("\ufeff")))
            except (ValueError, TypeError, RecursionError) as error:
                raise judged.changed(f"{nth_row(row)} is not one object on a line of its own") from error
            judged.check(row, *(found.get(name) for name in table.columns))
            if judged.mark and COLUMN in found:
                raise judged.has_column()
            if row in judged.moved:
                name = judged.moved[row]
                is_number = isinstance(found.get(table.columns.image), int | float)
                line = with_member(line, table.columns.image, name if is_number else as_json(name))
            if row in judged.corrected:
                line = with_member(line, table.columns.caption, as_json(judged.corrected[row]))
            if judged.keeps(row):
                target.write(_with_key(line, judged.correspondence.get(row)) if judged.mark else line)
            row += 1
    judged.check_count(row)
    return row


def _with_key(line: str, value: np.float32 | None) -> str:
    """The line of a JSON object with the correspondence added as its last key."""
    return with_key(line, COLUMN, "null" if value is None else str(value))


def as_json(value: Any) -> str:
    """A value as JSON, in plain letters."""
    return json.dumps(value, ensure_ascii=False)


def with_key(line: str, key: str, value: str) -> str:
    """The text of a JSON object with a key added at its end; the value is given as JSON."""
    inside, _, rest = line.rpartition("}")
    inside = inside.rstrip()
    comma = "" if inside.endswith("{") else ", "  # no key before it
    return f'{inside}{comma}"{key}": {value}}}{rest}'


def with_member(line: str, key: str, value: str) -> str:
    """The text of a JSON object with another value of one key; the value is given as JSON."""
    decoder = json.JSONDecoder()
    blank = re.compile(r"[\s,:]*")
    place = line.index("{") + 1
    start = end = place
    while not line.startswith("}", place := _after(blank, line, place)):
        name, place = decoder.raw_decode(line, place)
        first = _after(blank, line, place)
        _, place = decoder.raw_decode(line, first)
        if name == key:  # of a key that occurs twice the last value counts
            start, end = first, place
    return line[:start] + value + line[end:]


def _after(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Where a match of a pattern that may be empty ends."""
    found = pattern.match(text, place)
    return place if found is None else found.end()


def _write_parquet(table: _Table, judged: Judged, output: Path) -> int:
    row = 0
    with pa.parquet.ParquetFile(table.path) as source:
        schema = source.schema_arrow
        if judged.mark:
            if COLUMN in schema.names:
                raise judged.has_column()
            schema = schema.append(pa.field(COLUMN, pa.float32()))
        with pa.parquet.ParquetWriter(output, schema) as target:
            for number in range(source.num_row_groups):
                group = source.read_row_group(number)
                rows = range(row, row + len(group))
                images, captions = (group[name].cast(pa.string()).to_pylist() for name in table.columns)
                for place, image, caption in zip(rows, images, captions, strict=True):
                    judged.check(place, image, caption)
                for name, old, new in (
                    (table.columns.image, images, judged.moved),
                    (table.columns.caption, captions, judged.corrected),
                ):
                    if not new.keys().isdisjoint(rows):
                        texts = [new.get(place, text) for place, text in zip(rows, old, strict=True)]
                        column = schema.get_field_index(name)
                        group = group.set_column(
                            column, schema.field(column), as_type(texts, schema.field(column).type)
                        )
                if judged.mark:
                    correspondence = pa.array([judged.correspondence.get(place) for place in rows], pa.float32())
                    group = group.append_column(schema.field(COLUMN), correspondence)
                else:
                    group = group.filter(pa.array([judged.keeps(place) for place in rows], pa.bool_()))
                target.write_table(group)
                row += len(rows)
    judged.check_count(row)
    return row


def _write_parquet_as_csv(table: _Table, judged: Judged, output: Path) -> int:
    parquet = output.with_name(f"{output.name}.parquet")
    parquet.unlink(missing_ok=True)  # an untrusted folder may contain a link of this name
    try:
        rows = _write_parquet(table, judged, parquet)
        pa.csv.write_csv(pa.parquet.read_table(parquet), output)
    finally:
        parquet.unlink(missing_ok=True)
    return rows


def as_type(names: list[str | None], kind: pa.DataType) -> pa.Array:
    """Texts as values of a column's type."""
    if pa.types.is_dictionary(kind):
        return pa.array(names, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(names, pa.string()).cast(kind)


def _open(path: Path, mode: str = "r", *, newline: str) -> Any:
    """Open as text that is written back unchanged, even where other columns hold bytes that are not UTF-8."""
    return path.open(mode, encoding="utf-8", errors="surrogateescape", newline=newline)
