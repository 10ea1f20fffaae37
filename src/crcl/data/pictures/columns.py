"""Images in a column of Parquet files, read by file, row group and row.

An image has the name that the file gives it (the field `path`, or the column `key`). Rows that repeat a name show one
image if their bytes are the same; other bytes are named `NAME#ROW`, by the first row that has them, counted from 1 over
all files. Without a name an image is called `FILE:ROW`.
"""

import hashlib
import os
import re
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from crcl.data.pictures.base import MOST_BYTES, UnusableError
from crcl.data.pictures.files import check_name
from crcl.data.rows.cells import Cells
from crcl.errors import InputError

_CHUNK = 64 * 2**20  # bytes of images that are read at once; larger row groups are read in parts
_BATCH = 256  # rows that are looked at together when a column is passed through
_BUFFER = 2**20  # bytes that are read ahead: without it all of a column in a row group is read at once


@dataclass(frozen=True)
class ParquetImages:
    """Images in the rows of Parquet files, all of which have the same columns."""

    folder: Path
    files: tuple[str, ...]
    """Names relative to the folder, in order."""
    cells: Cells
    stamps: tuple[tuple[int, int], ...]
    """Size and time of each file: what has changed since is not read."""

    @classmethod
    def at(cls, folder: Path, files: tuple[str, ...], cells: Cells) -> "ParquetImages":
        """The images in files of a folder."""
        return cls(folder, files, cells, tuple(_stamp(folder / file) for file in files))

    def names(self) -> pa.Array:
        """The name of the image in each row; empty where there is none."""
        return _names(self)

    def read(self, name: str, *, most: int = MOST_BYTES) -> bytes:
        """The bytes of an image."""
        try:
            content = _reader(self, os.getpid()).read(name)
        except (InputError, pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UnusableError(f"cannot be read ({' '.join(str(error).split())[:200]})") from error
        if content is None:
            raise UnusableError("only its path is in the Parquet file, not its bytes")
        if not content:
            raise UnusableError("empty file")
        if len(content) > most:
            raise UnusableError(f"{len(content):,} bytes, more than {most:,}")
        return content

    @contextmanager
    def opened(self, number: int) -> Iterator[pa.parquet.ParquetFile]:
        """One of the files; the error for one that cannot be read names it."""
        path = self.folder / self.files[number]
        try:
            with pa.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
                if _stamp(path) != self.stamps[number]:
                    raise InputError("has changed since it was read", where=path, hint="read it again")
                yield file
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last one: a name of a column
            raise unreadable(path, error) from error

    def own_names(self) -> tuple[pa.Array, np.ndarray]:
        """The names of all rows in the data itself, null where there is none; and the first row of each file."""
        parts, starts = [], [0]
        for number in range(len(self.files)):
            with self.opened(number) as file:
                count = file.metadata.num_rows
                if self.cells.names is None:
                    parts.append(pa.nulls(count, pa.string()))
                else:
                    table = file.read(columns=[self.cells.names])
                    table.validate(full=True)
                    parts.append(self.cells.names_of(table))
                starts.append(starts[-1] + count)
        return pa.concat_arrays(parts), np.array(starts)

    def label(self, number: int) -> str:
        """The name of a file within names of images."""
        try:
            check_name(self.files[number])
        except UnusableError:
            return f"file {number + 1}"
        return self.files[number]

    def walk(self, number: int, wanted: np.ndarray | None = None) -> Iterator[tuple[int, pa.Array]]:
        """The bytes in a file, with the row that they begin at; only row groups that have a wanted row, if given."""
        with self.opened(number) as file:
            begin = 0
            for group in range(file.num_row_groups):
                end = begin + file.metadata.row_group(group).num_rows
                if wanted is None or bool(((wanted >= begin) & (wanted < end)).any()):
                    at = begin
                    for batch in file.iter_batches(_BATCH, row_groups=[group], columns=[self.cells.content]):
                        yield at, self.cells.contents_of(batch)
                        at += len(batch)
                begin = end


def unreadable(path: Path, error: Exception) -> InputError:
    """The error for a file that is no Parquet file, or a broken one."""
    why = "not found" if isinstance(error, FileNotFoundError) else getattr(error, "strerror", None) or str(error)
    return InputError(f"not a readable parquet file ({why})", where=path)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        about = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return about.st_size, about.st_mtime_ns


@lru_cache(maxsize=4)
def _names(images: ParquetImages) -> pa.Array:
    own, starts = images.own_names()
    names = own.to_pylist()
    there = _is_there(images, own, starts)
    known: set[str] = set()
    renamed = _renamed(images, own, starts)
    if renamed or own.null_count:
        known = set(names)
    for row, first in renamed.items():
        names[row] = _free(f"{names[row]}#{first + 1}", known)
    for row in np.flatnonzero(own.is_null().to_numpy(zero_copy_only=False) & there).tolist():
        number = int(np.searchsorted(starts, row, side="right")) - 1
        names[row] = _free(f"{images.label(number)}:{row - starts[number] + 1}", known)
    return pa.array([name if there[row] else "" for row, name in enumerate(names)], pa.string())


def _free(name: str, known: set[str]) -> str:
    while name in known:
        name += "#"
    return name


def _is_there(images: ParquetImages, own: pa.Array, starts: np.ndarray) -> np.ndarray:
    """(rows,) whether there is an image; reads no bytes where the file says that none is missing."""
    there = np.ones(len(own), dtype=bool)
    unnamed = own.is_null().to_numpy(zero_copy_only=False)
    for number in range(len(images.files)):
        begin, end = starts[number], starts[number + 1]
        asked = np.flatnonzero(unnamed[begin:end]) if images.cells.is_struct else np.arange(end - begin)
        with images.opened(number) as file:
            if not len(asked) or _has_all(file, images.cells.content):
                continue
        for at, contents in images.walk(number, asked):
            there[begin + at : begin + at + len(contents)] &= contents.is_valid().to_numpy(zero_copy_only=False)
    return there | ~unnamed if images.cells.is_struct else there


def _has_all(file: pa.parquet.ParquetFile, leaf: str) -> bool:
    """Whether the statistics of a file say that no value of a column is missing.

    Looks at that column alone: pyarrow ends the process where the statistics of a column are damaged in some ways.
    """
    places = [place for place in range(len(file.schema)) if file.schema.column(place).path == leaf]
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        for place in places:
            about = group.column(place).statistics
            if about is None or not about.has_null_count or about.null_count:
                return False
    return bool(places)


def _renamed(images: ParquetImages, own: pa.Array, starts: np.ndarray) -> dict[int, int]:
    """Rows whose bytes differ from those of the first row of the same name, with the first row that has these bytes."""
    counts = pc.value_counts(own.drop_null())
    several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if not len(several):
        return {}
    repeated = np.flatnonzero(pc.is_in(own, value_set=several).to_numpy(zero_copy_only=False))
    first: dict[tuple[str, bytes], int] = {}
    found: dict[int, int] = {}
    seen: set[str] = set()
    for number in range(len(images.files)):
        begin, end = starts[number], starts[number + 1]
        rows = repeated[(repeated >= begin) & (repeated < end)] - begin
        for at, contents in images.walk(number, rows) if len(rows) else ():
            for row in rows[(rows >= at) & (rows < at + len(contents))]:
                value = contents[int(row) - at].as_py()
                name = own[int(begin + row)].as_py()
                digest = b"" if value is None else hashlib.blake2b(value, digest_size=16).digest()
                place = first.setdefault((name, digest), int(begin + row))
                if name in seen and place != first[name, b"first"]:
                    found[int(begin + row)] = place
                elif name not in seen:
                    seen.add(name)
                    first[name, b"first"] = place
    return found


class _Reader:
    """Reads single images of one process, in any order; quickest in the order of the rows."""

    def __init__(self, images: ParquetImages) -> None:
        self.images = images
        own, self.starts = images.own_names()
        self.row_of: dict[str, int] = {}
        for row, name in enumerate(own.to_pylist()):
            if name is not None:
                self.row_of.setdefault(name, row)
        self.shard = {images.label(number): number for number in range(len(images.files))}
        self.lock = threading.Lock()
        self.batches: Iterator[tuple[int, pa.Array]] = iter(())
        self.number = -1  # of the file that is read
        self.next = range(0)  # rows of the row group that is read, which are still to come
        self.kept: deque[tuple[int, int, pa.Array]] = deque(maxlen=2)  # file, first row and images; threads may go back

    def read(self, name: str) -> bytes | None:
        """The bytes of an image; None where the file has none."""
        row = self._row(name)
        number = bisect_right(self.starts, row) - 1
        within = row - int(self.starts[number])
        with self.lock:
            while True:
                for file, begin, held in self.kept:
                    if file == number and begin <= within < begin + len(held):
                        return held[within - begin].as_py()
                if number != self.number or within not in self.next:
                    self._start(number, within)
                rest, self.number = self.next, -1  # begin again if this fails
                begin, held = next(self.batches, (within, None))
                if held is None:
                    raise UnusableError("the Parquet file has fewer rows than it says")
                self.kept.append((number, begin, held))
                self.number, self.next = number, range(begin + len(held), rest.stop)

    def _row(self, name: str) -> int:
        if name in self.row_of:
            return self.row_of[name]
        made = re.fullmatch(r"(.*)([#:])([1-9][0-9]{0,14})#*", name, re.DOTALL)
        if made is not None:
            row = int(made[3]) - 1  # counted from 1
            if made[2] == "#" and made[1] in self.row_of and row < self.starts[-1]:
                return row
            if made[2] == ":" and made[1] in self.shard:
                number = self.shard[made[1]]
                if row < self.starts[number + 1] - self.starts[number]:
                    return row + int(self.starts[number])
        raise UnusableError("not found")

    def _start(self, number: int, within: int) -> None:
        """Begin to read the row group that has a row."""
        self.number = -1  # stays so if it fails
        with self.images.opened(number) as file:
            ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
        group = int(np.searchsorted(ends, within, side="right"))
        begin = int(ends[group - 1]) if group else 0
        self.batches = self._parts(number, group, begin)
        self.next = range(begin, int(ends[group]))
        self.number = number

    def _parts(self, number: int, group: int, begin: int) -> Iterator[tuple[int, pa.Array]]:
        """The images of a row group, all together or in parts."""
        cells = self.images.cells
        with self.images.opened(number) as file:
            about = file.metadata.row_group(group)
            columns = [about.column(place) for place in range(about.num_columns)]
            size = next(each.total_uncompressed_size for each in columns if each.path_in_schema == cells.content)
            rows = about.num_rows if size <= _CHUNK else max(1, about.num_rows * _CHUNK // (2 * size))
            for batch in file.iter_batches(rows, row_groups=[group], columns=[cells.content], use_threads=False):
                yield begin, cells.contents_of(batch)
                begin += len(batch)


@lru_cache(maxsize=4)
def _reader(images: ParquetImages, process: int) -> _Reader:
    return _Reader(images)
