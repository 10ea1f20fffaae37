"""Which rows of a table belong to which split, and which of them are whole."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crcl.errors import InputError, did_you_mean

HELD_OUT, MOST_HELD_OUT = 0.1, 1000  # share of the images, and how many at the most: all are ranked for all captions
_SEED = 0  # of the held-out images: the same table is always cut in the same way
_DEV = dict.fromkeys(("val", "valid", "validation"), "dev")


def in_order(names: Iterable[str]) -> list[str]:
    """Names of splits, each once: train, dev, test first, others after them by name."""
    known = ["train", "dev", "test"]
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))


def splits_of(rows: pa.Table) -> list[str]:
    """The values of the column `split`, or train and dev where there is none."""
    return list(dict.fromkeys(_split_names(rows))) if _is_cut(rows) else ["train", "dev"]


def rows_of(name: str, rows: pa.Table, split: str) -> np.ndarray:
    """Numbers of the rows that belong to a split; `name` is what messages call the data."""
    if _is_cut(rows):
        of_row = _split_names(rows)
    else:
        held_out = _held_out(name, rows["image"].to_numpy())
        of_row = np.where(held_out, "dev", "train")
    chosen = np.flatnonzero(of_row == split_name(split))
    if not len(chosen):
        there = sorted(set(of_row))
        found = "its column 'split' has" if _is_cut(rows) else "without other splits than train there are"
        raise InputError(
            f"no row of split '{split}'{did_you_mean(split, there)}; {found} {', '.join(there)}. "
            "Training needs train and dev (or val), or train alone: then a tenth of the images is dev",
            where=name,
        )
    return chosen


def whole_rows(rows: pa.Table) -> np.ndarray:
    """Numbers of the rows that have both an image and a caption."""
    there = pc.and_(pc.not_equal(rows["image"], ""), pc.not_equal(rows["caption"], ""))
    return np.flatnonzero(there.to_numpy())


def split_name(name: str) -> str:
    """A split's name in small letters; what others call validation is dev here."""
    small = name.strip().lower()
    return _DEV.get(small, small)


def _is_cut(rows: pa.Table) -> bool:
    """Whether the table says what its rows are for; one whose rows are all for training does not."""
    return "split" in rows.column_names and set(_split_names(rows)) != {"train"}


def _split_names(rows: pa.Table) -> np.ndarray:
    """(rows,) the split of each row."""
    names = rows["split"].to_numpy(zero_copy_only=False)
    known = {name: split_name(name) for name in set(names)}
    return np.array([known[name] for name in names], dtype=object)


def _held_out(name: str, images: np.ndarray) -> np.ndarray:
    """(rows,) bool: the captions of a seeded tenth of the images, of 1,000 images at the most."""
    number = {image: position for position, image in enumerate(dict.fromkeys(images))}
    if len(number) < 2:
        raise InputError(
            f"a single image, '{images[0]}', cannot be cut into train and dev",
            where=name,
            hint="add images or a column 'split' that says what each row is for",
        )
    chosen = np.zeros(len(number), dtype=bool)
    count = min(max(1, round(HELD_OUT * len(number))), MOST_HELD_OUT)
    chosen[np.random.default_rng(_SEED).permutation(len(number))[:count]] = True
    return chosen[[number[image] for image in images]]
