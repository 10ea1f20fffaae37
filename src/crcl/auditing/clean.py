"""Writing a table again without the suspects, or with a column of correspondences; all else stays byte by byte.

CSV, TSV   records as they are in the file, quotes and line ends too; the correspondence is added as the last value
JSONL      lines as they are; the correspondence is added as the last key
Parquet    the same schema, row group by row group; the correspondence is added as the last column
"""

import csv
import json
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
    """How many rows were removed, how many were kept, and how many of the kept ones were not judged."""

    removed: int
    kept: int
    unjudged: int
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
    job = _Job(
        table,
        dict(zip(rows, expected, strict=True)),
        dict(zip(rows, correspondence, strict=True)),
        {row for row, suspect in zip(rows, correspondence < threshold, strict=True) if suspect},
        mark,
        columns,
    )
    write = {".jsonl": _write_jsonl, ".parquet": _write_parquet}.get(table.suffix.lower(), _write_csv)
    total = _written(output, lambda temporary: write(job, temporary))
    removed = 0 if mark else len(job.suspects)
    return Cleaned(removed, total - removed, total - len(rows), threshold)


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
                if job.mark:
                    correspondence = pa.array([job.correspondence.get(place) for place in rows], pa.float32())
                    group = group.append_column(schema.field(COLUMN), correspondence)
                else:
                    group = group.filter(pa.array([job.keeps(place) for place in rows], pa.bool_()))
                target.write_table(group)
                row += len(rows)
    job.check_count(row)
    return row


def _open(path: Path, mode: str = "r", *, newline: str) -> Any:
    """Open as text that is written back unchanged, even where other columns hold bytes that are not UTF-8."""
    return path.open(mode, encoding="utf-8", errors="surrogateescape", newline=newline)


def _has_column(table: Path) -> InputError:
    return InputError(f"has a column '{COLUMN}' already", where=table, hint="rename it, or leave {mark} out")


def _changed(table: Path, why: str) -> InputError:
    return InputError(
        f"cannot be cleaned row by row ({why})", where=table, hint="audit it again if it was changed since"
    )
