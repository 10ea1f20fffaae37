"""Data in memory: a DataFrame or another table, lists of images and captions, arrays of features.

Nothing here imports pandas: a table is anything with named columns.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from crcl.data.files import open_features, read_ids, refuse, refuse_duplicates
from crcl.data.maps.shards import Shards, open_vectors
from crcl.data.pictures.base import Pictures
from crcl.data.pictures.dataset import DatasetImages, ending
from crcl.data.pictures.files import Files
from crcl.data.pictures.held import Held, HeldImages, held_in
from crcl.data.rows.arrays import regions, vectors
from crcl.data.rows.splits import splits_of
from crcl.data.rows.stored import Selection, Stored, first_rows, read_split
from crcl.data.rows.tables import USUAL, Columns, place, tidied, used_columns
from crcl.data.sources.base import Given, Names
from crcl.data.sources.precomp import fitting
from crcl.data.split import Split
from crcl.errors import InputError

NAME = "pairs in memory"
"""The name in messages of data without a path."""
_NUMBERED = "images/{:07d}{}"  # names of images in no file, also the paths they are saved to


@dataclass(frozen=True)
class MemorySource:
    """Rows in memory, optionally with features, vectors and images."""

    table: pa.Table
    """Columns image, caption and optionally split, as trimmed strings without nulls."""
    name: str = NAME
    columns: Columns = USUAL
    skip_empty: bool = False
    features: np.ndarray | None = None
    """(images, R, F)."""
    row_of: Mapping[str, int] = field(default_factory=dict)
    """The row in `features` of each image, by name."""
    text_features: np.ndarray | None = None
    """(rows, G)."""
    held: Mapping[str, Held] = field(default_factory=dict)
    """Images by name: PIL images, or the bytes of image files."""
    images: Pictures | None = None
    """Where the images lie, if that was given."""
    others: pa.Table | None = None
    """The table's other columns, which are not read, but saved with it."""
    location = None
    is_table = True
    notes = ()

    @property
    def has_features(self) -> bool:
        """Whether features are given."""
        return self.features is not None

    @property
    def has_text_features(self) -> bool:
        """Whether each caption has a vector."""
        return self.text_features is not None

    @property
    def pictures(self) -> Pictures | None:
        """Where the images lie: here, if they are in no file, or in the current folder, if no other is given."""
        if isinstance(self.held, DatasetImages):
            return self.held
        return HeldImages(self.held) if self.held else self.images or Files(Path.cwd())

    def rows(self) -> pa.Table:
        """Columns image, caption and optionally split."""
        return self.table

    def splits(self) -> list[str]:
        """The values of the column `split`, or train and dev without that column."""
        return splits_of(self.table)

    def read(self, split: str) -> Split:
        """The pairs of one split."""
        return read_split(Selection(self.name, self.table, self.columns, self.skip_empty), split, self._stored)

    def _stored(self) -> Stored:
        if self.features is None:
            raise InputError(
                "no features of the images",
                where=self.name,
                hint="pass {features}, make them with {extract_features()}, or call {audit()}, which makes them",
            )
        texts = None if self.text_features is None else Shards([self.text_features], [f"text features of {self.name}"])
        return Stored(self.features, self.row_of, f"features of {self.name}", "the names of the features", texts)

    def with_features(self, features: Given, ids: Names, text_features: Given) -> "MemorySource":
        """The same rows with other features and vectors; None keeps the present ones."""
        changed = self
        if features is not None:
            array = open_features(Path(features)) if isinstance(features, str | Path) else regions(features, self.name)
            changed = replace(changed, features=array, row_of=_rows_by_name(self, array, ids))
        elif ids is not None:
            raise InputError("ids are given without features", where=self.name, hint="pass {features} with {ids}")
        if text_features is not None:
            files = isinstance(text_features, str | Path)
            texts = open_vectors(Path(text_features)) if files else vectors(text_features, self.name)  # type: ignore[arg-type]
            if len(texts) != len(self.table):
                raise InputError(f"{len(self.table)} rows, but text features of {len(texts)} captions", where=self.name)
            changed = replace(changed, text_features=texts)
        return changed

    def with_images(self, pictures: Pictures) -> "MemorySource":
        """The same data with images that lie there."""
        return replace(self, images=pictures)

    def without_empty(self) -> "MemorySource":
        """The same data without rows that lack an image or a caption."""
        return replace(self, skip_empty=True)

    def fingerprint(self) -> str:
        """A hash of rows, features, vectors and images."""
        digest = hashlib.sha256()
        for column in self.table.column_names:
            for text in [column, *self.table[column].to_pylist()]:
                raw = text.encode()
                digest.update(len(raw).to_bytes(8, "little") + raw)
        digest.update(repr(sorted(self.row_of.items())).encode())
        for array in (self.features, self.text_features):
            digest.update(repr(None if array is None else (array.shape, array.dtype.str)).encode())
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
        for name, picture in self.held.items():
            if isinstance(picture, bytes):
                digest.update(repr((name, len(picture))).encode() + picture)
                continue
            try:
                digest.update(repr((name, picture.mode, picture.size)).encode() + picture.tobytes())
            except (OSError, ValueError) as error:  # Pillow reads the pixels of a file lazily
                raise InputError(f"image {name} cannot be read ({error})", where=self.name) from error
        return digest.hexdigest()


def from_table(data: Any, columns: Columns, images: Path | None) -> MemorySource:
    """A source of anything with named columns: a DataFrame, a pyarrow Table, a dict of lists.

    A cell may hold several captions; each is a row with the same other values.
    """
    there = _column_names(data)
    values = {column: _values(data, column) for column in used_columns(NAME, columns, there)}
    lengths = {column: len(found) for column, found in values.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"'{column}' {length}" for column, length in lengths.items())
        raise InputError(f"columns have different lengths: {counts}", where=NAME)
    captions, rows = _one_by_one(values[columns.caption])
    pictures, splits = values[columns.image], values.get("split")
    source = _source(
        [pictures[row] for row in rows],
        captions,
        None if splits is None else [splits[row] for row in rows],
        columns=columns,
        images=images,
    )
    others = {column: _values(data, column) for column in there if column not in values}
    return replace(source, others=_as_arrow(others).take(pa.array(rows, pa.int64()))) if others else source


def _one_by_one(cells: list[Any]) -> tuple[list[Any], list[int]]:
    """Captions one by one, and the row of each; an empty list is an empty caption."""
    lists = [list(cell) or [None] if isinstance(cell, list | tuple | np.ndarray) else [cell] for cell in cells]
    return [text for several in lists for text in several], [row for row, several in enumerate(lists) for _ in several]


def _as_arrow(columns: dict[str, list[Any]]) -> pa.Table:
    """Columns of any values that a Parquet file can hold; all others are named."""
    arrays, problems = {}, []
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values, from_pandas=True)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
            what = f"column '{name}' holds values that cannot be saved ({str(error)[:100]})"
            problems.append(InputError(what, where=NAME, hint="leave this column out"))
    refuse(problems)
    return pa.table(arrays)


def from_lists(files: Sequence[Any], captions: Sequence[Any], images: Path | None) -> MemorySource:
    """A source of image files or PIL images with one caption each."""
    if len(files) != len(captions):
        raise InputError(
            f"{len(files)} images, but {len(captions)} captions", where=NAME, hint="give one caption per image"
        )
    if images is None and all(isinstance(file, str | Path) and str(file) for file in files):
        files, images = _below_one_folder([Path(file) for file in files])
    return _source(list(files), list(captions), None, columns=USUAL, images=images)


def from_arrays(
    features: Any, captions: Sequence[Any], *, ids: Names = None, image_index: Any = None, images: Path | None = None
) -> MemorySource:
    """A source of features and captions, with an image index or equally many captions per image."""
    array, count = regions(features, NAME), len(captions)
    names = [str(number) for number in range(len(array))] if ids is None else _names(ids)
    if len(names) != len(array):
        raise InputError(f"{len(names)} ids, but features of {len(array)} images", where=NAME)
    if image_index is not None:
        index = np.asarray(image_index)
        if index.shape != (count,) or index.dtype.kind not in "iu":
            raise InputError(f"{count} captions need an image index of {count} whole numbers", where=NAME)
        if count and not (index.min() >= 0 and index.max() < len(array)):
            raise InputError(f"the image index must be from 0 to {len(array) - 1}", where=NAME)
    elif not count or count % len(array):
        raise InputError(
            f"{count} captions for {len(array)} images, which is not a multiple; expected {fitting(count, len(array))}",
            where=NAME,
            hint="pass {image_index} if images have different numbers of captions",
        )
    else:
        index = np.arange(count) // (count // len(array))
    source = _source([names[image] for image in index], list(captions), None, columns=USUAL, images=images)
    return source.with_features(array, names, None)


def is_table(data: Any) -> bool:
    """Whether an object has named columns."""
    return isinstance(data, Mapping) or hasattr(data, "column_names") or hasattr(data, "__dataframe__")


def _column_names(data: Any) -> list[str]:
    names = data.keys() if isinstance(data, Mapping) else getattr(data, "column_names", None)
    return [str(name) for name in (data.columns if names is None else names)]


def _values(data: Any, column: str) -> list[Any]:
    values = data[column]
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise InputError(f"column '{column}' is {_shown(values)}, expected a list", where=NAME)
    return list(values.to_pylist()) if hasattr(values, "to_pylist") else list(values)


def _source(
    pictures: list[Any], captions: list[Any], splits: list[Any] | None, *, columns: Columns, images: Path | None
) -> MemorySource:
    """The source with all rows as strings; images that are in no file are named by number."""
    cells = [held_in(value) for value in pictures]
    keys = [
        (name, content) if isinstance(name, str) else id(cell)
        for cell, (content, name) in zip(pictures, cells, strict=True)
    ]
    held = {key: content for key, (content, _) in zip(keys, cells, strict=True) if content is not None}
    name_of = {key: _NUMBERED.format(number, _ending(held[key])) for number, key in enumerate(held)}
    problems: list[InputError] = []
    names = []
    for row, (key, (_, value)) in enumerate(zip(keys, cells, strict=True)):
        if key in held:
            names.append(name_of[key])
        elif _is_missing(value):
            names.append("")
        elif held or isinstance(value, bool) or not isinstance(value, str | Path | int | np.integer):
            wanted = "an image like the others" if held else "a file name, a number, a PIL image or the bytes of a file"
            problems.append(InputError(f"image is {_shown(value)}, expected {wanted}", where=place(NAME, row)))
        elif any(mark in str(value) for mark in "\n\r\0\ufeff"):
            problems.append(
                InputError("the image name contains a line break or a control character", where=place(NAME, row))
            )
        else:
            names.append(str(value))
    texts = {columns.caption: captions} | ({} if splits is None else {"split": splits})
    for column, values in texts.items():
        problems += [
            InputError(f"{column} is {_shown(value)}, expected text", where=place(NAME, row))
            for row, value in enumerate(values)
            if not isinstance(value, str) and not _is_missing(value)
        ]
    refuse(problems)
    columns_of = {"image": names, "caption": captions} | ({} if splits is None else {"split": splits})
    try:
        table = pa.table(
            {name: pa.array(["" if _is_missing(v) else v for v in of], pa.string()) for name, of in columns_of.items()}
        )
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise InputError(f"contains text that is not UTF-8 ({error})", where=NAME) from error
    named = {name_of[key]: picture for key, picture in held.items()}
    return MemorySource(
        tidied(NAME, table), columns=columns, held=named, images=None if images is None else Files(images)
    )


def _ending(image: Held) -> str:
    return ending(image) if isinstance(image, bytes) else ".png"


def _is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, or NaN, NA or NaT of pandas."""
    return (
        value is None or (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType")
    )


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"


def _below_one_folder(files: list[Path]) -> tuple[list[str], Path | None]:
    """Names of files relative to their common folder, and that folder, the only one that is read later.

    Links that leave the common folder are resolved, since the user named these files.
    """
    if not files:
        return [], None
    whole = [file.resolve() if ".." in file.parts else file.absolute() for file in files]
    for paths in (whole, [file.resolve() for file in whole]):
        folder = Path(os.path.commonpath([file.parent for file in paths]))
        if all(file.resolve().is_relative_to(folder.resolve()) for file in paths):
            break
    return [file.relative_to(folder).as_posix() for file in paths], folder


def _rows_by_name(source: MemorySource, features: np.ndarray, ids: Names) -> dict[str, int]:
    if ids is None:
        if len(features) != len(source.table):
            raise InputError(
                f"{len(source.table)} rows, but features of {len(features)} images",
                where=source.name,
                hint="pass {ids}, the image id of each row of the features, or one row of features per row of the data",
            )
        return first_rows(source.table)
    names = _names(ids)
    if len(names) != len(features):
        raise InputError(f"{len(names)} ids, but features of {len(features)} images", where=source.name)
    return {name: row for row, name in enumerate(names)}


def _names(ids: Names) -> list[str]:
    names = read_ids(Path(ids)) if isinstance(ids, str | Path) else [str(name).strip() for name in ids or ()]
    refuse_duplicates(Path(ids) if isinstance(ids, str | Path) else Path("ids"), names)
    return names
