"""Images in tar files, read one by one where they lie.

An index of all images (name, shard, offset, size, sorted by name) is one Arrow file in the user's cache folder. It is
mapped, not loaded, so that worker processes share it.
"""

import json
import os
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from crcl.data.pictures.base import MOST_BYTES, UnusableError

OPEN = 64
"""Shards that are open at the same time."""


@dataclass(frozen=True)
class Tars:
    """Images in tar files by the names in an index. A copy in another process opens the same index."""

    index: Path
    """The index, as `write_index` makes it."""

    def read(self, name: str, *, most: int = MOST_BYTES) -> bytes:
        """The bytes of an image."""
        index = _opened(self.index)
        place = index.find(name)
        if place is None:
            raise UnusableError("not found")
        size = int(index.sizes[place])
        if not size:
            raise UnusableError("empty file")
        if size > most:
            raise UnusableError(f"{size:,} bytes, more than {most:,}")
        return _open_shard(*index.shards[index.numbers[place]]).read(int(index.offsets[place]), size)


def write_index(path: Path, images: pa.Table, shards: list[tuple[str, int, int]]) -> None:
    """Write an index.

    Args:
        path: The file to write.
        images: Columns name, shard, offset and size, sorted by name; a shard is a number.
        shards: Path, size and date of each shard.
    """
    fields = [("name", pa.large_binary()), ("shard", pa.int32()), ("offset", pa.int64()), ("size", pa.int64())]
    schema = pa.schema(fields, metadata={"shards": json.dumps(shards)})
    whole = images.combine_chunks().select([name for name, _ in fields]).cast(pa.schema(fields))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_table(whole.replace_schema_metadata(schema.metadata), max_chunksize=max(len(whole), 1))


def is_index(path: Path) -> bool:
    """Whether a file is an index."""
    try:
        return len(_Index(path).sizes) > 0
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return False


class _Index:
    """A mapped index."""

    def __init__(self, path: Path) -> None:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        names: Any = batch["name"]
        _, offsets, text = names.buffers()
        self._starts = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names) + 1]
        self._text = memoryview(text)
        self.numbers, self.offsets, self.sizes = (
            batch[name].to_numpy(zero_copy_only=True) for name in ("shard", "offset", "size")
        )
        self.shards: list[tuple[str, int, int]] = [
            (str(shard), int(size), int(date)) for shard, size, date in json.loads(batch.schema.metadata[b"shards"])
        ]
        self._last = -1

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, place: int) -> bytes:
        return bytes(self._text[self._starts[place] : self._starts[place + 1]])

    def find(self, name: str) -> int | None:
        """The place of an image; quick if it follows the one that was found before."""
        try:
            wanted = name.encode("utf-8")
        except UnicodeEncodeError:
            return None
        place = self._last + 1
        if place >= len(self) or self[place] != wanted:
            place = bisect_left(self, wanted)
            if place >= len(self) or self[place] != wanted:
                return None
        self._last = place
        return place


class _OpenShard:
    """An open shard, which is closed when nobody reads from it any longer."""

    def __init__(self, path: str, size: int, date: int) -> None:
        self._name = Path(path).name
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        except FileNotFoundError as error:
            raise UnusableError(f"its shard {self._name} is gone") from error
        except OSError as error:
            raise UnusableError(f"its shard {self._name} cannot be read ({error.strerror})") from error
        self._lock = Lock()
        about = os.fstat(self._file)
        if (about.st_size, about.st_mtime_ns) != (size, date):
            raise UnusableError(f"its shard {self._name} has changed since it was indexed")

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read(self, offset: int, size: int) -> bytes:
        try:
            if hasattr(os, "pread"):
                content = os.pread(self._file, size, offset)
            else:  # Windows
                with self._lock:
                    os.lseek(self._file, offset, os.SEEK_SET)
                    content = os.read(self._file, size)
        except OSError as error:
            raise UnusableError(f"its shard {self._name} cannot be read ({error.strerror})") from error
        if len(content) < size:
            raise UnusableError(f"its shard {self._name} has changed since it was indexed")
        return content


_opened = lru_cache(maxsize=4)(_Index)
_open_shard = lru_cache(maxsize=OPEN)(_OpenShard)
