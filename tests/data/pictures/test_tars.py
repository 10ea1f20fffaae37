"""Images in tars, read by an index."""

import os
import pickle
import random
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pytest
from tarred import write_tar

from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.members import members
from crcl.data.pictures.tars import OPEN, Tars, is_index, write_index


def indexed(folder: Path, contents: list[dict[str, bytes]]) -> Tars:
    """Tars of these images, and their index."""
    rows, shards = [], []
    for number, content in enumerate(contents):
        path = write_tar(folder / f"{number:05}.tar", content.items())
        shards.append((str(path), path.stat().st_size, path.stat().st_mtime_ns))
        with path.open("rb") as file:
            rows += [{"name": m.name, "shard": number, "offset": m.data, "size": m.size} for m in members(file)]
    write_index(
        folder / "index.arrow", pa.Table.from_pylist(sorted(rows, key=lambda row: row["name"].encode())), shards
    )
    return Tars(folder / "index.arrow")


def reason(tars: Tars, name: str, **options: int) -> str:
    with pytest.raises(UnusableError) as caught:
        tars.read(name, **options)
    return str(caught.value)


def test_images_are_read_in_any_order_from_more_shards_than_are_open_by_threads_and_processes(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    rng = random.Random(0)
    names = [
        "z\U0001f600.png",
        "é.jpg",
        "\ue000.jpg",
        *(f"{n}.jpg" for n in range(2 * OPEN)),
    ]  # not sorted as UTF-16 is
    contents = {name: rng.randbytes(rng.randrange(1, 2000)) for name in names}
    tars = indexed(tmp_path, [{name: content} for name, content in contents.items()])
    for order in (names, sorted(names), rng.sample(names, len(names))):
        assert all(tars.read(name) == contents[name] for name in order)
    many = rng.sample(names * 5, 5 * len(names))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tars.read, many)) == [contents[name] for name in many]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(tars.read, many[:50], chunksize=10)) == [contents[name] for name in many[:50]]
    assert len(os.listdir("/proc/self/fd")) < before + OPEN + 20  # noqa: PTH208


def test_it_is_small_to_send_and_equal_to_its_copies(tmp_path: Path) -> None:
    tars = indexed(tmp_path, [{f"{n}.jpg": b"x" for n in range(5000)}])
    tars.read("17.jpg")
    sent = pickle.dumps(tars)
    assert len(sent) < 1000
    assert pickle.loads(sent) == tars
    assert hash(pickle.loads(sent)) == hash(tars)


def test_what_cannot_be_used_has_a_reason(tmp_path: Path) -> None:
    tars = indexed(tmp_path, [{"a.jpg": b"a" * 100, "empty.jpg": b""}, {"b.jpg": b"b"}, {"c.jpg": b"c"}])
    assert reason(tars, "b.jpeg") == reason(tars, "") == reason(tars, "zzz") == reason(tars, "\udc80") == "not found"
    assert reason(tars, "../00000.tar") == "not found"
    assert reason(tars, "empty.jpg") == "empty file"
    assert reason(tars, "a.jpg", most=99) == "100 bytes, more than 99"
    (tmp_path / "00001.tar").unlink()
    assert reason(tars, "b.jpg") == "its shard 00001.tar is gone"
    os.utime(tmp_path / "00002.tar", ns=(1, 1))
    assert reason(tars, "c.jpg") == "its shard 00002.tar has changed since it was indexed"
    assert tars.read("a.jpg") == b"a" * 100
    os.truncate(tmp_path / "00000.tar", 550)
    assert reason(tars, "a.jpg") == "its shard 00000.tar has changed since it was indexed"


def test_only_an_index_is_an_index(tmp_path: Path) -> None:
    indexed(tmp_path, [{"a.jpg": b"a"}])
    assert is_index(tmp_path / "index.arrow")
    assert not is_index(tmp_path / "00000.tar")
    assert not is_index(tmp_path / "none")
    (tmp_path / "index.arrow").write_bytes((tmp_path / "index.arrow").read_bytes()[:-100])
    assert not is_index(tmp_path / "index.arrow")
