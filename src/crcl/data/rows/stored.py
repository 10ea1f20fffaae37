"""Stored features of a table's images, and building pairs from a table and its features."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from crcl.data.files import (
    SHOWN,
    read_bytes,
    read_ids,
    refuse,
    refuse_duplicates,
    require,
    values_of_any_length,
)
from crcl.data.maps.shards import Shards, open_sharded_features
from crcl.data.pictures.base import Pictures
from crcl.data.pictures.decoded import FILE, Decoded
from crcl.data.rows.splits import NONE, rows_of, whole_rows
from crcl.data.rows.tables import USUAL, Columns, place
from crcl.data.split import Split
from crcl.errors import InputError, did_you_mean

SKIPPED = ("image", "reason")
"""The columns of `skipped.csv`."""
HASHES = "hashes.npy"
"""Beside features, a hash of each image's pixels, in the same order."""
_SEARCHED = 10_000  # most ids to search for a similar name; with more it would take minutes


@dataclass(frozen=True)
class Stored:
    """Features of images, and the row of each image by its name."""

    features: np.ndarray | Shards | Decoded
    """(rows, R, F)."""
    row_of: Mapping[str, int]
    source: str
    """The features file, for messages."""
    listed: str | None
    """The file that lists the image ids, for messages; None if row i of the features is row i of the table."""
    text_features: Shards | None = None
    skipped_file: Path | None = None
    """`skipped.csv`, the images that could not be used; their pairs are left out."""
    contents: np.ndarray | None = None
    """(rows, 32) uint8, a hash of the pixels of each image, if it is known."""

    def copies(self) -> dict[str, bytes]:
        """The hash of each image's pixels by its name; empty where it is not known."""
        if self.contents is None:
            return {}
        return {name: self.contents[row].tobytes() for name, row in self.row_of.items()}


@dataclass(frozen=True)
class Selection:
    """A parsed table with its name and column names for messages, and what to do with empty rows."""

    name: str
    rows: pa.Table
    columns: Columns = USUAL
    skip_empty: bool = False


def read_split(table: Selection, split: str, stored_features: Callable[[], Stored]) -> Split:
    """The pairs of one split; its images are in order of first appearance.

    Rows that lack an image or a caption raise an error, or are left out with `skip_empty`. `stored_features` opens the
    features, after these checks. Where hashes of the pixels are beside them, copies are held out together.
    """
    chosen, names, captions = chosen_rows(table, split)
    stored = stored_features()
    if stored.contents is not None:
        chosen, names, captions = chosen_rows(table, split, stored.copies())
    left_out = set() if stored.skipped_file is None else read_skipped(stored.skipped_file) - stored.row_of.keys()
    if left_out:
        kept = [i for i, name in enumerate(names) if name not in left_out]
        if not kept:
            raise InputError(
                f"none of the {len(set(names))} images of split '{split}' could be read (see {stored.skipped_file})",
                where=table.name,
                hint="repair some images, or set the rows of train and dev in a column 'split'",
            )
        chosen, names, captions = chosen[kept], [names[i] for i in kept], [captions[i] for i in kept]
    if stored.listed is not None:
        _refuse_missing(table.name, chosen, names, stored.listed, stored.row_of)
    number = {name: image for image, name in enumerate(dict.fromkeys(names))}
    feature_rows = np.array([stored.row_of[name] for name in number], dtype=np.int64)
    return Split(
        captions=captions,
        image_index=np.array([number[name] for name in names], dtype=np.int64),
        features=stored.features,
        image_ids=list(number),
        source=stored.source,
        feature_rows=feature_rows,
        caption_rows=chosen,
        text_features=stored.text_features,
        contents=None if stored.contents is None else stored.contents[feature_rows],
    )


def chosen_rows(
    table: Selection, split: str, copies: Mapping[str, bytes] = NONE
) -> tuple[np.ndarray, list[str], list[str]]:
    """Row numbers, image names and captions of a split; empty rows raise an error, or are left out.

    Args:
        table: The table.
        split: The name of the split.
        copies: A hash of the content of each image by its name, if known.
    """
    usable = whole_rows(table.rows) if table.skip_empty else np.arange(len(table.rows))
    chosen = usable[rows_of(table.name, table.rows.take(usable), split, copies)]
    names, captions = (table.rows[column].take(chosen).to_pylist() for column in USUAL)
    problems = []
    for row, *values in zip(chosen, names, captions, strict=True):
        empty = [column for column, value in zip(table.columns, values, strict=True) if not value]
        problems += [
            InputError(f"empty {column}", where=place(table.name, row), hint="each row needs an image and a caption")
            for column in empty
        ]
    refuse(problems)
    return chosen, names, captions


def _refuse_missing(name: str, rows: np.ndarray, names: list[str], listed: str, stored: Mapping[str, int]) -> None:
    """Raise an error that lists images of the table without features."""
    missing = [(row, image) for row, image in zip(rows, names, strict=True) if image not in stored]
    searched = list(stored) if len(stored) <= _SEARCHED else []
    near = {image: did_you_mean(image, searched) for _, image in missing[:SHOWN]}
    refuse(
        [
            InputError(
                f"image '{image}' has no features: it is not in {listed}{near.get(image, '')}", where=place(name, row)
            )
            for row, image in missing
        ]
    )


def open_stored(
    path: Path,
    rows: pa.Table,
    *,
    features: str | None,
    ids: str | None,
    text_features: str | None,
    pictures: Callable[[], Pictures | None],
) -> Stored:
    """Open the features of a table's images and the vectors of its captions, given or found beside the table.

    `pictures` returns where the images lie, for features that are made of them whenever they are read.
    """
    texts = None if text_features is None else _open_texts(path, rows, Path(text_features))
    stored, listed = _find_features(path, features, ids, by_row=texts is not None)
    row_of = _row_of(rows, listed)
    decoded = stored.name == FILE
    images = Decoded.open(stored, pictures(), list(row_of)) if decoded else open_sharded_features(stored)
    if listed is None and len(images) != len(rows):
        raise InputError(
            f"{len(rows)} rows, but {stored} has features of {len(images)} images; "
            "expected as many rows as features, or an ids file",
            where=path,
        )
    if listed is not None and len(images) != len(row_of):
        raise InputError(
            f"{len(row_of)} ids, but {stored} has features of {len(images)} images; "
            "expected one id per line for each row of the features",
            where=listed,
        )
    beside = (stored if listed is None else listed).with_name("skipped.csv")
    contents = None if listed is None else _read_contents(stored.with_name(HASHES), len(images))
    return Stored(images, row_of, str(stored), None if listed is None else str(listed), texts, beside, contents)


def _read_contents(path: Path, images: int) -> np.ndarray | None:
    """The hashes of the images' pixels, as `crcl features` writes them; None if there are none for these images."""
    with suppress(OSError, ValueError, EOFError):
        hashes = np.load(path, allow_pickle=False)
        if isinstance(hashes, np.ndarray) and (hashes.dtype, hashes.shape) == (np.dtype(np.uint8), (images, 32)):
            return hashes
    return None


def default_features(path: Path) -> tuple[Path, Path]:
    """The paths beside a table where its features are looked for by default."""
    return path.parent / "features.npy", path.parent / f"{path.stem}_ims.npy"


def _open_texts(path: Path, rows: pa.Table, stored: Path) -> Shards:
    """The vectors of the captions, one per row of the table."""
    texts = Shards.open([stored])
    if len(texts) != len(rows):
        raise InputError(
            f"{len(texts)} rows, but {path} has {len(rows)}; both need the same number of rows", where=stored
        )
    return texts


def _find_features(path: Path, features: str | None, ids: str | None, *, by_row: bool) -> tuple[Path, Path | None]:
    """The features file and its ids file, given or beside the table; with `by_row` the ids file may be missing."""
    default = default_features(path)
    stored = Path(features) if features is not None else _first(*default)
    if features is None and not stored.is_file():
        raise InputError(
            f"no features of its images: neither {default[0].name} nor {default[1].name} is beside it",
            where=path,
            hint="pass {features}, make them with {extract_features()}, or call {audit()}, which makes them",
        )
    if not stored.is_dir():
        require(stored, purpose="the features of the table's images")
    named = stored.with_name(stored.name.removesuffix(".npy").removesuffix("_ims") + "_ids.txt")
    own = [named, stored / "ids.txt" if stored.is_dir() else stored.with_name("ids.txt")]
    listed = Path(ids) if ids is not None else _first(*(own if stored.name.endswith("_ims.npy") else own[::-1]))
    if by_row and ids is None and not listed.is_file():
        return stored, None
    return stored, require(listed, purpose=f"the image id of each row of {stored.name}, one per line")


def _first(*paths: Path) -> Path:
    """The first path that is a file, or else the first path."""
    return next((path for path in paths if path.is_file()), paths[0])


def _row_of(rows: pa.Table, listed: Path | None) -> dict[str, int]:
    """Row in the features by image name, from the ids file or the order of the table."""
    if listed is None:
        return first_rows(rows)
    names = read_ids(listed)
    refuse_duplicates(listed, names)
    return {name: row for row, name in enumerate(names)}


def first_rows(rows: pa.Table) -> dict[str, int]:
    """The first row of the table for each image."""
    names = rows["image"].to_pylist()
    return {name: row for row, name in zip(range(len(names) - 1, -1, -1), reversed(names), strict=True)}


def read_skipped(path: Path) -> set[str]:
    """Names of the images in `skipped.csv`, whose features could not be made; empty if there is no such file."""
    if not path.is_file():
        return set()
    reader = csv.reader(io.StringIO(read_bytes(path).decode("utf-8", "replace"), newline=""))
    try:
        with values_of_any_length():
            return {row[0] for row in reader if row and row != list(SKIPPED)} - {""}
    except csv.Error as error:
        raise InputError(f"{error}; expected the columns image and reason", where=path) from error


def skipped_text(skipped: Sequence[tuple[str, str]]) -> str:
    """The content of `skipped.csv`; all values are quoted because any may contain a line break."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(SKIPPED)
    writer.writerows(skipped)
    return text.getvalue()
