"""Base of layouts that bring vectors of images and captions, row by row beside a table of these."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from crcl.data.files import SHOWN, refuse, require
from crcl.data.maps.shards import Shards
from crcl.data.rows.splits import rows_of, splits_of
from crcl.data.rows.tables import refuse_unnamed_splits
from crcl.data.sources.base import FolderSource
from crcl.data.split import Split
from crcl.errors import InputError, did_you_mean


class Vectors(NamedTuple):
    """Vectors of both sides, one for each row."""

    images: Shards
    texts: Shards
    source: str
    """The files of the images' vectors, for messages."""


class VectorsSource(FolderSource):
    """A folder of vectors of images and captions; subclasses add `table` and `vectors`."""

    has_text_features = True

    def table(self) -> pa.Table:
        """Columns image, caption and optionally split of all rows."""
        raise NotImplementedError

    def vectors(self) -> Vectors:
        """The vectors of all rows, as many as the table has; raises an error if the numbers differ."""
        raise NotImplementedError

    @cached_property
    def _rows(self) -> pa.Table:
        return self.table()

    def rows(self) -> pa.Table:
        """Columns image, caption and optionally split."""
        return self._rows

    def splits(self) -> list[str]:
        """The values of the column `split`, or train and dev without that column."""
        return splits_of(self._rows)

    def read(self, split: str) -> Split:
        """The pairs of one split; its images are in order of first appearance."""
        vectors = self.vectors()
        chosen = rows_of(self.name, self._rows, split)
        names, captions = (self._rows[column].take(chosen).to_pylist() for column in ("image", "caption"))
        first: dict[str, int] = {}
        for name, row in zip(names, chosen, strict=True):
            first.setdefault(name, int(row))
        number = {name: image for image, name in enumerate(first)}
        return Split(
            captions=captions,
            image_index=np.array([number[name] for name in names], dtype=np.int64),
            features=vectors.images.as_regions(),
            image_ids=list(first),
            source=vectors.source,
            feature_rows=np.fromiter(first.values(), dtype=np.int64, count=len(first)),
            caption_rows=chosen,
            text_features=vectors.texts,
        )


class Named(NamedTuple):
    """Which columns of the tables beside vectors to read."""

    images: Sequence[str]
    """Columns that identify the image, in order of preference."""
    caption: str
    required: bool = False
    """Whether one of the columns of images must be there; without one, rows are named by their numbers."""


def count_rows(path: Path) -> int:
    """The number of rows of a Parquet file."""
    return int(pyarrow.parquet.read_metadata(path).num_rows)


def read_tables(paths: Sequence[Path], named: Named) -> pa.Table:
    """The columns image, caption and optionally split of all files, as trimmed strings without nulls."""
    parts = [_read_part(path, named) for path in paths]
    different = [
        InputError(
            f"columns {', '.join(part.column_names)}, but {paths[0]} has {', '.join(parts[0].column_names)}", where=path
        )
        for path, part in zip(paths, parts, strict=True)
        if part.column_names != parts[0].column_names
    ]
    refuse(different)
    table = pa.concat_tables(parts)
    if not len(table):
        raise InputError("has no rows", where=paths[0].parent)
    if not pc.any(pc.not_equal(table["caption"], "")).as_py():
        what = f"the column '{named.caption}' has no text in any row"
        raise InputError(what, where=paths[0].parent, hint="write the captions that the vectors were made of")
    refuse_unnamed_splits(str(paths[0].parent), table)
    unnamed = pc.equal(table["image"], "")
    if pc.any(unnamed).as_py():
        rows = pc.binary_join_element_wise("row", pc.cast(pa.array(np.arange(len(table))), pa.string()), " ")
        table = table.set_column(0, "image", pc.if_else(unnamed, rows, table["image"]))
    return table


def _read_part(path: Path, named: Named) -> pa.Table:
    require(path, purpose=f"a table with the column {named.caption}")
    try:
        there = pyarrow.parquet.read_schema(path).names
        needed = [named.caption, *(named.images[:1] if named.required else ())]
        for column in needed:
            if column not in there:
                near = did_you_mean(column, there)
                raise InputError(f"no column '{column}'{near}; columns: {', '.join(there[:SHOWN])}", where=path)
        name = next((column for column in named.images if column in there), None)
        columns = {"image": name, "caption": named.caption, "split": "split" if "split" in there else None}
        table = pyarrow.parquet.read_table(path, columns=[column for column in columns.values() if column])
        table.validate(full=True)  # undecodable text
        texts = {
            ours: pc.utf8_trim_whitespace(pc.fill_null(table[theirs].cast(pa.string()), ""))
            for ours, theirs in columns.items()
            if theirs
        }
        if name is None:  # unnamed rows get their row number as name
            texts = {"image": pa.chunked_array([pa.array([""] * len(table), pa.string())]), **texts}
        return pa.table(texts)
    except (pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not a readable parquet table ({error})", where=path) from error
