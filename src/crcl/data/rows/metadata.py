"""Metadata files of an imagefolder: finding them in a folder and in its zip files, and reading their rows.

    metadata.csv | metadata.jsonl | metadata.parquet    file_name, text, other columns

Names of files are relative to the metadata file. A cell of captions may hold a list.
"""

import csv
import json
import posixpath
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from crcl.data.files import SHOWN, refuse, require, values_of_any_length
from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.files import Files
from crcl.data.pictures.zips import BROKEN, read_member
from crcl.data.rows.cells import is_list, is_texts
from crcl.data.rows.folders import walk
from crcl.data.rows.tables import CAPTIONS, USUAL, Columns, read_rows, tidied
from crcl.errors import InputError, did_you_mean

NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
IMAGES = "file_name"
"""The column of images; one whose name ends in `_file_name` serves as well."""


@dataclass(frozen=True)
class Metadata:
    """A metadata file in a folder or in a zip file of it."""

    root: Path
    name: str
    """Path relative to the root: `train/metadata.csv`, `train.zip/metadata.csv`."""
    archive: str | None = None
    """The zip file that it lies in: `train.zip`."""

    @property
    def member(self) -> str:
        """Its path in the zip file."""
        return self.name[len(self.archive or "") + 1 :] if self.archive else self.name

    def image(self, cell: str) -> str:
        """The name of the image that a cell of this file means, relative to the root."""
        if not cell or posixpath.isabs(cell):
            return cell
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.name), cell))

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """The file itself, or a temporary copy of a zip's member; errors name the member."""
        try:
            file = Files(self.root).locate(self.archive or self.name)
            content = read_member(file, self.member) if self.archive else b""
        except UnusableError as error:
            raise InputError(str(error), where=self.root / self.name) from error
        if self.archive is None:
            yield file
            return
        with TemporaryDirectory() as folder:
            path = Path(folder) / Path(self.name).name
            path.write_bytes(content)
            try:
                yield path
            except InputError as error:
                parts = [(part.what, part.where, part.hint) for part in error.problems]
                named = [
                    [text.replace(str(path), str(self.root / self.name)) for text in (what, where, hint)]
                    for what, where, hint in parts
                ]
                raise InputError.several(
                    [InputError(what, where=where, hint=hint) for what, where, hint in named]
                ) from error


@dataclass(frozen=True)
class MetadataRows:
    """The rows of a metadata file, one for each caption."""

    rows: pa.Table
    """Columns image, as its cells are, caption and optionally split."""
    columns: Columns
    """Names of the columns in the file."""
    lengths: np.ndarray | None = None
    """(records,) how many rows each record of the file has; None if each has one, as its captions are no lists."""


def find_metadata(root: Path) -> list[Metadata]:
    """All metadata files of a folder and its zip files, sorted by path."""
    found = []
    for place, files in walk(root):
        prefix = f"{place}/" if place else ""
        found += [Metadata(root, prefix + name) for name in files if name in NAMES]
        for name in files:
            if name.lower().endswith(".zip"):
                archive = prefix + name
                found += [Metadata(root, f"{archive}/{member}", archive) for member in zipped(root, archive)]
    folders: dict[str, str] = {}
    for each in found:
        other = folders.setdefault(posixpath.dirname(each.name), each.name)
        if other != each.name:
            raise InputError(
                f"two metadata files in one folder, {Path(other).name} and {Path(each.name).name}",
                where=root / posixpath.dirname(each.name),
                hint="leave one of them there",
            )
    return sorted(found, key=lambda each: each.name)


def zipped(root: Path, archive: str) -> list[str]:
    """The metadata files in a zip file; refuses one that cannot be read."""
    try:
        with zipfile.ZipFile(require(Files(root).locate(archive))) as opened:
            names = dict.fromkeys(opened.namelist())
            return [name for name in names if posixpath.basename(name) in NAMES and _is_inside(name)]
    except (*BROKEN, UnusableError) as error:
        raise InputError(
            f"not a readable zip file ({error})", where=root / archive, hint="get it again, or move it elsewhere"
        ) from error


def _is_inside(name: str) -> bool:
    """Whether the name of a zip's member leads to a place below the zip file."""
    return not posixpath.isabs(name) and ".." not in name.split("/")


def column_names(path: Path) -> list[str]:
    """The names of a metadata file's columns: of its header, its schema or its first object."""
    require(path)
    try:
        if path.suffix == ".parquet":
            return list(pyarrow.parquet.read_schema(path).names)
        if path.suffix == ".jsonl":
            with path.open("rb") as stream:
                line = next((line for line in stream if line.strip()), b"{}")
            return [str(name) for name in dict(json.loads(line.decode("utf-8-sig")))]
        with path.open(encoding="utf-8-sig", newline="") as stream, values_of_any_length():
            return next(csv.reader(stream), [])
    except (pa.ArrowException, ValueError, TypeError, OSError, RecursionError, csv.Error) as error:
        raise InputError(f"not a readable {path.suffix[1:]} table ({error})", where=path) from error


def choose_columns(path: Path, wanted: Columns) -> Columns:
    """The columns of images and captions: those that the user named, or those with the usual names."""
    there = column_names(path)
    ending = [name for name in there if name.endswith(f"_{IMAGES}")]
    image = [wanted.image] if wanted.image != USUAL.image else [IMAGES, *ending, USUAL.image]
    caption = [wanted.caption] if wanted.caption != USUAL.caption else list(CAPTIONS)
    problems, chosen = [], []
    for names, parameter in ((image, "image_column"), (caption, "caption_column")):
        found = next((name for name in names if name in there), None)
        if found is None:
            problems.append(
                InputError(
                    f"no column '{names[0]}'{did_you_mean(names[0], there)}; columns: {', '.join(there[:SHOWN])}",
                    where=path,
                    hint=f"pass {{{parameter}}} if it has another name",
                )
            )
        chosen.append(found or "")
    refuse(problems)
    return Columns(*chosen)


def read_cells(path: Path, wanted: Columns) -> MetadataRows:
    """The rows of a metadata file."""
    columns = choose_columns(path, wanted)
    listed = {".jsonl": _listed_json, ".parquet": _listed_parquet}.get(path.suffix, lambda *_: None)(path, columns)
    if listed is None:
        return MetadataRows(read_rows(path, columns), columns)
    images, captions, splits = listed
    lengths = np.array([len(each) for each in captions], dtype=np.int64)
    table = {
        "image": np.repeat(np.array(images, dtype=object), lengths).tolist(),
        "caption": [caption for each in captions for caption in each],
    }
    if splits is not None:
        table["split"] = np.repeat(np.array(splits, dtype=object), lengths).tolist()
    rows = as_texts(path, table)
    return MetadataRows(tidied(str(path), rows), columns, lengths)


def as_texts(where: Path, columns: Mapping[str, Sequence[str]]) -> pa.Table:
    """Columns of texts as a table; refuses texts that are not UTF-8."""
    try:
        return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    except UnicodeEncodeError as error:
        raise InputError(f"contains text that is not UTF-8 ({error})", where=where) from error


def as_list(value: Any) -> list[str]:
    """The captions of a cell, "" for each that is empty; a cell without captions has one that is empty."""
    values = value if isinstance(value, list) else [value]
    if not all(each is None or isinstance(each, str) for each in values):
        raise TypeError
    return [each or "" for each in values] or [""]


_Listed = tuple[list[Any], list[list[str]], list[Any] | None]


def _listed_json(path: Path, columns: Columns) -> _Listed | None:
    """Images, captions and splits of a JSONL file whose first captions are a list."""
    images: list[Any] = []
    captions: list[list[str]] = []
    splits: list[Any] = []
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                record = dict(json.loads(line.decode("utf-8-sig")))
                cell = record.get(columns.caption)
                if not captions and not isinstance(cell, list):
                    return None
                captions.append(as_list(cell))
                images.append(str(record.get(columns.image) or ""))
                splits.append(record.get("split"))
            except (ValueError, TypeError, RecursionError) as error:
                what = f"expected an object whose '{columns.caption}' is a text or a list of texts"
                raise InputError(what, where=f"{path}:{number}") from error
    split = None if all(each is None for each in splits) else [str(each or "") for each in splits]
    return images, captions, split


def _listed_parquet(path: Path, columns: Columns) -> _Listed | None:
    """Images, captions and splits of a Parquet file whose captions are lists."""
    schema = pyarrow.parquet.read_schema(path)
    kind = schema.field(columns.caption).type
    if not is_list(kind):
        return None
    if not is_texts(kind):
        what = f"column '{columns.caption}' is {kind}, expected text or lists of text"
        raise InputError(what, where=path, hint="pass {caption_column} if another column has the captions")
    used = [*columns, *(["split"] if "split" in schema.names else [])]
    try:
        table = pyarrow.parquet.read_table(path, columns=used)
        captions = [as_list(cell) for cell in table[columns.caption].to_pylist()]
        images = table[columns.image].cast(pa.string()).to_pylist()
        return images, captions, table["split"].cast(pa.string()).to_pylist() if "split" in used else None
    except (pa.ArrowException, ValueError, TypeError, OSError) as error:
        raise InputError(f"not a readable parquet table ({error})", where=path) from error
