"""A folder of embeddings as clip-retrieval writes it, shard by shard.

    img_emb/*.npy         (rows, F) float16 or float32
    text_emb/*.npy        (rows, G), vectors of the captions
    metadata/*.parquet    caption; image_path, image, url or key; optionally split

Files of the three folders whose names end with the same number belong together, row by row.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from crcl.data.files import SHOWN, refuse, require
from crcl.data.rows.splits import rows_of, splits_of
from crcl.data.rows.tables import refuse_unnamed_splits
from crcl.data.shards import Shards
from crcl.data.sources.base import FolderSource, Layout
from crcl.data.split import Split
from crcl.errors import InputError, did_you_mean

FOLDERS = {"img_emb": ".npy", "text_emb": ".npy", "metadata": ".parquet"}
_NAMES = ("image_path", "image", "url", "key")  # columns that identify the image, in order of preference


def recognises(path: Path) -> bool:
    """Whether a path is a folder of embeddings."""
    return (path / "img_emb").is_dir()


class EmbeddingsSource(FolderSource):
    """A folder of embeddings of images and captions."""

    has_text_features = True

    @cached_property
    def _shards(self) -> list[list[Path]]:
        return _find_shards(Path(self.location.path))

    @cached_property
    def _rows(self) -> pa.Table:
        return _read_metadata(self._shards[2])

    def rows(self) -> pa.Table:
        """Columns image, caption and optionally split of the metadata."""
        return self._rows

    def splits(self) -> list[str]:
        """The values of the column `split`, or train and dev without that column."""
        return splits_of(self._rows)

    def read(self, split: str) -> Split:
        """The pairs of one split; its images are in order of first appearance."""
        images_of, texts_of, metadata_of = self._shards
        images, texts = Shards.open(images_of), Shards.open(texts_of)
        refuse(_differences(images_of, images, texts_of, np.diff(texts.offsets).tolist()))
        refuse(_differences(images_of, images, metadata_of, [_count(file) for file in metadata_of]))
        chosen = rows_of(self.name, self._rows, split)
        names, captions = (self._rows[column].take(chosen).to_pylist() for column in ("image", "caption"))
        first: dict[str, int] = {}
        for name, row in zip(names, chosen, strict=True):
            first.setdefault(name, int(row))
        number = {name: image for image, name in enumerate(first)}
        return Split(
            captions=captions,
            image_index=np.array([number[name] for name in names], dtype=np.int64),
            features=images.as_regions(),
            image_ids=list(first),
            source=str(Path(self.location.path) / "img_emb"),
            feature_rows=np.fromiter(first.values(), dtype=np.int64, count=len(first)),
            caption_rows=chosen,
            text_features=texts,
        )


def _find_shards(path: Path) -> list[list[Path]]:
    """The files of each folder, sorted by number; each number must be in all three folders."""
    found = [_numbered(path / folder, ending) for folder, ending in FOLDERS.items()]
    problems = []
    for number in sorted(set().union(*found)):
        there = next(files[number] for files in found if number in files)
        problems += [
            InputError(f"no {ending} file with number {number}, which belongs to {there}", where=path / folder)
            for (folder, ending), files in zip(FOLDERS.items(), found, strict=True)
            if number not in files
        ]
    refuse(problems)
    return [[files[number] for number in sorted(files)] for files in found]


def _numbered(folder: Path, ending: str) -> dict[int, Path]:
    """The files of a folder by the number at the end of their names, 0 without a number."""
    if not folder.is_dir():
        raise InputError(f"not found; a folder of embeddings has {', '.join(FOLDERS)}", where=folder)
    files: dict[int, Path] = {}
    for file in sorted(folder.glob(f"*{ending}")):
        digits = re.search(r"[0-9]{1,18}$", file.stem)
        number = int(digits[0]) if digits else 0
        if number in files:
            raise InputError(
                f"has the same number as {files[number].name}",
                where=file,
                hint="give each file of a folder another number",
            )
        files[number] = file
    if not files:
        raise InputError(f"no {ending} files", where=folder)
    return files


def _differences(
    images_of: Sequence[Path], images: Shards, others: Sequence[Path], rows: Sequence[int]
) -> list[InputError]:
    """An error for each file whose number of rows differs from that of its images."""
    return [
        InputError(f"{count} rows, but {image} has {expected}; both need the same number of rows", where=other)
        for image, expected, other, count in zip(images_of, np.diff(images.offsets), others, rows, strict=True)
        if count != expected
    ]


def _count(path: Path) -> int:
    return int(pyarrow.parquet.read_metadata(path).num_rows)


def _read_metadata(paths: Sequence[Path]) -> pa.Table:
    """The columns image, caption and optionally split of all files, as trimmed strings without nulls."""
    parts = [_read_part(path) for path in paths]
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
    refuse_unnamed_splits(str(paths[0].parent), table)
    unnamed = pc.equal(table["image"], "")
    if pc.any(unnamed).as_py():
        rows = pc.binary_join_element_wise("row", pc.cast(pa.array(np.arange(len(table))), pa.string()), " ")
        table = table.set_column(0, "image", pc.if_else(unnamed, rows, table["image"]))
    return table


def _read_part(path: Path) -> pa.Table:
    require(path, purpose="a table with the column caption")
    try:
        there = pyarrow.parquet.read_schema(path).names
        if "caption" not in there:
            near = did_you_mean("caption", there)
            raise InputError(f"no column 'caption'{near}; columns: {', '.join(there[:SHOWN])}", where=path)
        name = next((column for column in _NAMES if column in there), None)
        columns = {"image": name, "caption": "caption", "split": "split" if "split" in there else None}
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


LAYOUT = Layout(
    "a folder of embeddings as clip-retrieval writes it (img_emb, text_emb, metadata)",
    recognises,
    EmbeddingsSource.open,
)
