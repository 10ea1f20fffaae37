"""Parquet files that hold the images themselves, as the Hugging Face hub has them and img2dataset writes them.

    FILE.parquet                          one file, or a folder of such files
    data/train-00000-of-00002.parquet     the split is in the name; so too in a folder named like a configuration
    train/0000.parquet                    or it is the name of a folder

The images are a column of structs (`bytes`, `path`) or of bytes; the captions are text or lists of text. A column
`split` counts more than the names of files.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from crcl.data.cleaning.columns import clean_columns
from crcl.data.cleaning.judged import Judged
from crcl.data.files import SHOWN, require
from crcl.data.pictures.columns import ParquetImages, unreadable
from crcl.data.rows.cells import Cells, find_cells, has_pictures, one_array, take_apart
from crcl.data.rows.splits import SPLIT_OF, split_name
from crcl.data.rows.tables import tidied
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.content import Content, RowsSource
from crcl.errors import InputError

_LOOKED_AT = 1000  # entries of a folder that are looked at to recognise it
_KNOWN = "|".join(SPLIT_OF)
_IN_NAME = re.compile(rf"(?:(.+?)-[0-9]{{5}}-of-[0-9]{{5}}|({_KNOWN})(?:[-_.0-9].*)?)", re.IGNORECASE)

_COUNTED = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})(?=[-.])")


class Shard(NamedTuple):
    """One file, with the split that its name or its folder says."""

    name: str
    split: str | None


def recognises(path: Path) -> bool:
    """Whether a path is a Parquet file with images in it, or a folder of such files."""
    if path.suffix.lower() == ".parquet" and path.is_file():
        return _has_pictures(path)
    if not path.is_dir() or (path / "config.json").exists():
        return False
    try:
        folders = [path, path / "data", *(each for each in islice(path.iterdir(), _LOOKED_AT) if each.is_dir())]
        found = (file for folder in folders[: 2 + SHOWN] for file in _parquet_files(folder, most=_LOOKED_AT)[:1])
        first = next(found, None)
    except OSError:
        return False
    return first is not None and _has_pictures(first)


def _has_pictures(path: Path) -> bool:
    try:
        return has_pictures(pa.parquet.read_schema(path))
    except (pa.ArrowException, OSError, ValueError):
        return False


def _parquet_files(folder: Path, most: int | None = None) -> list[Path]:
    """The Parquet files in a folder, sorted; hidden ones and those of other programs do not count."""
    if not folder.is_dir():
        return []
    return sorted(
        file
        for file in islice(folder.iterdir(), most)
        if file.suffix.lower() == ".parquet" and file.name[0] not in "._" and file.is_file()
    )


def read(location: Location) -> Content:
    """The pairs in the rows of the files, and the images in their columns."""
    path = Path(location.path)
    shards, images = _open(location)
    names = images.names()
    by_name = None if images.cells.has_split else _splits(path, shards)
    parts, begin = [], 0
    for number in range(len(shards)):
        table = _read_texts(images, number)
        rows, captions = take_apart(one_array(table[images.cells.caption]))
        part = {"image": names.slice(begin, len(table)).take(pa.array(rows)), "caption": captions}
        if images.cells.has_split:
            part["split"] = one_array(table["split"]).cast(pa.string()).take(pa.array(rows))
        elif by_name is not None:
            part["split"] = pa.array([by_name[number]] * len(rows), pa.string())
        parts.append(pa.table(part))
        begin += len(table)
    notes = (*(_missing_files(shards) if path.is_dir() else ()), *_missing_images(images, names))
    return Content(tidied(str(path), pa.concat_tables(parts)), images, notes)


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write the files again."""
    _, images = _open(location)
    return clean_columns(images, Path(location.path), judged, output)


def _open(location: Location) -> tuple[list[Shard], ParquetImages]:
    """The files, and the images in them; the files must agree about the columns that are read."""
    path = Path(location.path)
    folder, shards = _find_shards(path)
    if location.image_column == location.caption_column or "split" in location.columns:
        what = f"image and caption must be two columns other than 'split'; got {location.columns}"
        raise InputError(what, where=path)
    cells: Cells | None = None
    kinds: list[pa.DataType] = []
    for shard in shards:
        file = folder / shard.name
        try:
            schema = pa.parquet.read_schema(file)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(file, error) from error
        found = find_cells(str(file), schema, location.columns)
        types = [schema.field(name).type for name in (found.image, found.caption)]
        if cells is None:
            cells, kinds = found, types
        elif (found, types) != (cells, kinds):
            raise InputError(
                f"its columns of images and captions ({_shown(found, types)}) differ from those of {shards[0].name} "
                f"({_shown(cells, kinds)})",
                where=file,
                hint="read files with the same columns only, or name them by {image_column} and {caption_column}",
            )
    assert cells is not None
    return shards, ParquetImages.at(folder, tuple(shard.name for shard in shards), cells)


def _shown(cells: Cells, kinds: list[pa.DataType]) -> str:
    columns = [f"{name}: {kind}" for name, kind in zip((cells.image, cells.caption), kinds, strict=True)]
    columns += [cells.names] if cells.names is not None and not cells.is_struct else []
    return ", ".join([*columns, *(["split"] if cells.has_split else [])])


def _find_shards(path: Path) -> tuple[Path, list[Shard]]:
    """The files with their splits, in the order in which they are read, and the folder that they are named from."""
    if not path.is_dir():
        require(path, purpose="a Parquet file")
        return path.parent, [Shard(path.name, None)]
    for folder in (path, path / "data"):
        files = _parquet_files(folder)
        if files:
            return path, [Shard(file.relative_to(path).as_posix(), _split_in(file.stem)) for file in files]
    below = {each.name: _parquet_files(each) for each in sorted(path.iterdir()) if each.is_dir()}
    below = {name: files for name, files in below.items() if files}
    if not below:
        raise InputError("no Parquet files in it or in its folder data", where=path)
    splits = {name for name in below if re.fullmatch(_KNOWN, name, re.IGNORECASE)}
    if splits == set(below):
        return path, [
            Shard(file.relative_to(path).as_posix(), split_name(name))
            for name, files in below.items()
            for file in files
        ]
    if len(below) > 1:
        shown = ", ".join(list(below)[:SHOWN]) + (", ..." if len(below) > SHOWN else "")
        raise InputError(
            f"has {len(below)} configurations: {shown}",
            where=path,
            hint="name the folder of one of them",
        )
    return path, [
        Shard(file.relative_to(path).as_posix(), _split_in(file.stem)) for files in below.values() for file in files
    ]


def _split_in(stem: str) -> str | None:
    """The split that the name of a file says, if it says one."""
    found = _IN_NAME.fullmatch(stem)
    if found is None:
        return None
    return split_name(found[1] or found[2])


def _splits(path: Path, shards: list[Shard]) -> list[str] | None:
    """The split of each file; None if there is only one, or none is named."""
    named = [shard.split for shard in shards]
    if len(set(named)) < 2:
        return None
    unnamed = [shard.name for shard in shards if shard.split is None]
    if unnamed:
        raise InputError(
            f"the names of some files say their split ({next(s.name for s in shards if s.split)}), but not that of "
            f"{unnamed[0]}",
            where=path,
            hint="rename it, such as train-00000-of-00001.parquet, or move it to another folder",
        )
    return [str(name) for name in named]


def _read_texts(images: ParquetImages, number: int, *columns: str) -> pa.Table:
    wanted = [images.cells.caption, *(["split"] if images.cells.has_split else [])]
    with images.opened(number) as file:
        table = file.read(columns=list(columns) or wanted)
        table.validate(full=True)  # undecodable text
        return table


def _missing_files(shards: list[Shard]) -> Iterator[str]:
    """A sentence about files that the names of others count, as after a download that was not finished."""
    there: dict[tuple[str, str], set[str]] = {}
    for shard in shards:
        counted = _COUNTED.match(shard.name)
        if counted is not None:
            there.setdefault((counted[1], counted[3]), set()).add(counted[2])
    for (name, total), numbers in there.items():
        missing = int(total) - len(numbers)
        if missing > 0:
            yield f"{missing:,} of {int(total):,} files {name}-*-of-{total} {'is' if missing == 1 else 'are'} not there"


def _missing_images(images: ParquetImages, names: pa.Array) -> tuple[str, ...]:
    """A sentence about rows without an image, with the reasons of img2dataset where it gave them."""
    missing = pc.equal(names, "")
    count = int(pc.sum(missing).as_py() or 0)
    if not count:
        return ()
    reasons: Counter[str] = Counter()
    begin = 0
    for number in range(len(images.files)):
        with images.opened(number) as file:
            rows = file.metadata.num_rows
            has_status = "status" in file.schema_arrow.names
        if has_status:
            status = one_array(_read_texts(images, number, "status")["status"]).cast(pa.string())
            reasons.update(str(value) for value in status.filter(missing.slice(begin, rows)).to_pylist())
        begin += rows
    why = ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common(SHOWN))
    told = f" (status: {why})" if why else ""
    return (f"{count:,} of {len(names):,} rows have no image in column '{images.cells.image}'{told}",)


LAYOUT = Layout(
    "Parquet with the images in it, as on the Hugging Face hub or by img2dataset (a file, or a folder of them)",
    recognises,
    RowsSource.opening(read),
    clean,
)
