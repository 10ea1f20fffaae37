"""The run's table again, without the suspects or with what is believed of each row; all else as it was, byte by byte.

CSV, TSV   records as they are in the file, quotes and line ends too; a belief is one more value at the end
JSONL      lines as they are; a belief is one more key
Parquet    the same schema, row group by row group; a belief is one more column
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
    """How many rows were removed, how many are kept, and how many of these were not judged."""

    removed: int
    kept: int
    unjudged: int
    threshold: float = field(default=THRESHOLD, compare=False)
    """Pairs with a lower correspondence were suspects."""


@dataclass(frozen=True)
class _Verdict:
    """What is known of the rows of a table, and what is done with them."""

    table: Path
    expected: dict[int, tuple[str, str]]
    """Image and caption of the judged rows: the file is cut into rows here once more, and must come out the same."""
    beliefs: dict[int, np.float32]
    suspects: set[int]
    mark: bool
    columns: Columns

    def keeps(self, row: int) -> bool:
        return self.mark or row not in self.suspects

    def check(self, row: int, image: Any, caption: Any) -> None:
        if row in self.expected and self.expected[row] != (str(image).strip(), str(caption).strip()):
            raise _unclear(self.table, f"row {row + 1} is not the pair that was judged")

    def check_count(self, rows: int) -> None:
        if self.expected and max(self.expected) >= rows:
            raise _unclear(self.table, f"{rows} rows, and {max(self.expected) + 1} or more were judged")


def refuse_output(table: Path, output: Path, *, overwrite: bool) -> None:
    """Stop, before anything is read, where the table cannot be written again to this file."""
    if not tables.recognises(table):
        raise InputError(
            f"not a table ({' '.join(tables.SUFFIXES)}), so it cannot be written again",
            where=table,
            hint="{audit()} gives a table whose column 'row' says which captions to leave out where you read them",
        )
    if output.suffix.lower() != table.suffix.lower():
        raise InputError(
            f"{table} is written again in its own format",
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
    """Write the table that the pairs were read from again: without the suspects, or marked with all beliefs.

    Rows that are not among the pairs (held out, skipped) are not judged, and stay. The table itself is never touched.
    """
    table, output = Path(table), Path(output)
    refuse_output(table, output, overwrite=overwrite)
    if not 0 <= threshold <= 1:
        raise InputError(f"the threshold must be between 0 and 1, got {threshold}")
    if len(correspondence) != len(pairs):
        raise InputError(f"{len(pairs)} pairs, but correspondences of {len(correspondence)}", where=table)
    if pairs.truth is not None:
        raise InputError(
            "some of its pairs were mismatched on purpose before training (noise), so correspondences are not about "
            "the table as it is",
            where=table,
            hint="train without noise to clean it",
        )
    rows = pairs.rows.tolist()
    names = (str(pairs.image_ids[image]) for image in pairs.image_index)
    expected = ((name.strip(), caption.strip()) for name, caption in zip(names, pairs.captions, strict=True))
    verdict = _Verdict(
        table,
        dict(zip(rows, expected, strict=True)),
        dict(zip(rows, correspondence, strict=True)),
        {row for row, suspect in zip(rows, correspondence < threshold, strict=True) if suspect},
        mark,
        columns,
    )
    write = {".jsonl": _write_jsonl, ".parquet": _write_parquet}.get(table.suffix.lower(), _write_csv)
    total = _written(output, lambda temporary: write(verdict, temporary))
    removed = 0 if mark else len(verdict.suspects)
    return Cleaned(removed, total - removed, total - len(rows), threshold)


def _written(path: Path, write: Callable[[Path], int]) -> int:
    """What `write` says of the file that it writes, which gets its name when it is whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            return write(temporary)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot be written ({getattr(error, 'strerror', None) or error})", where=path) from error


def _write_csv(verdict: _Verdict, output: Path) -> int:
    delimiter = "\t" if verdict.table.suffix.lower() == ".tsv" else ","
    header: list[str] = []
    image = caption = row = 0
    with _open(verdict.table, newline="") as source, _open(output, "w", newline="") as target:
        for record, values in _records(verdict.table, source, delimiter):
            if not values:  # a blank line is no row
                target.write(record)
            elif not header:
                header = [values[0].removeprefix("\ufeff"), *values[1:]]
                image, caption = _columns(verdict, header)
                target.write(_extended(record, f"{delimiter}{COLUMN}") if verdict.mark else record)
            else:
                if len(values) != len(header):
                    raise _unclear(verdict.table, f"row {row + 1} has {len(values)} values, the header {len(header)}")
                verdict.check(row, values[image], values[caption])
                if verdict.keeps(row):
                    belief = verdict.beliefs.get(row)
                    more = f"{delimiter}{'' if belief is None else str(belief)}"
                    target.write(_extended(record, more) if verdict.mark else record)
                row += 1
    verdict.check_count(row)
    return row


def _records(path: Path, source: TextIO, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Each record as it is in the file, and its values."""
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
            raise _unclear(path, str(error)) from error


def _columns(verdict: _Verdict, header: list[str]) -> tuple[int, int]:
    """Where image and caption are."""
    if verdict.mark and COLUMN in header:
        raise _has_column(verdict.table)
    if not set(verdict.columns) <= set(header):
        raise _unclear(verdict.table, "the first record is not the header")
    return header.index(verdict.columns.image), header.index(verdict.columns.caption)


def _extended(record: str, more: str) -> str:
    """A record with something before the end of its line."""
    whole = record.rstrip("\r\n")
    return f"{whole}{more}{record[len(whole) :]}"


def _write_jsonl(verdict: _Verdict, output: Path) -> int:
    row = 0
    with _open(verdict.table, newline="\n") as source, _open(output, "w", newline="") as target:
        for line in source:
            if not line.strip("\ufeff \t\r\n"):
                target.write(line)
                continue
            try:
                found = dict(json.loads(line.removeprefix("\ufeff")))
            except (ValueError, TypeError, RecursionError) as error:
                raise _unclear(verdict.table, f"row {row + 1} is not one object on a line of its own") from error
            verdict.check(row, *(found.get(name) for name in verdict.columns))
            if verdict.mark and COLUMN in found:
                raise _has_column(verdict.table)
            if verdict.keeps(row):
                target.write(_with_key(line, verdict.beliefs.get(row)) if verdict.mark else line)
            row += 1
    verdict.check_count(row)
    return row


def _with_key(line: str, belief: np.float32 | None) -> str:
    """An object's line with one more key at its end."""
    inside, _, rest = line.rpartition("}")
    inside = inside.rstrip()
    comma = "" if inside.endswith("{") else ", "  # no key before it
    return f'{inside}{comma}"{COLUMN}": {"null" if belief is None else str(belief)}}}{rest}'


def _write_parquet(verdict: _Verdict, output: Path) -> int:
    row = 0
    with pa.parquet.ParquetFile(verdict.table) as source:
        schema = source.schema_arrow
        if verdict.mark:
            if COLUMN in schema.names:
                raise _has_column(verdict.table)
            schema = schema.append(pa.field(COLUMN, pa.float32()))
        with pa.parquet.ParquetWriter(output, schema) as target:
            for number in range(source.num_row_groups):
                group = source.read_row_group(number)
                rows = range(row, row + len(group))
                images, captions = (group[name].cast(pa.string()).to_pylist() for name in verdict.columns)
                for place, image, caption in zip(rows, images, captions, strict=True):
                    verdict.check(place, image, caption)
                if verdict.mark:
                    beliefs = pa.array([verdict.beliefs.get(place) for place in rows], pa.float32())
                    group = group.append_column(schema.field(COLUMN), beliefs)
                else:
                    group = group.filter(pa.array([verdict.keeps(place) for place in rows], pa.bool_()))
                target.write_table(group)
                row += len(rows)
    verdict.check_count(row)
    return row


def _open(path: Path, mode: str = "r", *, newline: str) -> Any:
    """As text that comes out as it went in, whatever the bytes of columns that nobody reads."""
    return path.open(mode, encoding="utf-8", errors="surrogateescape", newline=newline)


def _has_column(table: Path) -> InputError:
    return InputError(f"has a column '{COLUMN}' already", where=table, hint="rename it, or leave {mark} out")


def _unclear(table: Path, why: str) -> InputError:
    return InputError(
        f"cannot be written again row by row ({why})", where=table, hint="was it changed since it was read?"
    )
