"""Writing Parquet files with images in them again, without the suspects or with correspondences.

Row group by row group; all other columns, the bytes of the images, the order and the metadata stay. From a list of
captions only the suspects are removed, and the row when none is left. A caption that is moved takes along the image of
another row; one that is corrected takes the place of the old one.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from crcl.data.cleaning.judged import COLUMN, Judged, written, written_folder
from crcl.data.cleaning.tables import as_type
from crcl.data.pictures.columns import ParquetImages
from crcl.data.rows.cells import as_lists, entries, is_list, is_several, lengths, one_array, take_apart
from crcl.errors import InputError

_BATCH = 256  # rows that are read together
_TEXTS = (".md", ".txt")
_MOST_TEXT = 2**20  # bytes of a text file that is copied along
_CODECS = {"SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD"}


def clean_columns(images: ParquetImages, data: Path, judged: Judged, output: Path) -> int:
    """Write one file, or a folder of files under the same names; returns the number of pairs that the data has."""
    if not data.is_dir():
        return written(output, lambda temporary: _Writer(images, judged, output.parent).write_all([temporary]))

    def write(fresh: Path) -> int:
        targets = [fresh / name for name in images.files]
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
        count = _Writer(images, judged, fresh).write_all(targets)
        _copy_texts(data, fresh)
        return count

    return written_folder(output, write)


class _Writer:
    """Writes all files, and counts their pairs from the first on."""

    def __init__(self, images: ParquetImages, judged: Judged, scratch: Path) -> None:
        self.images, self.judged, self.cells = images, judged, images.cells
        self.scratch = scratch  # a folder for a temporary file
        self.names = images.names()
        self.row = 0  # of the data files
        self.pair = 0

    def write_all(self, targets: list[Path]) -> int:
        """Write every file to its target."""
        with TemporaryFile(dir=self.scratch) as spool:
            replaced = self._moved_cells(spool) if self.judged.moved else None
            for number, target in enumerate(targets):
                with _reading(self.images, number) as source:
                    self._write(source, self.images.folder / self.images.files[number], target, replaced)
        self.judged.check_count(self.pair)
        return self.pair

    def _write(
        self, source: pa.parquet.ParquetFile, path: Path, target: Path, replaced: "Callable[[str], Any] | None"
    ) -> None:
        schema = source.schema_arrow
        several = is_several(schema.field(self.cells.caption).type)
        if self.judged.moved and several:
            raise InputError(
                "its cells have several captions, which share one image, so none can be moved to another",
                where=self.judged.data,
                hint="leave {relink} out; the suspects are then removed",
            )
        if self.judged.mark:
            if COLUMN in schema.names:
                raise self.judged.has_column()
            schema = _marked(schema, several=several)
        with pa.parquet.ParquetWriter(target, schema, compression=_compression(source)) as writer:
            for group in range(source.num_row_groups):
                parts = [
                    self._cleaned(pa.Table.from_batches([batch]), schema, replaced)
                    for batch in _batches(source, path, row_groups=[group])
                ]
                table = pa.concat_tables(parts) if parts else schema.empty_table()
                if len(table):
                    writer.write_table(table, row_group_size=len(table))

    def _cleaned(self, table: pa.Table, schema: pa.Schema, replaced: "Callable[[str], Any] | None") -> pa.Table:
        """Some rows, without the suspects or with correspondences."""
        judged, place = self.judged, table.schema.get_field_index(self.cells.caption)
        column = one_array(table[self.cells.caption])
        rows, captions = take_apart(column)
        names = self.names.slice(self.row, len(table)).to_pylist()
        pairs = range(self.pair, self.pair + len(rows))
        for pair, row, caption in zip(pairs, rows, captions.to_pylist(), strict=True):
            judged.check(pair, names[row], caption)
        self.row += len(table)
        self.pair += len(rows)
        if replaced is not None:
            table = self._with_moved(table, pairs, replaced)
        if not judged.corrected.keys().isdisjoint(pairs):
            column = self._corrected(column, captions, pairs)
            table = table.set_column(place, schema.field(place), column)
        if judged.mark:
            values = pa.array([judged.correspondence.get(pair) for pair in pairs], pa.float32())
            field = schema.field(COLUMN)
            if is_several(column.type):
                lists = as_lists(column)
                _, real = entries(lengths(lists))
                values = _as_lists(field.type, lengths(lists), values.filter(pa.array(real)), lists)
            return table.append_column(field, values)
        keeps = np.array([judged.keeps(pair) for pair in pairs], dtype=bool)
        if keeps.all():
            return table
        if is_several(column.type):
            table = table.set_column(place, schema.field(place), self._without(column, rows, keeps))
        return table.filter(pa.array(np.bincount(rows[keeps], minlength=len(table)) > 0))

    def _corrected(self, column: pa.Array, captions: pa.Array, pairs: range) -> pa.Array:
        """The column of captions with new ones."""
        kind = column.type
        plain = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
        if not (pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_dictionary(plain)):
            raise InputError(
                f"the cells of column '{self.cells.caption}' are {kind}, in which no caption can be replaced",
                where=self.judged.data,
                hint="leave {verdicts} out, or write captions as plain text",
            )
        texts = [self.judged.corrected.get(pair, text) for pair, text in zip(pairs, captions.to_pylist(), strict=True)]
        if plain == kind:
            return as_type(texts, kind)
        counts = lengths(column)
        _, real = entries(counts)
        values = [text for text, there in zip(texts, real.tolist(), strict=True) if there]
        return _as_lists(kind, counts, as_type(values, plain), column)

    def _without(self, column: pa.Array, rows: np.ndarray, keeps: np.ndarray) -> pa.Array:
        """Lists of captions without the suspects."""
        counts = lengths(as_lists(column))
        _, real = entries(counts)
        fields = [pc.struct_field(column, field.name) for field in column.type] if _is_struct(column) else [column]
        if not all(_is_list(field) and (lengths(field) == counts).all() for field in fields):
            raise InputError(
                f"column '{self.cells.caption}' has lists of fixed length, or of different lengths in one cell, from "
                "which no caption can be removed",
                where=self.judged.data,
                hint="pass {mark} to add correspondences instead",
            )
        left = np.bincount(rows[keeps & real], minlength=len(column))
        lists = [_as_lists(field.type, left, field.flatten().filter(pa.array(keeps[real])), field) for field in fields]
        if not _is_struct(column):
            return lists[0]
        return pa.StructArray.from_arrays(lists, fields=list(column.type), mask=column.is_null())

    def _with_moved(self, table: pa.Table, pairs: range, replaced: "Callable[[str], Any]") -> pa.Table:
        """Rows whose captions are moved, with the image of another row."""
        moved = [(row, self.judged.moved[pair]) for row, pair in enumerate(pairs) if pair in self.judged.moved]
        if not moved:
            return table
        place = table.schema.get_field_index(self.cells.image)
        field = table.schema.field(place)
        cells = pa.array([replaced(name) for _, name in moved], field.type)
        order = np.arange(len(table))
        order[[row for row, _ in moved]] = len(table) + np.arange(len(moved))
        column = pa.concat_arrays([one_array(table[self.cells.image]), cells]).take(pa.array(order))
        return table.set_column(place, field, column)

    def _moved_cells(self, spool: IO[bytes]) -> Callable[[str], Any]:
        """A function that returns the cell of an image by name; bytes are kept in a file, since they may be many."""
        wanted = set(self.judged.moved.values())
        kept: dict[str, tuple[Any, int, int]] = {}
        row = 0
        for number in range(len(self.images.files)):
            with _reading(self.images, number) as source:
                for batch in _batches(source, self.images.folder / self.images.files[number], [self.cells.image]):
                    column = batch[self.cells.image]
                    for at, name in enumerate(self.names.slice(row, len(batch)).to_pylist()):
                        if name in wanted and name not in kept:
                            cell = column[at].as_py()
                            content = (cell["bytes"] if self.cells.is_struct else cell) or b""
                            rest = {**cell, "bytes": None} if self.cells.is_struct else None
                            kept[name] = rest, spool.tell(), len(content)
                            spool.write(content)
                    row += len(batch)
        if wanted - kept.keys():
            raise self.judged.changed(f"the image '{min(wanted - kept.keys())}' is no longer there")

        def cell_of(name: str) -> Any:
            rest, begin, size = kept[name]
            spool.seek(begin)
            content = spool.read(size)
            return {**rest, "bytes": content} if self.cells.is_struct else content

        return cell_of


@contextmanager
def _reading(images: ParquetImages, number: int) -> Iterator[pa.parquet.ParquetFile]:
    """One of the files; errors of writing are not taken for its own."""
    with images.opened(number):
        pass
    with pa.parquet.ParquetFile(images.folder / images.files[number], pre_buffer=False) as file:
        yield file


def _batches(
    source: pa.parquet.ParquetFile,
    path: Path,
    columns: list[str] | None = None,
    *,
    row_groups: list[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of a file, some at a time; an error names the file, and not the one that is written."""
    try:
        yield from source.iter_batches(_BATCH, columns=columns, row_groups=row_groups)
    except (pa.ArrowException, OSError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"not a readable parquet file ({why})", where=path, hint="get it again") from error


def _is_struct(column: pa.Array) -> bool:
    return bool(pa.types.is_struct(column.type))


def _is_list(column: pa.Array) -> bool:
    """Whether values are lists that may differ in length."""
    return is_list(column.type) and not pa.types.is_fixed_size_list(column.type)


def _as_lists(kind: pa.DataType, counts: np.ndarray, values: pa.Array, like: pa.Array) -> pa.Array:
    """Lists of these lengths; null where others are."""
    maker, size = (pa.LargeListArray, np.int64) if pa.types.is_large_list(kind) else (pa.ListArray, np.int32)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(size))
    return maker.from_arrays(offsets, values, type=kind, mask=like.is_null() if like.null_count else None)


def _marked(schema: pa.Schema, *, several: bool) -> pa.Schema:
    """A schema with the column of correspondences, which `datasets` also wants among its features."""
    extended = schema.append(pa.field(COLUMN, pa.list_(pa.float32()) if several else pa.float32()))
    metadata = dict(schema.metadata or {})
    try:
        about = json.loads(metadata[b"huggingface"])
        features = about["info"]["features"]
        value: dict[str, Any] = {"dtype": "float32", "_type": "Value"}
        lists = "List" if b'"List"' in metadata[b"huggingface"] else "Sequence"
        features[COLUMN] = {"feature": value, "_type": lists} if several else value
    except (ValueError, KeyError, TypeError, RecursionError):
        return extended
    return extended.with_metadata({**metadata, b"huggingface": json.dumps(about).encode()})


def _compression(source: pa.parquet.ParquetFile) -> dict[str, str]:
    """The compression of each column."""
    if not source.num_row_groups:
        return {}
    group = source.metadata.row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    return {about.path_in_schema: about.compression if about.compression in _CODECS else "NONE" for about in columns}


def _copy_texts(data: Path, output: Path) -> None:
    """Copy small text files along; a card for the hub loses its counts and columns, which are no longer so."""
    for file in sorted(data.iterdir()):
        named = file.suffix.lower() in _TEXTS or file.name.upper().startswith("LICENSE")
        if not named or file.is_symlink() or not file.is_file() or file.stat().st_size > _MOST_TEXT:
            continue
        if file.name == "README.md":
            text = file.read_bytes().decode("utf-8", "surrogateescape")
            (output / file.name).write_bytes(_without_info(text).encode("utf-8", "surrogateescape"))
        else:
            shutil.copyfile(file, output / file.name)


def _without_info(text: str) -> str:
    """A card for the hub without the key `dataset_info` at its head."""
    head = re.match(r"---\r?\n.*?^---[ \t]*$", text, re.DOTALL | re.MULTILINE)
    if head is None:
        return text
    kept = re.sub(r"^dataset_info:.*\n(?:[ \t-].*\n|\r?\n)*?(?=[^ \t\r\n-]|---)", "", head[0], flags=re.MULTILINE)
    return kept + text[head.end() :]
