"""Building an index folder, and adding to one: vectors in batches, and `index.json` last."""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crcl.data.split import Split
from crcl.errors import InputError
from crcl.progress import SILENT, Advance, Progress
from crcl.retrieval.index.dividing import remove_old_cells, update_cells
from crcl.retrieval.index.folder import ABOUT, About, Index, What, about_json, read_about
from crcl.retrieval.scoring import Scorer
from crcl.retrieval.vectors import image_vectors, text_vectors
from crcl.storage import could_not_save, locked, replacing, replacing_folder, write_json

BUSY = "another process is writing this index"
_BATCH = 1024  # images or captions that are encoded between two writes
_MEASURED = 50  # sentences whose search is timed
_ADVICE = "the index is as before: free some disk space and try again"


def run_digest(run: Path) -> str:
    """SHA-256 of a run's weights, by which an index knows its run."""
    with (run / "matcher.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Work:
    """What to index, and how."""

    scorer: Scorer
    splits: Sequence[Split]
    recall: float | None = None
    """The recall that a search must have; None for that of the index so far, or exact search of up to a million."""
    progress: Progress = SILENT


def create(path: Path, about: About, work: Work) -> Index:
    """Write a new index folder, which replaces an old one only when it is complete."""
    with replacing_folder(path.absolute(), busy=BUSY) as fresh:
        for name in ("images", "captions"):
            (fresh / f"{name}.f16").touch()
        write_json(fresh / ABOUT, about_json(about))
        _extend(fresh, about, work)
    return Index.open(path)


def add(path: Path, about: About, work: Work) -> Index:
    """Add the images and captions that an index lacks; images are known by their keys, captions by image and text."""
    with locked(path, busy=BUSY):
        old = read_about(path)
        if (old.digest, old.size) != (about.digest, about.size):
            what = f"is an index of another run, {old.run}"
            raise InputError(what, where=path, hint="name another folder, or index anew with {overwrite}")
        held = Index(path, old)
        for what in get_args(What):
            held.vectors(what)  # refused, before anything is encoded, if they are not whole
        _extend(path, old, work)
    return Index.open(path)


def _extend(path: Path, about: About, work: Work) -> None:
    new = _New(Index(path, about))
    try:
        with work.progress.task("indexing") as advance:
            _append(path, about, new, work, advance)
        about = update_cells(path, new.write(path, about), work.recall, work.progress)
    except OSError as error:
        raise could_not_save(path, error, _ADVICE) from error
    write_json(path / ABOUT, about_json(replace(about, measured=_measure(Index(path, about)))))
    remove_old_cells(path, about)


def _append(path: Path, about: About, new: "_New", work: Work, advance: Advance) -> None:
    """Encode what is new, and write its vectors behind those that are there."""
    scorer, splits = work.scorer, work.splits
    done, total = 0, sum(split.images + len(split) for split in splits)
    with (
        _appending(path / "images.f16", about, about.images) as images,
        _appending(path / "captions.f16", about, about.captions) as captions,
    ):
        for split in splits:
            for batch in _batches(new.take_images(split)):
                images.write(_half(image_vectors(scorer, split, batch)))
                done += len(batch)
                advance(done, total)
            tokens = scorer.tokens(split)
            for batch in _batches(new.take_captions(split)):
                captions.write(_half(text_vectors(scorer, tokens, batch)))
                done += len(batch)
                advance(done, total)
        advance(total, total)
        for file in (images, captions):
            file.flush()
            os.fsync(file.fileno())


class _New:
    """The images and captions that an index lacks, in the order of their vectors."""

    def __init__(self, index: Index) -> None:
        self.position = {key: row for row, key in enumerate(index.images)}
        self.known = set(zip(index.image_of_caption.tolist(), index.captions, strict=True))
        self.keys: list[str] = []
        self.texts: list[str] = []
        self.images: list[int] = []

    def take_images(self, split: Split) -> list[int]:
        """Numbers of the images of a split that are new, which then count as known."""
        new = []
        for number, key in enumerate(split.image_ids):
            if key not in self.position:
                self.position[key] = len(self.position)
                self.keys.append(key)
                new.append(number)
        return new

    def take_captions(self, split: Split) -> list[int]:
        """Numbers of the captions of a split that are new, which then count as known."""
        new = []
        for number, (text, image) in enumerate(zip(split.captions, split.image_index, strict=True)):
            item = self.position[split.image_ids[image]], text
            if item not in self.known:
                self.known.add(item)
                self.images.append(item[0])
                self.texts.append(text)
                new.append(number)
        return new

    def write(self, path: Path, about: About) -> About:
        """Write the tables of what is new; returns the counts with it."""
        if not self.keys and not self.texts:
            return about
        _write_table(path / f"images-{about.parts}.parquet", {"key": self.keys}, pa.schema({"key": pa.string()}))
        schema = pa.schema({"caption": pa.string(), "image": pa.int64()})
        content: dict[str, list[str] | list[int]] = {"caption": self.texts, "image": self.images}
        _write_table(path / f"captions-{about.parts}.parquet", content, schema)
        images, captions = about.images + len(self.keys), about.captions + len(self.texts)
        return replace(about, images=images, captions=captions, parts=about.parts + 1)


def _batches(numbers: list[int]) -> Iterator[np.ndarray]:
    for start in range(0, len(numbers), _BATCH):
        yield np.array(numbers[start : start + _BATCH])


def _appending(path: Path, about: About, rows: int) -> BinaryIO:
    """A file of vectors, open behind the rows that count; what a killed process left behind them is cut off."""
    file = path.open("r+b")
    file.truncate(2 * rows * about.size)
    file.seek(0, os.SEEK_END)
    return file


def _half(vectors: np.ndarray) -> bytes:
    return vectors.astype(np.float16).tobytes()


def _write_table(path: Path, columns: Mapping[str, Sequence[str] | Sequence[int]], schema: pa.Schema) -> None:
    with replacing(path) as temporary:
        pq.write_table(pa.table(dict(columns), schema=schema), temporary)


def _measure(index: Index) -> dict[str, float]:
    """Milliseconds of a search of the images for one caption."""
    captions = index.vectors("captions")
    if not len(captions) or not index.about.images:
        return {}
    chosen = captions[np.linspace(0, len(captions) - 1, min(_MEASURED, len(captions))).astype(np.int64)]
    taken = []
    for query in chosen.astype(np.float32):
        began = time.perf_counter()
        index.search_vectors(query[None])
        taken.append(1000 * (time.perf_counter() - began))
    return {"p50": float(np.median(taken)), "p99": float(np.quantile(taken, 0.99)), "queries": len(taken)}
