"""A folder of images with captions in text files of the same name, as used to train text-to-image models.

cat.png  cat.txt                      one caption per line
train/cat.png  train/cat.txt          folders train, val and test are splits; other folders are part of the name
00000/000000012.jpg  .txt  .json      output `files` of img2dataset, beside 00000.parquet
"""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from crcl.data.cleaning.folders import clean_captioned
from crcl.data.cleaning.judged import Judged
from crcl.data.files import SHOWN
from crcl.data.pictures.files import Files, require_folder
from crcl.data.rows.folders import entries, has_captions, splits_of_names
from crcl.data.rows.tables import tidied
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.content import Content, RowsSource
from crcl.errors import InputError

_LEFT_OUT = {
    "image without text": "images have no caption: no .txt of the same name, or an empty one",
    "text without image": "text files have no image of the same name",
    "same name": "images share their name with an image of another format, which has the captions",
    "unreadable": "images have a .txt that is not UTF-8, leads outside of the folder or cannot be read",
}


def recognises(path: Path) -> bool:
    """Whether a path is a folder with an image and captions beside it; a run folder is not."""
    try:
        return path.is_dir() and not (path / "config.json").exists() and has_captions(path)
    except (OSError, InputError):
        return False


def read(location: Location) -> Content:
    """A row for each caption; images are sorted by path."""
    folder = require_folder(Path(location.path))
    counts: Counter[str] = Counter()
    names: list[str] = []
    captions: list[str] = []
    for entry in entries(folder, counts):
        captions += entry.captions
        names += [entry.image] * len(entry.captions)
    if not captions:
        found = sorted(ascii(file.name)[1:-1] for file in folder.iterdir())[:SHOWN]
        raise InputError(
            f"no image has a .txt with captions beside it; it contains {', '.join(found) or 'no files'}",
            where=folder,
            hint="write the captions of cat.png to cat.txt, one per line",
        )
    splits = splits_of_names(names)
    columns = {"image": names, "caption": captions} | ({} if splits is None else {"split": splits})
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    notes = [f"{counts[kind]:,} {what}" for kind, what in _LEFT_OUT.items() if counts[kind]]
    return Content(tidied(str(folder), table), Files(folder), (*notes, *_failed_downloads(folder)))


def _failed_downloads(folder: Path) -> list[str]:
    """A sentence about rows of img2dataset's tables that have no image."""
    failed = 0
    for file in sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")]):
        try:
            if {"key", "status"} <= set(pyarrow.parquet.read_schema(file).names):
                status = pyarrow.parquet.read_table(file, columns=["status"])["status"].cast(pa.string())
                failed += int(pc.sum(pc.not_equal(pc.fill_null(status, ""), "success")).as_py() or 0)
        except (pa.ArrowException, ValueError, OSError):  # of no use here, and no part of the pairs
            continue
    return [f"{failed:,} downloads had failed, as img2dataset's tables say; they have no image"] if failed else []


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write the text files again, in a new folder."""
    return clean_captioned(Path(location.path), judged, output)


LAYOUT = Layout(
    "a folder of images with captions in .txt files beside them",
    recognises,
    RowsSource.opening(read),
    clean,
    options=frozenset({"images"}),
)
