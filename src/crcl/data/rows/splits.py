"""The splits of a table's rows, and which rows are complete."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crcl.errors import InputError, did_you_mean

HELD_OUT, MOST_HELD_OUT = 0.1, 1000  # share and maximum of the images: evaluation ranks all images for all captions
_SEED = 0  # fixed, so that the same table always gives the same dev split
NONE: Mapping[str, bytes] = MappingProxyType({})
"""No content of images is known."""
_NAMES = {
    "train": ("train", "training", "restval"),
    "dev": ("dev", "val", "valid", "validation"),
    "test": ("test", "testing", "eval", "evaluation"),
}
SPLIT_OF = {name: split for split, names in _NAMES.items() for name in names}
"""The split that a name stands for: as in the library `datasets`; and Karpathy's restval, which counts as train."""


def in_order(names: Iterable[str]) -> list[str]:
    """Unique names of splits: train, dev, test first, then others by name."""
    known = ["train", "dev", "test"]
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))


def splits_of(rows: pa.Table) -> list[str]:
    """The values of the column `split` (without it all is train), and dev, which is held out of train if need be."""
    names = list(dict.fromkeys(_split_names(rows)))
    return [*names, "dev"] if _needs_dev(names) else names


def rows_of(name: str, rows: pa.Table, split: str, copies: Mapping[str, bytes] = NONE) -> np.ndarray:
    """Row numbers of a split.

    Args:
        name: The name of the data in messages.
        rows: All rows.
        split: The name of the split.
        copies: A hash of the content of each image by its name, if known: copies are held out together.
    """
    of_row = _split_names(rows)
    if _needs_dev(of_row):
        train = np.flatnonzero(of_row == "train")
        held_out = _held_out(name, rows["image"].take(train).to_numpy(), copies)
        of_row[train[held_out]] = "dev"
    chosen = np.flatnonzero(of_row == split_name(split))
    if not len(chosen):
        there = sorted(set(of_row))
        raise InputError(
            f"no row of split '{split}'{did_you_mean(split, there)}; splits: {', '.join(there)}",
            where=name,
            hint="name one of these; training needs train, of which a tenth becomes dev if there is no dev or val",
        )
    return chosen


def whole_rows(rows: pa.Table) -> np.ndarray:
    """Numbers of the rows that have both an image and a caption."""
    there = pc.and_(pc.not_equal(rows["image"], ""), pc.not_equal(rows["caption"], ""))
    return np.flatnonzero(there.to_numpy())


def split_name(name: str) -> str:
    """The split that a name stands for, such as `dev` for `Validation`; any other name in lower case."""
    small = name.strip().lower()
    return SPLIT_OF.get(small, small)


def _needs_dev(names: Iterable[str]) -> bool:
    """Whether some of train must be held out as dev."""
    there = set(names)
    return "train" in there and "dev" not in there


def _split_names(rows: pa.Table) -> np.ndarray:
    """(rows,) the split of each row, as the data says."""
    if "split" not in rows.column_names:
        return np.full(len(rows), "train", dtype=object)
    names = rows["split"].to_numpy(zero_copy_only=False)
    known = {name: split_name(name) for name in set(names)}
    return np.array([known[name] for name in names], dtype=object)


def _held_out(name: str, images: np.ndarray, copies: Mapping[str, bytes]) -> np.ndarray:
    """(rows,) bool, the rows of the held-out images: a random tenth, at most 1,000 images, and the copies of these."""
    number = {image: position for position, image in enumerate(dict.fromkeys(images))}
    if len(number) < 2:
        raise InputError(
            f"only one image, '{images[0]}', which cannot be split into train and dev",
            where=name,
            hint="add images, or a column 'split' with the split of each row",
        )
    chosen = np.zeros(len(number), dtype=bool)
    count = min(max(1, round(HELD_OUT * len(number))), MOST_HELD_OUT)
    chosen[np.random.default_rng(_SEED).permutation(len(number))[:count]] = True
    return _with_copies(chosen, list(number), copies)[[number[image] for image in images]]


def _with_copies(chosen: np.ndarray, images: list[str], copies: Mapping[str, bytes]) -> np.ndarray:
    """The held-out images, where copies follow the first of them; without copies the same as `chosen`.

    Copies stay in train if they would double what is held out, and where they are all on one side, nothing changes.
    """
    groups: dict[bytes, list[int]] = {}
    for place, image in enumerate(images):
        if image in copies:
            groups.setdefault(copies[image], []).append(place)
    together, most = chosen.copy(), 2 * int(chosen.sum())
    for group in groups.values():
        if len(group) > 1:
            together[group] = False
            together[group] = chosen[group[0]] and together.sum() + len(group) <= most
    return together if together.any() and not together.all() else chosen
