"""A folder in the field's precomp layout, where each split has its own files.

{split}_ims.npy    features (images, R, F), or one row per caption; or a folder {split}_ims of such files
{split}_caps.txt   one caption per line
{split}_ids.txt    the image id of each row, one per line; optional
{split}_caps.tsv   instead of the last two (CC152K): image id, caption; no header
"""

import csv
from collections.abc import Sequence
from itertools import groupby
from math import gcd
from pathlib import Path

import numpy as np

from crcl.data.files import read_ids, read_lines, refuse, refuse_duplicates, require
from crcl.data.maps.shards import Shards, open_sharded_features
from crcl.data.rows.splits import in_order
from crcl.data.sources.base import FolderSource, Layout
from crcl.data.split import Split
from crcl.errors import InputError, did_you_mean

IMAGES, FOLDER = "_ims.npy", "_ims"
_WINDOW = 128  # first rows, in which to look for repeated images
_SAMPLES = 64  # images for which all repetitions are compared


def recognises(path: Path) -> bool:
    """Whether a path is a folder in the field's precomp layout."""
    return bool(_stored(path))


class PrecompSource(FolderSource):
    """A folder in the field's precomp layout."""

    def splits(self) -> list[str]:
        """The splits that have features."""
        return list(_stored(Path(self.location.path)))

    def read(self, split: str) -> Split:
        """The pairs of one split."""
        path = Path(self.location.path)
        _require_split(path, split, in_order(self.splits()))
        images = open_sharded_features(_stored(path)[split])
        text, table, listed = (path / f"{split}{ending}" for ending in ("_caps.txt", "_caps.tsv", "_ids.txt"))
        if table.is_file() and not text.is_file():
            names, captions = _read_captions_table(table)
            return _arrange(images, captions, names, text=table, ids=None)
        captions = read_captions(require(text, purpose="one caption per line"))
        if not listed.is_file():
            return _arrange(images, captions, None, text=text, ids=None)
        return _arrange(images, captions, read_ids(listed), text=text, ids=listed)


def _stored(path: Path) -> dict[str, Path]:
    """Where the features of each split are: a file, or a folder of files."""
    folders = (folder for folder in path.glob(f"*{FOLDER}") if any(folder.glob("*.npy")))
    found = {folder.name.removesuffix(FOLDER): folder for folder in folders}
    return found | {file.name.removesuffix(IMAGES): file for file in path.glob(f"*{IMAGES}")}


def read_captions(path: Path) -> list[str]:
    """The captions in a file with one per line; the error lists every empty line."""
    captions = [line.strip() for line in read_lines(path)]
    if not captions:
        raise InputError("empty, expected one caption per line", where=path)
    refuse(
        [
            InputError("empty caption", where=f"{path}:{line}", hint="each line needs a caption")
            for line, caption in enumerate(captions, start=1)
            if not caption
        ]
    )
    return captions


def _require_split(path: Path, split: str, there: list[str]) -> None:
    if split not in there:
        near = did_you_mean(split, there)
        raise InputError(
            f"no split '{split}'{near}, {split}{IMAGES} does not exist; splits: {', '.join(there)}", where=path
        )


def _read_captions_table(path: Path) -> tuple[list[str], list[str]]:
    """Image ids and captions of a two-column `.tsv` without header."""
    names, captions, problems = [], [], []
    reader = csv.reader((line + "\n" for line in read_lines(path)), delimiter="\t")
    try:
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if len(row) != 2:
                problems.append(InputError(f"{len(row)} columns, expected two: image id, caption", where=where))
            elif not row[1].strip():
                hint = "each line needs an image id and a caption"
                problems.append(InputError("empty caption", where=where, hint=hint))
            elif "\n" in row[1].strip():
                hint = "check for a quotation mark that is not closed"
                problems.append(InputError("a caption with several lines", where=where, hint=hint))
            else:
                names.append(row[0].strip())
                captions.append(row[1].strip())
    except csv.Error as error:
        problems.append(InputError(str(error), where=f"{path}:{reader.line_num}"))
    refuse(problems)
    if not captions:
        raise InputError("empty, expected two columns: image id, caption", where=path)
    return names, captions


def _arrange(
    images: np.ndarray | Shards, captions: list[str], names: list[str] | None, *, text: Path, ids: Path | None
) -> Split:
    """Work out the image of each caption from the counts; finds images that are stored once per caption."""
    rows, count = len(images), len(captions)
    source = str(text.with_name(text.name.rsplit("_caps", 1)[0] + IMAGES))
    if count % rows:
        raise InputError(
            f"{count} captions for {rows} images of {source}, which is not a multiple; expected {fitting(count, rows)}",
            where=text,
        )
    stored = _repetitions(images, names) if rows == count else 1
    if names is not None and len(names) not in (rows // stored, rows, count):
        numbers = f"{rows}" if rows == count else f"{rows} (one per image) or {count} (one per caption)"
        raise InputError(f"{len(names)} ids, expected {numbers}, one per line", where=ids or text)
    each = stored * (count // rows)  # captions per image
    if names is None:
        names = [str(row) for row in range(count // each)]
    elif len(names) == count:
        _refuse_mixed(names, each, ids or text)
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


def _refuse_mixed(names: list[str], each: int, path: Path) -> None:
    """Refuse ids, one per caption, by which captions of one image are not one after the other."""
    first: dict[str, int] = {}
    for line, name in enumerate(names):
        before = first.setdefault(name, line)
        if each > 1 and before // each != line // each:
            raise InputError(
                f"lines {before + 1} and {line + 1} name the same image, {name}, but are not among the {each} lines of "
                f"one image",
                where=path,
                hint=f"put the captions of an image one after the other, {each} of each image",
            )


def fitting(count: int, rows: int) -> str:
    """The multiples of the number of images next to `count`, in words."""
    below = count // rows
    choices = [f"{n * rows} captions ({n} per image)" for n in (below, below + 1) if n]
    return " or ".join(choices)


def _repetitions(images: np.ndarray | Shards, names: Sequence[str] | None) -> int:
    """How many consecutive rows each image takes in a file with one row per caption."""
    if names is not None:
        lengths = {len(list(run)) for _, run in groupby(names)}
        if len(lengths) == 1 and 1 < (length := lengths.pop()) < len(names):
            return length
    # ids may be those of captions, which do not show repeated images, so compare the features
    return _repeated_rows(images)


def _repeated_rows(images: np.ndarray | Shards) -> int:
    """The number of equal consecutive rows per image, from a sample of the file; 1 if rows are not repeated."""
    rows = len(images)
    window = _bits(images[:_WINDOW])
    starts = np.flatnonzero((window[1:] != window[:-1]).any(axis=(1, 2))) + 1
    if not len(starts):  # all rows are equal, which proves nothing
        return 1
    period = gcd(*(int(start) for start in starts))  # two equal images in succession give a multiple
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
    """Floats viewed as integers, so that NaN equals NaN."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


LAYOUT = Layout(
    "a folder of features in the field's layout ({split}_ims.npy, {split}_caps.txt)", recognises, PrecompSource.open
)
