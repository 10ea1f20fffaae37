"""A table of image names and captions (CSV, TSV, JSONL, Parquet) next to a features file with an ids file.

Where the captions come with vectors, a file of them has one row for each row of the table. Features without an ids file
are then read in the same way.
"""

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crcl.data.files import (
    SHOWN,
    open_features,
    read_bytes,
    read_ids,
    refuse,
    refuse_duplicates,
    require,
    values_of_any_length,
)
from crcl.data.shards import Shards
from crcl.data.sources.rows import USUAL, Columns, place, read_rows
from crcl.data.split import Split
from crcl.errors import InputError, did_you_mean

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
SKIPPED = ("image", "reason")
"""The columns of `skipped.csv`."""
HELD_OUT, MOST_HELD_OUT = 0.1, 1000  # share of the images, and how many at the most: all are ranked for all captions
_SEED = 0  # of the held-out images: the same table is always cut in the same way
_SEARCHED = 10_000  # ids among which a near one is looked for; with more it would take minutes
_DEV = dict.fromkeys(("val", "valid", "validation"), "dev")


def is_table(path: Path) -> bool:
    """Whether a path names a table, by its ending."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def read(
    path: Path,
    split: str,
    *,
    features: str | Path | None,
    ids: str | Path | None,
    text_features: str | Path | None = None,
    columns: Columns = USUAL,
    skip_empty: bool = False,
) -> Split:
    """Pairs of one split; its images are those that occur in it, in order of first appearance.

    Rows without an image or a caption are refused, or left out with `skip_empty`.
    """
    table = read_rows(path, columns)
    usable = _whole_rows(table) if skip_empty else np.arange(len(table))
    chosen = usable[rows_of(path, table.take(usable), split)]
    names, captions = (table[column].take(chosen).to_pylist() for column in USUAL)
    _refuse_empty(path, chosen, names, captions, columns)
    texts = None if text_features is None else _open_texts(path, table, Path(text_features))
    stored, listed = _find_features(path, features, ids, by_row=texts is not None)
    images, stored_rows = open_features(stored), _stored_rows(path, table, listed)
    if listed is None and len(images) != len(table):
        raise InputError(
            f"{path}: {len(table)} rows, but {stored} has features of {len(images)} images; "
            "expected one row for each row of features, or an ids file"
        )
    if listed is not None and len(images) != len(stored_rows):
        raise InputError(
            f"{listed}: {len(stored_rows)} ids, but {stored} has features of {len(images)} images; "
            "expected one id on each line for each row of features"
        )
    skipped = (stored if listed is None else listed).with_name("skipped.csv")
    left_out = read_skipped(skipped) - stored_rows.keys()
    if left_out:
        kept = [i for i, name in enumerate(names) if name not in left_out]
        if not kept:
            raise InputError(
                f"{path}: none of the {len(set(names))} images of split '{split}' could be read, {skipped} says why; "
                "mend some, or say in a column 'split' which rows are for train and dev"
            )
        chosen, names, captions = chosen[kept], [names[i] for i in kept], [captions[i] for i in kept]
    if listed is not None:
        _refuse_missing(path, chosen, names, listed, stored_rows)
    number = {name: image for image, name in enumerate(dict.fromkeys(names))}
    return Split(
        captions=captions,
        image_index=np.array([number[name] for name in names], dtype=np.int64),
        features=images,
        image_ids=list(number),
        source=str(stored),
        feature_rows=np.array([stored_rows[name] for name in number], dtype=np.int64),
        caption_rows=chosen,
        text_features=texts,
    )


def _refuse_empty(path: Path, rows: np.ndarray, names: list[str], captions: list[str], columns: Columns) -> None:
    problems = []
    for row, *values in zip(rows, names, captions, strict=True):
        empty = [column for column, value in zip(columns, values, strict=True) if not value]
        problems += [f"{place(path, row)}: empty {column}; each row needs an image and a caption" for column in empty]
    refuse(problems)


def _refuse_missing(path: Path, rows: np.ndarray, names: list[str], listed: Path, stored: dict[str, int]) -> None:
    """Images of the table that the ids file does not list."""
    missing = [(row, name) for row, name in zip(rows, names, strict=True) if name not in stored]
    searched = list(stored) if len(stored) <= _SEARCHED else []
    near = {name: did_you_mean(name, searched) for _, name in missing[:SHOWN]}
    refuse(
        [
            f"{place(path, row)}: image '{name}' has no features, it is not in {listed}{near.get(name, '')}"
            for row, name in missing
        ]
    )


def check(path: Path, columns: Columns = USUAL) -> np.ndarray:
    """Refuse, before features are made, a table that nothing can be learnt from.

    Gives the rows without an image or a caption, counted from 0, which `skip_empty` leaves out.
    """
    table = read_rows(path, columns)
    whole = _whole_rows(table)
    if not len(whole):
        raise InputError(f"{path}: no row has both an image and a caption, in {columns.image} and {columns.caption}")
    used = table.take(whole)
    rows_of(path, used, "dev")
    train = rows_of(path, used, "train")
    if len(train) < 2:
        raise InputError(f"{path}: {len(train)} training pair; a pair is learnt from others, so give more")
    if len(pc.unique(used["image"].take(train))) < 2:
        raise InputError(f"{path}: all training pairs show one image; a caption is compared with others, so give more")
    return np.setdiff1d(np.arange(len(table)), whole)


def _whole_rows(table: pa.Table) -> np.ndarray:
    """Rows that have both an image and a caption."""
    there = pc.and_(pc.not_equal(table["image"], ""), pc.not_equal(table["caption"], ""))
    return np.flatnonzero(there.to_numpy())


def image_names(path: Path, columns: Columns = USUAL) -> list[str]:
    """The image of each row; empty where a row names none."""
    names: list[str] = read_rows(path, columns)["image"].to_pylist()
    return names


def whole_rows(path: Path, columns: Columns = USUAL) -> tuple[list[str], int]:
    """The image of each row that has a caption too, and the number of rows that lack one or the other."""
    table = read_rows(path, columns)
    whole = _whole_rows(table)
    names: list[str] = table["image"].take(whole).to_pylist()
    return names, len(table) - len(whole)


def splits(path: Path, columns: Columns = USUAL) -> list[str]:
    """The values of the column `split`, or train and dev where there is none."""
    return splits_of(read_rows(path, columns))


def splits_of(table: pa.Table) -> list[str]:
    """The splits of a table that is read already."""
    return list(dict.fromkeys(_split_names(table))) if _is_cut(table) else ["train", "dev"]


def rows_of(path: Path, table: pa.Table, split: str) -> np.ndarray:
    """Rows of the table that belong to a split."""
    if _is_cut(table):
        of_row = _split_names(table)
    else:
        held_out = _held_out(path, table["image"].to_numpy())
        of_row = np.where(held_out, "dev", "train")
    chosen = np.flatnonzero(of_row == _split_name(split))
    if not len(chosen):
        there = sorted(set(of_row))
        found = "its column 'split' has" if _is_cut(table) else "without other splits than train there are"
        raise InputError(
            f"{path}: no row of split '{split}'{did_you_mean(split, there)}; {found} {', '.join(there)}. "
            "Training needs train and dev (or val), or train alone: then a tenth of the images is dev"
        )
    return chosen


def _is_cut(table: pa.Table) -> bool:
    """Whether the table says what its rows are for; one whose rows are all for training does not."""
    return "split" in table.column_names and set(_split_names(table)) != {"train"}


def _split_names(table: pa.Table) -> np.ndarray:
    """(rows,) the split of each row."""
    names = table["split"].to_numpy(zero_copy_only=False)
    known = {name: _split_name(name) for name in set(names)}
    return np.array([known[name] for name in names], dtype=object)


def _split_name(name: str) -> str:
    """A split's name in small letters; what others call validation is dev here."""
    small = name.strip().lower()
    return _DEV.get(small, small)


def _held_out(path: Path, images: np.ndarray) -> np.ndarray:
    """(rows,) bool: the captions of a seeded tenth of the images, of 1,000 images at the most."""
    number = {name: image for image, name in enumerate(dict.fromkeys(images))}
    if len(number) < 2:
        raise InputError(
            f"{path}: a single image, '{images[0]}', cannot be cut into train and dev; "
            "add images or a column 'split' that says what each row is for"
        )
    chosen = np.zeros(len(number), dtype=bool)
    count = min(max(1, round(HELD_OUT * len(number))), MOST_HELD_OUT)
    chosen[np.random.default_rng(_SEED).permutation(len(number))[:count]] = True
    return chosen[[number[name] for name in images]]


def _open_texts(path: Path, table: pa.Table, stored: Path) -> Shards:
    """The captions' vectors, one for each row of the table."""
    texts = Shards.open([stored])
    if len(texts) != len(table):
        raise InputError(f"{stored}: {len(texts)} rows, but {path} has {len(table)}; row by row they belong together")
    return texts


def _find_features(
    path: Path, features: str | Path | None, ids: str | Path | None, *, by_row: bool
) -> tuple[Path, Path | None]:
    """The features file and its ids file: as given, or as found next to the table; no ids where rows may do."""
    default = default_features(path)
    stored = Path(features) if features is not None else _first(*default)
    if features is None and not stored.is_file():
        raise InputError(
            f"{path}: no features of its images, neither {default[0].name} nor {default[1].name} beside it; name a "
            "file by --features, make one by `crcl features`, or let `crcl audit` do it all"
        )
    require(stored, purpose="the features of the table's images")
    named = stored.with_name(stored.name.removesuffix(".npy").removesuffix("_ims") + "_ids.txt")
    own = [named, stored.with_name("ids.txt")]
    listed = Path(ids) if ids is not None else _first(*(own if stored.name.endswith("_ims.npy") else own[::-1]))
    if by_row and ids is None and not listed.is_file():
        return stored, None
    return stored, require(listed, purpose=f"the image of each row of {stored.name}, one on each line")


def default_features(path: Path) -> tuple[Path, Path]:
    """Where features are looked for that are not named: next to the table."""
    return path.parent / "features.npy", path.parent / f"{path.stem}_ims.npy"


def _first(*paths: Path) -> Path:
    """The first path that exists, or else the first."""
    return next((path for path in paths if path.is_file()), paths[0])


def _stored_rows(path: Path, table: pa.Table, listed: Path | None) -> dict[str, int]:
    """Row of features by image id; without an ids file it is the row of the table that names the image first."""
    if listed is None:
        names = table["image"].to_pylist()
        return {name: row for row, name in zip(range(len(names) - 1, -1, -1), reversed(names), strict=True)}
    names = read_ids(listed)
    refuse_duplicates(listed, names)
    return {name: row for row, name in enumerate(names)}


def read_skipped(path: Path) -> set[str]:
    """Images that `crcl features` could not use: their pairs are left out. Nothing where there is no such file."""
    if not path.is_file():
        return set()
    reader = csv.reader(io.StringIO(read_bytes(path).decode("utf-8", "replace"), newline=""))
    try:
        with values_of_any_length():
            return {row[0] for row in reader if row and row != list(SKIPPED)} - {""}
    except csv.Error as error:
        raise InputError(f"{path}: {error}; expected the columns image and reason") from error
