"""Writing a table again without the suspects, or with a column of correspondences; all else stays byte by byte.

CSV, TSV   records as they are in the file, quotes and line ends too; the correspondence is added as the last value
JSONL      lines as they are; the correspondence is added as the last key
Parquet    the same schema, row group by row group; the correspondence is added as the last column

A row that is moved to another image gets another value in the column of images, and stays as it is otherwise.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from crcl.auditing.findings import THRESHOLD
from crcl.data.files import values_of_any_length
from crcl.data.sources import table as tables
from crcl.data.sources.rows import USUAL, Columns
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.storage import replacing

COLUMN = "correspondence"


@dataclass(frozen=True)
class Cleaned:
    """How many rows were removed, how many were kept, and how many of the kept ones were not judged or were moved."""

    removed: int
    kept: int
    unjudged: int
    moved: int = 0
    """Rows that now name another image."""
    threshold: float = field(default=THRESHOLD, compare=False)
    """Pairs with a lower correspondence were suspects."""


@dataclass(frozen=True)
class _Job:
    """A table to write again, with the correspondences of its judged rows."""

    table: Path
    expected: dict[int, tuple[str, str]]
    """Image and caption of the judged rows: the file is split into rows once more, which must come out the same."""
    correspondence: dict[int, np.float32]
    suspects: set[int]
    """Rows to leave out, unless all are marked instead."""
    moved: dict[int, str]
    """The new image of the rows that are moved."""
    mark: bool
    columns: Columns

    def keeps(self, row: int) -> bool:
        return self.mark or row not in self.suspects

    def check(self, row: int, image: Any, caption: Any) -> None:
        """Refuse a row that is not the pair that was judged."""
        if row in self.expected and self.expected[row] != (str(image).strip(), str(caption).strip()):
            raise _changed(self.table, f"row {row + 1} is not the pair that was judged")

    def check_count(self, rows: int) -> None:
        """Refuse a table that has lost judged rows."""
        if self.expected and max(self.expected) >= rows:
            raise _changed(self.table, f"it has {rows} rows, but row {max(self.expected) + 1} was judged")


def refuse_output(table: Path, output: Path, *, overwrite: bool) -> None:
    """Refuse, before anything is read, an output file that the table cannot be written to."""
    if not tables.recognises(table):
        raise InputError(
            f"not a table ({' '.join(tables.SUFFIXES)}), so it cannot be cleaned",
            where=table,
            hint="{audit()} writes a table whose column 'row' says which captions to leave out",
        )
    if output.suffix.lower() != table.suffix.lower():
        raise InputError(
            f"{table} is cleaned in its own format",
            where=output,
            hint=f"name a file that ends in {table.suffix}",
        )
    if not output.exists():
        return
    if table.exists() and output.samefile(table):
        raise InputError("that is the data itself", where=output, hint="name another file to write")
    if not overwrite:
        raise InputError("exists already", where=output, hint="pass {overwrite} to replace it, or name another file")
    if not output.is_file():
        raise InputError("not a file, so it is not overwritten", where=output, hint="name another one")


def clean(
    table: str | Path,
    output: str | Path,
    pairs: Split,
    correspondence: np.ndarray,
    *,
    threshold: float = THRESHOLD,
    moved: np.ndarray | None = None,
    mark: bool = False,
    overwrite: bool = False,
    columns: Columns = USUAL,
) -> Cleaned:
    """Write a copy of the table that the pairs were read from, without the suspects or with all correspondences.

    Rows that are not among the pairs (held out, skipped) are not judged, and stay. The table itself is never touched.

    Args:
        table: The table.
        output: The file to write, in the same format.
        pairs: The judged pairs, read from the table.
        correspondence: (N,) of the pairs.
        threshold: Remove pairs with a lower correspondence.
        moved: (N,) the image that each caption is moved to, or -1; pairs that are moved are not removed.
        mark: Keep all rows, and add a column `correspondence` instead.
        overwrite: Replace an existing file.
        columns: The names of the table's columns.
    """
    table, output = Path(table), Path(output)
    refuse_output(table, output, overwrite=overwrite)
    if not 0 <= threshold <= 1:
        raise InputError(f"the threshold must be between 0 and 1, got {threshold}")
    if len(correspondence) != len(pairs):
        raise InputError(f"{len(pairs)} pairs, but correspondences of {len(correspondence)}", where=table)
    if pairs.truth is not None:
        raise InputError(
            "some of its pairs were mismatched on purpose before training (noise), so the correspondences do not "
            "describe the pairs in the table",
            where=table,
            hint="train without noise to clean it",
        )
    rows = pairs.rows.tolist()
    names = (str(pairs.image_ids[image]) for image in pairs.image_index)
    expected = ((name.strip(), caption.strip()) for name, caption in zip(names, pairs.captions, strict=True))
    images = np.full(len(rows), -1) if moved is None else moved
    suspects = (correspondence < threshold) & (images < 0)
    job = _Job(
        table,
        dict(zip(rows, expected, strict=True)),
        dict(zip(rows, correspondence, strict=True)),
        {rows[place] for place in np.flatnonzero(suspects)},
        {rows[place]: str(pairs.image_ids[images[place]]) for place in np.flatnonzero(images >= 0)},
        mark,
        columns,
    )
    write = {".jsonl": _write_jsonl, ".parquet": _write_parquet}.get(table.suffix.lower(), _write_csv)
    total = _written(output, lambda temporary: write(job, temporary))
    removed = 0 if mark else len(job.suspects)
    return Cleaned(removed, total - removed, total - len(rows), len(job.moved), threshold)


def _written(path: Path, write: Callable[[Path], int]) -> int:
    """Write a file under a temporary name and rename it; returns what `write` returns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            return write(temporary)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot be written ({getattr(error, 'strerror', None) or error})", where=path) from error


def _write_csv(job: _Job, output: Path) -> int:
    delimiter = "\t" if job.table.suffix.lower() == ".tsv" else ","
    header: list[str] = []
    image = caption = row = 0
    with _open(job.table, newline="") as source, _open(output, "w", newline="") as target:
        for record, values in _records(job.table, source, delimiter):
            if not values:  # a blank line is no row
                target.write(record)
            elif not header:
                header = [values[0].removeprefix("\ufeff"), *values[1:]]
                image, caption = _columns(job, header)
                target.write(_extended(record, f"{delimiter}{COLUMN}") if job.mark else record)
            else:
                if len(values) != len(header):
                    raise _changed(job.table, f"row {row + 1} has {len(values)} values, the header {len(header)}")
                job.check(row, values[image], values[caption])
                if row in job.moved:
                    record = _with_value(record, image, job.moved[row], delimiter)
                if job.keeps(row):
                    value = job.correspondence.get(row)
                    more = f"{delimiter}{'' if value is None else str(value)}"
                    target.write(_extended(record, more) if job.mark else record)
                row += 1
    job.check_count(row)
    return row


def _records(path: Path, source: TextIO, delimiter: str) -> Iterator[tuple[str, list[str]]]:
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
            raise _changed(path, str(error)) from error


def _columns(job: _Job, header: list[str]) -> tuple[int, int]:
    """Places of image and caption in the header."""
    if job.mark and COLUMN in header:
        raise _has_column(job.table)
    if not set(job.columns) <= set(header):
        raise _changed(job.table, "the first record is not the header")
    return header.index(job.columns.image), header.index(job.columns.caption)


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


def _write_jsonl(job: _Job, output: Path) -> int:
    row = 0
    with _open(job.table, newline="\n") as source, _open(output, "w", newline="") as target:
        for line in source:
            if not line.strip("\ufeff \t\r\n"):
                target.write(line)
                continue
            try:
                found = dict(json.loads(line.removeprefix("\ufeff")))
            except (ValueError, TypeError, RecursionError) as error:
                raise _changed(job.table, f"row {row + 1} is not one object on a line of its own") from error
            job.check(row, *(found.get(name) for name in job.columns))
            if job.mark and COLUMN in found:
                raise _has_column(job.table)
            if row in job.moved:
                line = _with_member(line, job.columns.image, job.moved[row])
            if job.keeps(row):
                target.write(_with_key(line, job.correspondence.get(row)) if job.mark else line)
            row += 1
    job.check_count(row)
    return row


def _with_key(line: str, value: np.float32 | None) -> str:
    """The line of a JSON object with the correspondence added as its last key."""
    inside, _, rest = line.rpartition("}")
    inside = inside.rstrip()
    comma = "" if inside.endswith("{") else ", "  # no key before it
    return f'{inside}{comma}"{COLUMN}": {"null" if value is None else str(value)}}}{rest}'


def _with_member(line: str, key: str, value: str) -> str:
    """The line of a JSON object with another value of one key, which stays a number where it was one."""
    decoder = json.JSONDecoder()
    blank = re.compile(r"[\s,:]*")
    place = line.index("{") + 1
    start = end = place
    is_text = True
    while not line.startswith("}", place := _after(blank, line, place)):
        name, place = decoder.raw_decode(line, place)
        first = _after(blank, line, place)
        old, place = decoder.raw_decode(line, first)
        if name == key:  # of a key that occurs twice the last value counts
            start, end, is_text = first, place, isinstance(old, str)
    return line[:start] + (json.dumps(value, ensure_ascii=False) if is_text else value) + line[end:]


def _after(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Where a match of a pattern that may be empty ends."""
    found = pattern.match(text, place)
    return place if found is None else found.end()


def _write_parquet(job: _Job, output: Path) -> int:
    row = 0
    with pa.parquet.ParquetFile(job.table) as source:
        schema = source.schema_arrow
        if job.mark:
            if COLUMN in schema.names:
                raise _has_column(job.table)
            schema = schema.append(pa.field(COLUMN, pa.float32()))
        with pa.parquet.ParquetWriter(output, schema) as target:
            for number in range(source.num_row_groups):
                group = source.read_row_group(number)
                rows = range(row, row + len(group))
                images, captions = (group[name].cast(pa.string()).to_pylist() for name in job.columns)
                for place, image, caption in zip(rows, images, captions, strict=True):
                    job.check(place, image, caption)
                if not job.moved.keys().isdisjoint(rows):
                    names = [job.moved.get(place, image) for place, image in zip(rows, images, strict=True)]
                    column = schema.get_field_index(job.columns.image)
                    group = group.set_column(column, schema.field(column), _as_type(names, schema.field(column).type))
                if job.mark:
                    correspondence = pa.array([job.correspondence.get(place) for place in rows], pa.float32())
                    group = group.append_column(schema.field(COLUMN), correspondence)
                else:
                    group = group.filter(pa.array([job.keeps(place) for place in rows], pa.bool_()))
                target.write_table(group)
                row += len(rows)
    job.check_count(row)
    return row


def _as_type(names: list[str | None], kind: pa.DataType) -> pa.Array:
    """Image names as values of a column's type."""
    if pa.types.is_dictionary(kind):
        return pa.array(names, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(names, pa.string()).cast(kind)


def _open(path: Path, mode: str = "r", *, newline: str) -> Any:
    """Open as text that is written back unchanged, even where other columns hold bytes that are not UTF-8."""
    return path.open(mode, encoding="utf-8", errors="surrogateescape", newline=newline)


def _has_column(table: Path) -> InputError:
    return InputError(f"has a column '{COLUMN}' already", where=table, hint="rename it, or leave {mark} out")


def _changed(table: Path, why: str) -> InputError:
    return InputError(
        f"cannot be cleaned row by row ({why})", where=table, hint="audit it again if it was changed since"
    )
