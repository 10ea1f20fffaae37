"""Writing a table again whose cells hold lists of captions: suspects are removed from their list.

A record that has no caption left is not written. `mark` adds a list of correspondences in step with the captions.
Everything else is as in `cleaning.tables`.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from crcl.data.cleaning.judged import COLUMN, Judged, written
from crcl.data.cleaning.tables import as_json, with_key, with_member
from crcl.data.rows.tables import Columns
from crcl.errors import InputError


class Listed(NamedTuple):
    """A table with lists of captions."""

    path: Path
    columns: Columns
    lengths: np.ndarray
    """(records,) how many rows each record has; one without captions has one."""


class _Record(NamedTuple):
    """What becomes of a record: None for the captions or the image, if they stay."""

    captions: list[Any] | None
    image: str | None
    correspondence: list[float | None]


def clean_listed(table: Listed, judged: Judged, output: Path) -> int:
    """Write a JSONL or Parquet table again in its own format; returns the number of its rows."""
    write = _write_parquet if table.path.suffix == ".parquet" else _write_jsonl
    written(output, lambda temporary: write(table, judged, temporary))
    return int(table.lengths.sum())


def _judge(judged: Judged, first: int, image: Any, cell: Any) -> _Record | None:
    """What becomes of a record whose rows begin at `first`; None if it is not written."""
    captions: Sequence[Any] = cell if isinstance(cell, list) else [cell]
    rows = range(first, first + max(len(captions), 1))
    for row, caption in zip(rows, captions, strict=False):
        judged.check(row, image, caption)
    values = [judged.correspondence.get(row) for row in rows[: len(captions)]]
    correspondence = [None if value is None else float(str(value)) for value in values]
    moved = {judged.moved[row] for row in rows if row in judged.moved}
    kept = [row for row in rows if judged.keeps(row)]
    if moved and (len(moved) > 1 or any(row not in judged.moved for row in kept)):
        raise InputError(
            f"the captions of '{image}' share a cell, and would not all move to the same image",
            where=judged.data,
            hint="leave {relink} out, or write each caption to a row of its own",
        )
    if not kept:
        return None
    same = len(kept) == len(rows) and judged.corrected.keys().isdisjoint(rows)
    chosen = None if same else [judged.corrected.get(row, captions[row - first]) for row in kept]
    return _Record(chosen, moved.pop() if moved else None, correspondence)


def _starts(table: Listed, judged: Judged) -> Iterator[int]:
    """The first row of each record."""
    yield from np.cumsum([0, *table.lengths[:-1]]).tolist()
    raise judged.changed("it has more records than before")


def _write_jsonl(table: Listed, judged: Judged, output: Path) -> int:
    starts = _starts(table, judged)
    read: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}
    with table.path.open(newline="\n", **read) as source, output.open("w", newline="", **read) as target:
        for line in source:
            if not line.strip("\ufeff \t\r\n"):
                target.write(line)
                continue
            found = dict(json.loads(line.removeprefix("\ufeff")))
            if judged.mark and COLUMN in found:
                raise judged.has_column()
            record = _judge(judged, next(starts), *(found.get(name) for name in table.columns))
            if record is None:
                continue
            if record.captions is not None:
                line = with_member(line, table.columns.caption, as_json(_as_cell(record.captions, found, table)))
            if record.image is not None:
                line = with_member(line, table.columns.image, as_json(record.image))
            target.write(with_key(line, COLUMN, json.dumps(record.correspondence)) if judged.mark else line)
    return len(table.lengths)


def _as_cell(captions: list[Any], record: dict[str, Any], table: Listed) -> Any:
    """Captions as the cell of a record holds them: a list, or the only caption alone."""
    return captions if isinstance(record.get(table.columns.caption), list) else captions[0]


def _write_parquet(table: Listed, judged: Judged, output: Path) -> int:
    starts = _starts(table, judged)
    with pa.parquet.ParquetFile(table.path) as source:
        schema = source.schema_arrow
        if judged.mark:
            if COLUMN in schema.names:
                raise judged.has_column()
            schema = schema.append(pa.field(COLUMN, pa.list_(pa.float32())))
        with pa.parquet.ParquetWriter(output, schema) as target:
            for number in range(source.num_row_groups):
                group = source.read_row_group(number)
                cells = (group[name].to_pylist() for name in table.columns)
                records = [_judge(judged, next(starts), *cell) for cell in zip(*cells, strict=True)]
                target.write_table(_changed(group, schema, table.columns, records, mark=judged.mark))
    return len(table.lengths)


def _changed(
    group: pa.Table, schema: pa.Schema, columns: Columns, records: list[_Record | None], *, mark: bool
) -> pa.Table:
    """A row group with the captions and images that it is to have, without the records that are left out."""
    for name, values in (
        (columns.caption, [record and record.captions for record in records]),
        (columns.image, [record and record.image for record in records]),
    ):
        if any(value is not None for value in values):
            place = schema.get_field_index(name)
            old = group[name].to_pylist()
            new = [before if value is None else value for before, value in zip(old, values, strict=True)]
            group = group.set_column(place, schema.field(place), pa.array(new, schema.field(place).type))
    if mark:
        values = [record and record.correspondence for record in records]
        group = group.append_column(schema.field(COLUMN), pa.array(values, schema.field(COLUMN).type))
    return group.filter(pa.array([record is not None for record in records], pa.bool_()))
