"""Checkpoints that were made to fill the memory or to stall the reader are refused before torch reads them."""

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crcl.errors import InputError
from crcl.runs.checkpoints.unpickling import load
from crcl.runs.files import read_npz, read_state

ZIPPED = pytest.mark.parametrize("zipped", [True, False])


def saved(folder: Path, values: Any, *, zipped: bool = True) -> Path:
    torch.save(values, folder / "file.pt", _use_new_zipfile_serialization=zipped)
    return folder / "file.pt"


def nested(times: int, kind: type) -> Any:
    """A value of ten to the power of `times` values, of which each level is stored once."""
    value: Any = kind(["x"])
    for _ in range(times):
        value = kind([value] * 10)
    return value


@ZIPPED
def test_what_unfolds_to_billions_of_values_is_refused_at_once(tmp_path: Path, zipped: bool) -> None:
    for values in ({"opt": nested(30, list)}, {"opt": {"a": [nested(30, tuple)]}}):
        path = saved(tmp_path, values, zipped=zipped)
        for read in (load, read_state):
            with pytest.raises(InputError, match="unfolds to more than 5,000,000 values"):
                read(path)


def test_a_key_that_takes_forever_to_hash_is_refused_at_once(tmp_path: Path) -> None:
    path = saved(tmp_path, {"here": "x"})
    levels = b"".join(b"(" + (b"h" + bytes([n])) * 10 + b"tq" + bytes([n + 1]) for n in range(40))
    pickled = b"\x80\x02}X\x01\0\0\0xq\0" + levels + b"K\x01s."
    path.write_bytes(with_member(path.read_bytes(), "data.pkl", None, pickled))
    with pytest.raises(InputError, match="refused: "):
        load(path)


@pytest.mark.parametrize("depth", [101, 400])
def test_what_is_nested_too_deeply_is_refused(tmp_path: Path, depth: int) -> None:
    value: Any = ()
    for _ in range(depth):
        value = (value,)
    with pytest.raises(InputError, match="nested more than 100 deep"):
        load(saved(tmp_path, {"opt": value}))


def test_a_value_that_is_part_of_itself_is_refused(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InputError, match="part of itself"):
        load(saved(tmp_path, {"opt": endless}))


def test_what_is_mentioned_before_it_grows_is_counted_as_it_ends(tmp_path: Path) -> None:
    levels: list[list[Any]] = [[] for _ in range(30)]
    for upper, lower in zip(levels[1:], levels, strict=False):
        upper.extend([lower] * 10)
    with pytest.raises(InputError, match="unfolds to more"):
        load(saved(tmp_path, {"all": levels[::-1]}))


@ZIPPED
def test_a_storage_that_the_file_does_not_hold_is_refused(tmp_path: Path, zipped: bool) -> None:
    """Torch would read beyond the end of what it has."""
    path = saved(tmp_path, {"w": torch.zeros(70_001)}, zipped=zipped)
    true, claimed = (b"J" + struct.pack("<i", size) for size in (70_001, 2**31 - 2))
    raw = path.read_bytes()
    path.write_bytes(with_member(raw, "data.pkl", true, claimed) if zipped else raw.replace(true, claimed))
    with pytest.raises(InputError, match="claims more numbers than the file can hold" if zipped else "damaged"):
        load(path)


def with_member(raw: bytes, name: str, old: bytes | None, new: bytes) -> bytes:
    """A zip file with some bytes of a member, or all of them, replaced."""
    copy = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as source, zipfile.ZipFile(copy, "w") as target:
        for member in source.namelist():
            content = source.read(member)
            if member.endswith(f"/{name}"):
                content = new if old is None else content.replace(old, new)
            target.writestr(member, content)
    return copy.getvalue()


def test_of_two_lists_of_files_torch_reads_the_one_that_was_checked(tmp_path: Path) -> None:
    """Python's zipfile and torch's reader find the list of what is in a file in different ways."""
    large, small = (saved(tmp_path, {"w": torch.zeros(size)}).read_bytes() for size in (300_000, 3))
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(large)) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    path = tmp_path / "two.pt"
    read = 0
    for content in (packed.getvalue() + small, small + packed.getvalue()):
        path.write_bytes(content)
        try:
            found = load(path)
        except InputError:
            continue
        read += 1
        assert len(found["w"]) == 3
    assert read == 1


def test_names_of_one_file_that_differ_in_case_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.zeros(3)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("file/DATA.pkl", b"other")
    with pytest.raises(InputError, match="two files of one name"):
        load(path)


@pytest.mark.parametrize(
    "raw", [b"", b"PK\x03\x04", b"PK\x03\x04" * 50, b".", b"\x80\x02.", b"\x80\x02(.", b"\x80\x02t.", b"c", b"j\0"]
)
def test_half_a_pickle_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "file.pt").write_bytes(raw)
    with pytest.raises(InputError, match=r"file\.pt: (not a checkpoint|refused)"):
        load(tmp_path / "file.pt")
    with pytest.raises(InputError, match=r"file\.pt: damaged"):
        read_state(tmp_path / "file.pt")


def test_arrays_of_a_run_that_unpack_to_more_than_their_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.npz"
    np.savez_compressed(path, correspondence=np.ones(1_000_000, np.float32))
    with pytest.raises(InputError, match=r"ledger\.npz: damaged \(it unpacks to more than it holds"):
        read_npz(path, "correspondence")


def test_a_text_that_claims_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    path.write_bytes(b"\x80\x02X" + b"\xff" * 4 + b"text.")
    tracemalloc.start()
    with pytest.raises(InputError, match="damaged"):
        load(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
