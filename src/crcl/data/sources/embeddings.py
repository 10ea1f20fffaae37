"""A folder of embeddings as clip-retrieval writes it, shard by shard.

    img_emb/*.npy         (rows, F) float16 or float32
    text_emb/*.npy        (rows, G), vectors of the captions
    metadata/*.parquet    caption; image_path, image, url or key; optionally split

Files of the three folders whose names end with the same number belong together, row by row.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from crcl.data.cleaning.judged import Judged, written_folder
from crcl.data.cleaning.lists import write_lists
from crcl.data.files import refuse
from crcl.data.maps.shards import Shards
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.vectors import Named, Vectors, VectorsSource, count_rows, read_tables
from crcl.errors import InputError

FOLDERS = {"img_emb": ".npy", "text_emb": ".npy", "metadata": ".parquet"}
_COLUMNS = Named(("image_path", "image", "url", "key"), "caption")


def recognises(path: Path) -> bool:
    """Whether a path is a folder of embeddings."""
    return (path / "img_emb").is_dir()


class EmbeddingsSource(VectorsSource):
    """A folder of embeddings of images and captions."""

    @cached_property
    def _shards(self) -> list[list[Path]]:
        return _find_shards(Path(self.location.path))

    def table(self) -> pa.Table:
        """Columns image, caption and optionally split of the metadata."""
        return read_tables(self._shards[2], _COLUMNS)

    def vectors(self) -> Vectors:
        """The vectors of all files; each must have as many rows as those of the same number."""
        images_of, texts_of, metadata_of = self._shards
        images, texts = Shards.open(images_of), Shards.open(texts_of)
        refuse(_differences(images_of, images, texts_of, np.diff(texts.offsets).tolist()))
        refuse(_differences(images_of, images, metadata_of, [count_rows(file) for file in metadata_of]))
        return Vectors(images, texts, str(Path(self.location.path) / "img_emb"))


def _find_shards(path: Path) -> list[list[Path]]:
    """The files of each folder, sorted by number; each number must be in all three folders."""
    found = [_numbered(path / folder, ending) for folder, ending in FOLDERS.items()]
    problems = []
    for number in sorted(set().union(*found)):
        there = next(files[number] for files in found if number in files)
        problems += [
            InputError(f"no {ending} file with number {number}, which belongs to {there}", where=path / folder)
            for (folder, ending), files in zip(FOLDERS.items(), found, strict=True)
            if number not in files
        ]
    refuse(problems)
    return [[files[number] for number in sorted(files)] for files in found]


def _numbered(folder: Path, ending: str) -> dict[int, Path]:
    """The files of a folder by the number at the end of their names, 0 without a number."""
    if not folder.is_dir():
        raise InputError(f"not found; a folder of embeddings has {', '.join(FOLDERS)}", where=folder)
    files: dict[int, Path] = {}
    for file in sorted(folder.glob(f"*{ending}")):
        digits = re.search(r"[0-9]{1,18}$", file.stem)
        number = int(digits[0]) if digits else 0
        if number in files:
            raise InputError(
                f"has the same number as {files[number].name}",
                where=file,
                hint="give each file of a folder another number",
            )
        files[number] = file
    if not files:
        raise InputError(f"no {ending} files", where=folder)
    return files


def _differences(
    images_of: Sequence[Path], images: Shards, others: Sequence[Path], rows: Sequence[int]
) -> list[InputError]:
    """An error for each file whose number of rows differs from that of its images."""
    return [
        InputError(f"{count} rows, but {image} has {expected}; both need the same number of rows", where=other)
        for image, expected, other, count in zip(images_of, np.diff(images.offsets), others, rows, strict=True)
        if count != expected
    ]


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write lists of what to keep, in a new folder; the keys are those of the metadata, or the names of the images."""
    files = _find_shards(Path(location.path))[2]
    rows = read_tables(files, _COLUMNS)
    keys = _keys(files, rows)
    return written_folder(output, lambda folder: write_lists(folder, judged, keys, rows))


def _keys(files: Sequence[Path], rows: pa.Table) -> pa.ChunkedArray:
    """The column `key` of all files, if they have one, else the names of the images."""
    if not all("key" in pyarrow.parquet.read_schema(file).names for file in files):
        return rows["image"]
    parts = [pyarrow.parquet.read_table(file, columns=["key"])["key"].cast(pa.string()) for file in files]
    keys = pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string())
    return pc.coalesce(keys, rows["image"])


LAYOUT = Layout(
    "a folder of embeddings as clip-retrieval writes it (img_emb, text_emb, metadata)",
    recognises,
    EmbeddingsSource.open,
    clean,
)
