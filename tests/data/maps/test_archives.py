"""Arrays in .npz files: mapped, checked before they are unpacked, never unpickled."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from crcl.data.maps.archives import array_names, open_member
from crcl.errors import InputError


def vectors(rows: int = 50, size: int = 7) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, size)).astype(np.float16)


def refusal(path: Path, *, rows: int = 50) -> str:
    with pytest.raises(InputError) as caught:
        open_member(path, "a", rows=rows)
    return str(caught.value)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressed", [False, True])
def test_an_array_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compressed: bool, order: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "x.npz"
    (np.savez_compressed if compressed else np.savez)(path, b=np.zeros(3), a=np.asarray(vectors(), order=order))  # type: ignore[call-overload]
    assert array_names(path) == ["b", "a"]
    found = open_member(path, "a", rows=50)
    assert isinstance(found, np.memmap)
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, vectors())
    assert (Path(str(found.filename)) == path) != compressed
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == compressed


def test_an_unpacked_copy_is_made_once_and_again_if_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=vectors())
    open_member(path, "a", rows=50)
    copy = next((tmp_path / "cache").rglob("*.npy"))
    before = copy.stat().st_mtime_ns
    open_member(path, "a", rows=50)
    assert copy.stat().st_mtime_ns == before
    np.savez_compressed(path, a=vectors() + 1)
    np.testing.assert_array_equal(open_member(path, "a", rows=50), vectors() + 1)


def test_what_is_no_array_of_vectors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    for array, told in (
        (np.zeros((50, 3)), "vectors are float64"),
        (np.zeros((50, 3), np.int32), "vectors are int32"),
        (np.zeros(50, np.float16), r"vectors have shape (50,)"),
        (np.zeros((49, 3), np.float16), "49 rows, but its table has 50"),
        (np.array([[object()]] * 50), "contains Python objects"),
    ):
        np.savez(path, a=array)
        assert told in refusal(path)
    np.savez(path, b=vectors())
    assert f"{path}: no array 'a'" in refusal(path)
    path.write_bytes(b"no zip at all")
    assert "not a readable .npz file" in refusal(path)
    with pytest.raises(InputError, match="not a readable"):
        array_names(path)
    with pytest.raises(InputError, match="not found"):
        array_names(tmp_path / "absent.npz")


def test_a_member_that_is_longer_or_shorter_than_its_header_says_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "a.npy"
    np.save(whole, vectors())
    for content in (whole.read_bytes()[:-1], whole.read_bytes() + b"\0" * 1_000_000):
        with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", content)
        assert "has another length than its header says" in refusal(tmp_path / "x.npz")


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=vectors())
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 8] |= 1  # the flag in the directory
    path.write_bytes(content)
    assert "encrypted" in refusal(path)
