"""Readers of pairs, chosen by looking at the path.

- a folder in the field's layout: `{split}_ims.npy`, `{split}_caps.txt`, optionally `{split}_ids.txt`;
- the same with `{split}_caps.tsv` (image id, caption; no header), as CC152K has it;
- a table (`.csv`, `.tsv`, `.jsonl`, `.parquet`) next to a features file with an ids file: see `sources.table`;
- a folder of embeddings with `img_emb/`, `text_emb/` and `metadata/`: see `crcl.data.sources.embeddings`.
"""

import csv
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import gcd
from pathlib import Path

import numpy as np

from crcl.data.files import SHOWN, open_features, read_ids, read_lines, refuse, refuse_duplicates, require
from crcl.data.sources import embeddings
from crcl.data.sources import table as tables
from crcl.data.sources.rows import USUAL, Columns
from crcl.data.split import Split
from crcl.errors import InputError, did_you_mean

_IMAGES = "_ims.npy"
_WINDOW = 128  # rows looked at for the number of repetitions
_SAMPLES = 64  # repeated images that are compared in full


def read(
    path: str | Path,
    split: str = "train",
    *,
    features: str | Path | None = None,
    ids: str | Path | None = None,
    text_features: str | Path | None = None,
    columns: Columns = USUAL,
    skip_empty: bool = False,
) -> Split:
    """Pairs of one split of a folder or a table.

    `features` and `ids` say where a table's images are, `text_features` where vectors of its captions are, and
    `columns` what the table calls its images and captions; `skip_empty` leaves out its rows that lack one.
    """
    path = Path(path)
    if tables.is_table(path):
        return tables.read(
            path,
            split,
            features=features,
            ids=ids,
            text_features=text_features,
            columns=columns,
            skip_empty=skip_empty,
        )
    if any(given is not None for given in (features, ids, text_features)):
        raise InputError(f"{path}: features and ids are given for a table only; a folder holds its own")
    if embeddings.is_embeddings(path):
        return embeddings.read(path, split)
    _require_split(path, split)
    images = open_features(path / f"{split}{_IMAGES}")
    text, table, listed = (path / f"{split}{ending}" for ending in ("_caps.txt", "_caps.tsv", "_ids.txt"))
    if table.is_file() and not text.is_file():
        names, captions = _read_captions_table(table)
        return _arrange(images, captions, names, text=table, ids=None)
    captions = read_captions(require(text, purpose="one caption per line"))
    if not listed.is_file():
        return _arrange(images, captions, None, text=text, ids=None)
    return _arrange(images, captions, read_ids(listed), text=text, ids=listed)


def splits(path: str | Path, columns: Columns = USUAL) -> list[str]:
    """The splits that are there: train, dev, test first, others after them."""
    path = Path(path)
    if tables.is_table(path):
        return in_order(tables.splits(path, columns))
    if embeddings.is_embeddings(path):
        return in_order(embeddings.splits(path))
    if not path.is_dir():
        kinds = ", ".join(tables.SUFFIXES)
        if path.exists():
            raise InputError(f"{path}: expected a folder with {{split}}{_IMAGES} files, or a table ({kinds})")
        require(path, purpose=f"a folder with {{split}}{_IMAGES} files, or a table ({kinds})")
    return in_order(file.name.removesuffix(_IMAGES) for file in path.glob(f"*{_IMAGES}"))


def holds_splits(path: Path) -> bool:
    """Whether a folder is in the field's layout."""
    return any(path.glob(f"*{_IMAGES}"))


def in_order(names: Iterable[str]) -> list[str]:
    """Names of splits, each once: train, dev, test first, others after them by name."""
    known = ["train", "dev", "test"]
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))


def read_captions(path: Path) -> list[str]:
    """One caption per line; every empty one is named."""
    captions = [line.strip() for line in read_lines(path)]
    if not captions:
        raise InputError(f"{path}: empty, expected one caption per line")
    refuse(
        [
            f"{path}:{line}: empty caption; each line needs a caption"
            for line, caption in enumerate(captions, start=1)
            if not caption
        ]
    )
    return captions


def _require_split(path: Path, split: str) -> None:
    there = splits(path)
    if split in there:
        return
    if there:
        near = did_you_mean(split, there)
        raise InputError(f"{path}: no split '{split}'{near}, there is no {split}{_IMAGES}; splits: {', '.join(there)}")
    found = sorted(file.name for file in path.iterdir())
    lone = [name for name in found if name.endswith(tables.SUFFIXES) and not name.endswith("_caps.tsv")]
    hint = f"; to read a table give its name: {path / lone[0]}" if lone else ""
    raise InputError(
        f"{path}: no {split}{_IMAGES}{did_you_mean(split + _IMAGES, found)}{hint}; "
        f"the folder holds {', '.join(found[:SHOWN]) or 'nothing'}"
    )


def _read_captions_table(path: Path) -> tuple[list[str], list[str]]:
    """Image ids and captions of a two-column `.tsv` without header."""
    names, captions, problems = [], [], []
    reader = csv.reader((line + "\n" for line in read_lines(path)), delimiter="\t")
    try:
        for row in reader:
            if len(row) != 2:
                problems.append(f"{path}:{reader.line_num}: {len(row)} columns, expected two: image id, caption")
            elif not row[1].strip():
                problems.append(f"{path}:{reader.line_num}: empty caption; each line needs an image id and a caption")
            elif "\n" in row[1].strip():
                problems.append(
                    f"{path}:{reader.line_num}: a caption of several lines; is a quotation mark not closed?"
                )
            else:
                names.append(row[0].strip())
                captions.append(row[1].strip())
    except csv.Error as error:
        problems.append(f"{path}:{reader.line_num}: {error}")
    refuse(problems)
    if not captions:
        raise InputError(f"{path}: empty, expected two columns: image id, caption")
    return names, captions


def _arrange(
    images: np.ndarray, captions: list[str], names: list[str] | None, *, text: Path, ids: Path | None
) -> Split:
    """Find the captions' images from the counts, and images that are stored once per caption."""
    rows, count = len(images), len(captions)
    source = str(text.with_name(text.name.rsplit("_caps", 1)[0] + _IMAGES))
    if count % rows:
        raise InputError(
            f"{text}: {count} captions for {rows} images of {source}: no number of captions per image fits; "
            f"expected {_fitting(count, rows)}"
        )
    stored = _repetitions(images, names) if rows == count else 1
    if names is not None and len(names) not in (rows // stored, rows, count):
        fitting = f"{rows}" if rows == count else f"{rows} (one per image) or {count} (one per caption)"
        raise InputError(f"{ids}: {len(names)} ids, expected {fitting}, one on each line")
    each = stored * (count // rows)  # captions per image
    if names is None:
        names = [str(row) for row in range(count // each)]
    elif len(names) == count:
        names = names[::each]
    if ids is not None:
        refuse_duplicates(ids, names)
    return Split(
        captions=captions,
        image_index=np.arange(count, dtype=np.int64) // each,
        features=images,
        image_ids=names,
        source=source,
        feature_rows=np.arange(0, rows, stored, dtype=np.int64) if stored > 1 else None,
    )


def _fitting(count: int, rows: int) -> str:
    """The numbers of captions next to `count` that would fit."""
    below = count // rows
    choices = [f"{n * rows} captions ({n} per image)" for n in (below, below + 1) if n]
    return " or ".join(choices)


def _repetitions(images: np.ndarray, names: Sequence[str] | None) -> int:
    """How often each image is stored in a row, where there are as many rows as captions."""
    if names is not None:
        lengths = {len(list(run)) for _, run in groupby(names)}
        if len(lengths) == 1 and 1 < (length := lengths.pop()) < len(names):
            return length
    # ids of captions do not show repeated images, so the features are asked as well
    return _repeated_rows(images)


def _repeated_rows(images: np.ndarray) -> int:
    """The period k with which equal rows follow each other, from a sample of the file; 1 where there is none."""
    rows = len(images)
    window = _bits(images[:_WINDOW])
    starts = np.flatnonzero((window[1:] != window[:-1]).any(axis=(1, 2))) + 1
    if not len(starts):  # equal throughout, which says nothing
        return 1
    period = gcd(*(int(start) for start in starts))  # two equal images in a row must not mislead
    if rows <= _WINDOW:
        period = gcd(period, rows)
    if period < 2 or rows % period:
        return 1
    for image in np.unique(np.linspace(0, rows // period - 1, _SAMPLES).astype(np.int64)):
        group = _bits(images[image * period : (image + 1) * period])
        if (group != group[0]).any():
            return 1
    return period


def _bits(values: np.ndarray) -> np.ndarray:
    """Floats as whole numbers, so that a NaN equals itself."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
