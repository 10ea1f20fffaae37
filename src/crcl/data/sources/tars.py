"""Tar files of images and captions, as webdataset reads and img2dataset writes them.

    00000.tar        KEY.jpg with KEY.txt or KEY.json
    00000.parquet    optional, one row for each download: key, caption, status

A folder of tars, one with folders of tars (train, val), or one tar. A key is all of a member's name up to the first dot
of its base name. The caption is the text, else `caption`, `text` or `captions` of the JSON, else that of the table.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crcl.data.cache import cache_folders, kept
from crcl.data.cleaning.judged import Judged, written_folder
from crcl.data.cleaning.lists import write_lists
from crcl.data.cleaning.tars import Part, clean_tars
from crcl.data.files import require
from crcl.data.pictures.tars import Tars, is_index, write_index
from crcl.data.rows.samples import Samples, Shard, file_identity, read_samples, shard_identity
from crcl.data.rows.splits import SPLIT_OF
from crcl.data.rows.tables import USUAL
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.content import Content, RowsSource
from crcl.errors import InputError
from crcl.progress import reading_task

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_SHOWN = 3  # names in a note
_LOOKED_AT = 100  # folders, when a layout is recognised

_NOTES = {
    "failed": "{} that failed, as the tables beside the tars say, {has} no image",
    "no caption": "{} without a caption {is} left out",
    "no image": "{} without an image {is} left out",
    "undecodable": "{} that {is} not UTF-8 text or a JSON object {was} ignored",
    "repeated": "{} with a name that its tar had before {was} ignored",
    "several": "{} more of one sample {was} ignored: its first one counts",
    "names": "{} with an absolute name, `..` in it or a line break {was} ignored",
    "links": "{} that {is} no plain file (a link, a device, a sparse file) {was} ignored and not followed",
    "tables": "{} beside a tar cannot be read and {was} ignored",
}
_WORDS = {
    "failed": ("download", "downloads"),
    "no caption": ("image", "images"),
    "no image": ("caption", "captions"),
    "several": ("image", "images"),
    "tables": ("table", "tables"),
}


def recognises(path: Path) -> bool:
    """Whether a path is a tar, or a folder with tars in it or in its folders."""
    try:
        if not path.is_dir():
            return _is_tar(path.name) and path.is_file()
        return not (path / "config.json").exists() and _has_tars(path)
    except OSError:
        return False


def _has_tars(path: Path) -> bool:
    folders: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if _is_tar(entry.name) and entry.is_file():
                return True
            if len(folders) < _LOOKED_AT and entry.is_dir():
                folders.append(entry.path)
    if (path / "metadata").is_dir():  # embeddings, or a pool of DataComp, whose vectors are of more use than its tars
        return False
    for folder in folders:
        with os.scandir(folder) as entries:
            if any(
                _is_tar(entry.name) and entry.is_file() for entry, _ in zip(entries, range(_LOOKED_AT), strict=False)
            ):
                return True
    return False


def _is_tar(name: str) -> bool:
    return name.lower().endswith((".tar", *COMPRESSED)) and not name.startswith(".")


def find_shards(path: Path) -> list[Shard]:
    """All tars of a folder and its folders, sorted by name; their splits by the folder or the file name."""
    if path.is_dir():
        below = [path, *sorted(folder for folder in path.iterdir() if folder.is_dir())]
        files = [file for folder in below for file in sorted(folder.iterdir()) if _is_tar(file.name) and file.is_file()]
    else:
        files = [require(path, purpose="a .tar file, or a folder of these")]
    packed = [file for file in files if file.name.lower().endswith(COMPRESSED)]
    if packed:
        raise InputError(
            "a compressed tar, so that no image in it can be read by itself",
            where=packed[0],
            hint="unpack it to a plain .tar",
        )
    if not files:
        raise InputError("contains no .tar files", where=path)
    root = path if path.is_dir() else path.parent
    shards = [Shard(file.relative_to(root).as_posix(), file) for file in files]
    splits = [_split_of(shard.name) for shard in shards]
    if any(splits):
        return [shard._replace(split=split or "train") for shard, split in zip(shards, splits, strict=True)]
    return shards


def _split_of(name: str) -> str:
    """The split that a shard's path names: `val/00000.tar`, `cc3m-val-00000.tar`; empty without one."""
    folder, _, file = name.rpartition("/")
    words = [folder, *re.split(r"[-_.]", file)]
    return next((SPLIT_OF[word.lower()] for word in words if word.lower() in SPLIT_OF), "")


class _Data(NamedTuple):
    """All samples of all shards, in order."""

    shards: list[Shard]
    samples: pa.Table
    """As `samples.SCHEMA`, and the number of the shard."""
    names: pa.ChunkedArray
    """(samples,) of the images, each another one."""
    keys: pa.ChunkedArray
    """(samples,) the names without the extensions."""
    order: pa.Array
    """(samples,) the samples sorted by name."""
    notes: tuple[str, ...]

    def rows(self) -> pa.Table:
        """Columns image, caption and optionally split."""
        of_row = self.sample_of_row()
        images = self.names.take(of_row).cast(pa.string())
        rows = pa.table({"image": images, "caption": pc.list_flatten(self.samples["captions"])})
        if self.shards[0].split:
            splits = pa.array([shard.split for shard in self.shards])
            rows = rows.append_column("split", splits.take(self.samples["shard"].take(of_row).combine_chunks()))
        return rows

    def sample_of_row(self) -> pa.Array:
        """(rows,) the number of each row's sample."""
        counts = pc.list_value_length(self.samples["captions"]).to_numpy()
        return pa.array(np.repeat(np.arange(len(counts)), counts))


def _gather(location: Location) -> _Data:
    path = Path(location.path)
    shards = find_shards(path)
    tables, counts, damaged = [], Counter[str](), []
    for number, (shard, found) in enumerate(_read_all(shards, _fields(location))):
        counts.update(found.counts)
        damaged += [f"{shard.name} ({found.damage})"] if found.damage else []
        tables.append(found.table.append_column("shard", pa.array(np.full(len(found.table), number, np.int32))))
    notes = _notes(counts, damaged, len(shards))
    samples = pa.concat_tables(tables)
    if not len(samples):
        raise InputError(
            "; ".join(["no image with a caption in it", *notes]),
            where=path,
            hint="a sample is KEY.jpg (or .png, .webp, ...) with KEY.txt or KEY.json",
        )
    keys = samples["key"].cast(pa.large_string())
    names = pc.binary_join_element_wise(keys, samples["extension"].cast(pa.large_string()), _text("."))
    order = pc.sort_indices(names)
    if _has_repetition(names.take(order)):
        of = pa.array([f"{shard.name}/" for shard in shards], pa.large_string()).take(samples["shard"].combine_chunks())
        keys, names = (pc.binary_join_element_wise(of, values.combine_chunks(), _text("")) for values in (keys, names))
        keys, names = pa.chunked_array([keys]), pa.chunked_array([names])
        order = pc.sort_indices(names)
        notes += ("keys occur in several tars, so images are named TAR/KEY",)
    return _Data(shards, samples, names, keys, order, notes)


def _read_all(shards: Sequence[Shard], fields: Sequence[str]) -> Iterator[tuple[Shard, Samples]]:
    """The samples of each shard; the progress is shown in bytes, since tars differ in size."""
    sizes = [file_identity(shard.path)[1] for shard in shards]
    total, done = sum(sizes), 0
    with reading_task("indexing tars") as advance:
        for shard, size in zip(shards, sizes, strict=True):
            begin = done
            yield shard, read_samples(shard, fields, advance=lambda place: advance(begin + place, total))  # noqa: B023
            done += size
            advance(done, total)


def _text(value: str) -> pa.Scalar:
    return pa.scalar(value, pa.large_string())


def _has_repetition(values: pa.ChunkedArray) -> bool:
    """Whether a sorted array has the same value twice."""
    return bool(pc.any(pc.equal(values.slice(1), values.slice(0, len(values) - 1))).as_py())


def _notes(counts: Counter[str], damaged: Sequence[str], shards: int) -> tuple[str, ...]:
    notes = []
    for kind, sentence in _NOTES.items():
        count = counts[kind]
        if count:
            one, more = _WORDS.get(kind, ("member", "members"))
            many = (
                {"is": "are", "was": "were", "has": "have"} if count > 1 else {"is": "is", "was": "was", "has": "has"}
            )
            notes.append(sentence.format(f"{count:,} {more if count > 1 else one}", **many))
    if damaged:
        rest = f" and {len(damaged) - _SHOWN:,} more" if len(damaged) > _SHOWN else ""
        listed = ", ".join(damaged[:_SHOWN])
        notes.append(f"{len(damaged):,} of {shards:,} tars could not be read to the end: {listed}{rest}")
    return tuple(notes)


def _fields(location: Location) -> tuple[str, ...]:
    """The key of the JSON that has the captions, if the user names another one than the usual."""
    return () if location.caption_column == USUAL.caption else (location.caption_column,)


def read(location: Location) -> Content:
    """The pairs of all tars; the images stay where they lie."""
    data = _gather(location)
    return Content(data.rows(), Tars(_index(location, data)), data.notes)


def _index(location: Location, data: _Data) -> Path:
    """The index of the images in the cache folder; made if it is not there."""
    shards = [file_identity(shard.path) for shard in data.shards]
    known = json.dumps([(shard.name, shard_identity(shard, _fields(location))) for shard in data.shards])
    name = f"{hashlib.sha256(known.encode()).hexdigest()[:40]}.arrow"
    folders = cache_folders("tars")
    if is_index(folders[0] / name):
        return folders[0] / name
    images = pa.table({"name": data.names, **{of: data.samples[of] for of in ("shard", "offset", "size")}})
    write = partial(write_index, images=images.take(data.order), shards=shards)
    for folder in folders:
        path = kept(folder, name, write)
        if path is not None:
            return path
    raise InputError("no index of its images could be written", where=location.path, hint="free some disk space")


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write lists of what to keep, or the tars again without the suspects, into a new folder."""
    data = _gather(location)
    rows = data.rows()
    if judged.rewrite:
        return written_folder(
            output, lambda folder: clean_tars(_parts(data), rows, judged, folder, fields=_fields(location))
        )
    of_row = data.sample_of_row()
    shards = pa.array([shard.name for shard in data.shards]).take(data.samples["shard"].take(of_row).combine_chunks())
    return written_folder(
        output, lambda folder: write_lists(folder, judged, data.keys.take(of_row), rows, more={"shard": shards})
    )


def _parts(data: _Data) -> Iterator[Part]:
    """Each tar with the rows of each of its keys."""
    counts = pc.list_value_length(data.samples["captions"]).to_numpy()
    ends = np.cumsum(counts)
    of = data.samples["shard"].to_numpy()
    for number, shard in enumerate(data.shards):
        first, last = np.searchsorted(of, [number, number + 1])
        keys = data.samples["key"].slice(first, last - first).to_pylist()
        rows = {
            key: range(end - count, end)
            for key, end, count in zip(keys, ends[first:last].tolist(), counts[first:last].tolist(), strict=True)
        }
        yield Part(shard.name, shard.path, shard.table, rows)


LAYOUT = Layout(
    "tars of images and captions, as webdataset and img2dataset have them",
    recognises,
    RowsSource.opening(read),
    clean,
    as_folder=True,
    options=frozenset({"rewrite"}),
)
