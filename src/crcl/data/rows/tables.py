"""Parsing of tables (CSV, TSV, JSONL, Parquet) into rows of image name, caption and optionally split."""

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
from crcl.errors import InputError, did_you_mean, nth_row

_BLOCK = 2**20  # bytes per block, pyarrow's default


class Columns(NamedTuple):
    """Names of the columns to read."""

    image: str = "image"
    caption: str = "caption"


USUAL = Columns()
CAPTIONS = (
    *("caption", "text", "captions", "sentences", "sentence"),
    *("prompt", "raw", "title", "description", "alt_text"),
)
"""Usual names of columns of captions, in order of preference, for layouts that look for them."""


def read_rows(path: Path, columns: Columns, *, delimiter: str | None = None) -> pa.Table:
    """The columns image, caption and optionally split under these names, as trimmed strings without nulls.

    Args:
        path: The table.
        columns: The names of its columns.
        delimiter: What separates the columns of a `.csv` or `.tsv` file, if it is not what the ending says.
    """
    if columns.image == columns.caption or "split" in columns:
        raise InputError(f"image and caption must be two columns other than 'split'; got {columns}", where=path)
    require(path, purpose=f"a table with the columns {columns.image} and {columns.caption}")
    try:
        known = {".jsonl": _read_json, ".parquet": _read_parquet}.get(path.suffix.lower())
        table = _read_csv(path, columns, delimiter_of(path, delimiter)) if known is None else known(path, columns)
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
    """Rows as trimmed strings without nulls; raises an error for a table without rows or rows without a split."""
    if not len(table):
        raise InputError("has no rows", where=name)
    trimmed = pa.table(
        {column: pc.utf8_trim_whitespace(pc.fill_null(table[column], "")) for column in table.column_names}
    )
    refuse_unnamed_splits(name, trimmed)
    return trimmed


def refuse_unnamed_splits(name: str, table: pa.Table) -> None:
    """Raise an error for rows with an empty `split`, if the table has that column."""
    if "split" in table.column_names:
        unnamed = np.flatnonzero(table["split"].to_numpy() == "")
        hint = "fill in the split of each row, or remove the column"
        refuse([InputError("empty split", where=place(name, row), hint=hint) for row in unnamed])


def place(name: str, row: int | np.integer) -> str:
    """The name of a row in messages, counted from 1 without the header."""
    return f"{name}:{nth_row(int(row))}"


def used_columns(name: str, columns: Columns, there: list[str]) -> list[str]:
    """The columns to read; raises an error if one is missing or occurs twice."""
    twice = [column for column in (*columns, "split") if there.count(column) > 1]
    hint = "rename or remove one of them"
    refuse([InputError(f"two columns '{column}'", where=name, hint=hint) for column in twice])
    parameters = {columns.image: "{image_column}", columns.caption: "{caption_column}"}
    refuse(
        [
            InputError(
                f"no column '{column}'{did_you_mean(column, there)}; columns: {', '.join(there)}",
                where=name,
                hint=f"pass {parameters[column]} if the table uses another name",
            )
            for column in columns
            if column not in there
        ]
    )
    return [column for column in (*columns, "split") if column in there]


def delimiter_of(path: Path, given: str | None = None) -> str:
    """What separates the columns of a table: as given, or a tab in a `.tsv` file, or else a comma."""
    return given or ("\t" if path.suffix.lower() == ".tsv" else ",")


def _read_csv(path: Path, columns: Columns, delimiter: str) -> pa.Table:
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    _refuse_other_separator(path, parse.delimiter)
    table = _in_blocks(path, lambda size: _read_csv_in(path, columns, parse, size))
    last = table.slice(max(len(table) - 1, 0)).to_pylist()
    if any("\n" in (value or "") for row in last for value in row.values()):
        _refuse_open_quote(path, parse.delimiter)
    return table


def _refuse_other_separator(path: Path, expected: str) -> None:
    """Raise an error if the header has another separator: commas in captions would then split the rows."""
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        header = stream.readline(1 << 16).rstrip("\n")
    other = next((mark for mark in ";\t,|" if mark in header), None)
    if expected not in header and other:
        seen = "tabs" if other == "\t" else other
        raise InputError(
            f"one column, '{header[:80]}'; the columns seem to be separated by {seen}",
            where=path,
            hint="use commas in a .csv file and tabs in a .tsv file, or rename the file",
        )


def _read_csv_in(path: Path, columns: Columns, parse: pyarrow.csv.ParseOptions, block_size: int) -> pa.Table:
    read = pyarrow.csv.ReadOptions(block_size=block_size)
    with pyarrow.csv.open_csv(path, read_options=read, parse_options=parse) as reader:
        used = used_columns(str(path), columns, reader.schema.names)
    convert = pyarrow.csv.ConvertOptions(include_columns=used, column_types={name: pa.string() for name in used})
    return pyarrow.csv.read_csv(path, read_options=read, parse_options=parse, convert_options=convert)


def _in_blocks(path: Path, read: Callable[[int], pa.Table]) -> pa.Table:
    """Call `read` with a block size, and again with larger blocks if a row does not fit into one."""
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
    """Raise an error for a quotation mark that is never closed; pyarrow reads the rest of the file as one cell."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        reader, begin = csv.reader(stream, delimiter=delimiter, strict=True), 1
        try:
            with values_of_any_length():
                for _ in reader:
                    begin = reader.line_num + 1
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise InputError(
                    "a quotation mark that opens here is never closed",
                    where=f"{path}:{begin}",
                    hint="close it, or double it",
                ) from error


def _read_json(path: Path, columns: Columns) -> pa.Table:
    _refuse_null_lines(path, columns)
    try:
        table = _read_json_as(path, columns, image=pa.string())
    except pa.ArrowInvalid as error:
        try:
            table = _read_json_as(path, columns, image=pa.int64())  # some ids are numbers, as in COCO
        except pa.ArrowInvalid:
            raise error from None
    if not len(table):
        return table
    with path.open("rb") as stream:
        try:
            first = json.loads(next(line for line in stream if line.strip()))
        except RecursionError as error:
            raise InputError(
                "the first object is nested too deeply", where=path, hint="remove the nested key"
            ) from error
    absent = [name for name in table.column_names if table[name].null_count == len(table)]
    there = [name for name in dict.fromkeys([*first, *table.column_names]) if name not in absent]
    used = used_columns(str(path), columns, there)
    return pa.table({name: table[name].cast(pa.string()) for name in used})


def _refuse_null_lines(path: Path, columns: Columns) -> None:
    """Raise an error for lines that are `null`: pyarrow crashes where a block of the file begins with one."""
    with path.open("rb") as stream:
        found = [
            number
            for number, line in enumerate(stream, start=1)
            if line.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r").startswith(b"null")
        ]
    expected = f"expected an object with '{columns.image}' and '{columns.caption}'"
    refuse([InputError(f"null, {expected}", where=f"{path}:{number}", hint="remove the line") for number in found])


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
