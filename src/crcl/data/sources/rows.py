"""Tables of somebody's own, as rows of an image's name, a caption and perhaps a split: CSV, TSV, JSONL, Parquet."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from crcl.data.files import read_bytes, refuse, require, undecodable, values_of_any_length
from crcl.errors import InputError, did_you_mean

_BLOCK = 2**20  # bytes that pyarrow reads at once, unless told otherwise


class Columns(NamedTuple):
    """What a table calls the columns that are read."""

    image: str = "image"
    caption: str = "caption"


USUAL = Columns()


def read_rows(path: Path, columns: Columns) -> pa.Table:
    """The columns image, caption and (if there) split, so called, all as trimmed strings without nulls."""
    if columns.image == columns.caption or "split" in columns:
        raise InputError(f"image and caption are two columns, and 'split' is neither; got {columns}", where=path)
    require(path, purpose=f"a table with the columns {columns.image} and {columns.caption}")
    try:
        table = {".jsonl": _read_json, ".parquet": _read_parquet}.get(path.suffix.lower(), _read_csv)(path, columns)
        table.validate(full=True)  # undecodable text
    except InputError:
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        if path.suffix.lower() != ".parquet":
            refuse(undecodable(path, read_bytes(path).split(b"\n")))
        raise InputError(f"not a readable {path.suffix[1:]} table ({error})", where=path) from error
    ours = dict(zip(columns, USUAL, strict=True))
    return tidied(str(path), table.rename_columns([ours.get(name, name) for name in table.column_names]))


def tidied(name: str, table: pa.Table) -> pa.Table:
    """Rows as trimmed strings without nulls; refuses a table without rows, and rows without a split among others."""
    if not len(table):
        raise InputError("no rows, expected one image and caption in each", where=name)
    trimmed = pa.table(
        {column: pc.utf8_trim_whitespace(pc.fill_null(table[column], "")) for column in table.column_names}
    )
    refuse_unnamed_splits(name, trimmed)
    return trimmed


def refuse_unnamed_splits(name: str, table: pa.Table) -> None:
    """Where there is a column `split`, each row must be in one."""
    if "split" in table.column_names:
        unnamed = np.flatnonzero(table["split"].to_numpy() == "")
        hint = "name one in each row or leave the column out"
        refuse([InputError("empty split", where=place(name, row), hint=hint) for row in unnamed])


def place(name: str, row: int | np.integer) -> str:
    """A row of the table, counted from 1 without the header, for a message."""
    return f"{name}:row {row + 1}"


def used_columns(name: str, columns: Columns, there: list[str]) -> list[str]:
    """Those of the columns that are read; refuses a table that lacks one."""
    twice = [column for column in (*columns, "split") if there.count(column) > 1]
    hint = "name or leave out the other"
    refuse([InputError(f"two columns '{column}', and one is read", where=name, hint=hint) for column in twice])
    parameters = {columns.image: "{image_column}", columns.caption: "{caption_column}"}
    refuse(
        [
            InputError(
                f"no column '{column}'{did_you_mean(column, there)}; columns: {', '.join(there)}",
                where=name,
                hint=f"another name is given by {parameters[column]}",
            )
            for column in columns
            if column not in there
        ]
    )
    return [column for column in (*columns, "split") if column in there]


def _read_csv(path: Path, columns: Columns) -> pa.Table:
    parse = pyarrow.csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True)
    _refuse_other_separator(path, parse.delimiter)
    table = _in_blocks(path, lambda size: _read_csv_in(path, columns, parse, size))
    last = table.slice(max(len(table) - 1, 0)).to_pylist()
    if any("\n" in (value or "") for row in last for value in row.values()):
        _refuse_open_quote(path, parse.delimiter)
    return table


def _refuse_other_separator(path: Path, expected: str) -> None:
    """By the header: with another separator each row has as many columns as it has commas."""
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        header = stream.readline(1 << 16).rstrip("\n")
    other = next((mark for mark in ";\t,|" if mark in header), None)
    if expected not in header and other:
        seen = "tabs" if other == "\t" else other
        raise InputError(
            f"one column, '{header[:80]}'; the columns seem to be separated by {seen}. A .csv has commas between "
            "them, a .tsv has tabs",
            where=path,
            hint="save it so, or name it so",
        )


def _read_csv_in(path: Path, columns: Columns, parse: pyarrow.csv.ParseOptions, block_size: int) -> pa.Table:
    read = pyarrow.csv.ReadOptions(block_size=block_size)
    with pyarrow.csv.open_csv(path, read_options=read, parse_options=parse) as reader:
        used = used_columns(str(path), columns, reader.schema.names)
    convert = pyarrow.csv.ConvertOptions(include_columns=used, column_types={name: pa.string() for name in used})
    return pyarrow.csv.read_csv(path, read_options=read, parse_options=parse, convert_options=convert)


def _in_blocks(path: Path, read: Callable[[int], pa.Table]) -> pa.Table:
    """What `read` gives, with larger blocks where a row does not fit into the usual ones."""
    largest = min(path.stat().st_size + 1, 2**31 - 1)
    size = _BLOCK
    while True:
        try:
            return read(size)
        except pa.ArrowInvalid as error:
            if size >= largest or "straddl" not in str(error):
                raise
            size = min(16 * size, largest)


def _refuse_open_quote(path: Path, delimiter: str) -> None:
    """A quotation mark that is never closed makes one cell of the rest of the file, which pyarrow takes as it is."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        reader, begin = csv.reader(stream, delimiter=delimiter, strict=True), 1
        try:
            with values_of_any_length():
                for _ in reader:
                    begin = reader.line_num + 1
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise InputError(
                    "a quotation mark that begins here is never closed",
                    where=f"{path}:{begin}",
                    hint="close it, or double it",
                ) from error


def _read_json(path: Path, columns: Columns) -> pa.Table:
    try:
        table = _read_json_as(path, columns, image=pa.string())
    except pa.ArrowInvalid as error:
        try:
            table = _read_json_as(path, columns, image=pa.int64())  # ids such as COCO's are numbers
        except pa.ArrowInvalid:
            raise error from None
    if not len(table):
        return table
    with path.open("rb") as stream:
        try:
            first = json.loads(next(line for line in stream if line.strip()))
        except RecursionError as error:
            raise InputError(
                "its first object is nested too deeply to be read", where=path, hint="leave that key out"
            ) from error
    absent = [name for name in table.column_names if table[name].null_count == len(table)]
    there = [name for name in dict.fromkeys([*first, *table.column_names]) if name not in absent]
    used = used_columns(str(path), columns, there)
    return pa.table({name: table[name].cast(pa.string()) for name in used})


def _read_json_as(path: Path, columns: Columns, *, image: pa.DataType) -> pa.Table:
    schema = pa.schema([(columns.image, image), (columns.caption, pa.string()), ("split", pa.string())])
    parse = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return _in_blocks(
        path,
        lambda size: pyarrow.json.read_json(
            path, read_options=pyarrow.json.ReadOptions(block_size=size), parse_options=parse
        ),
    )


def _read_parquet(path: Path, columns: Columns) -> pa.Table:
    used = used_columns(str(path), columns, pyarrow.parquet.read_schema(path).names)
    table = pyarrow.parquet.read_table(path, columns=used)
    return pa.table({name: table[name].cast(pa.string()) for name in used})
