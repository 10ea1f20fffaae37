"""Images in zip files: read at random, in several processes, never more than allowed and never from outside."""

import multiprocessing
import pickle
import zipfile
from pathlib import Path

import pytest

from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.zips import Zips


def write_zip(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.png", content)
    return path


def reason(pictures: Zips, name: str, **options: int) -> str:
    with pytest.raises(UnusableError) as caught:
        pictures.read(name, **options)
    return str(caught.value)


def test_members_and_files_are_read_by_their_names(tmp_path: Path) -> None:
    write_zip(tmp_path / "train.zip", a=b"first", b=b"second")
    (tmp_path / "c.png").write_bytes(b"third")
    pictures = Zips(tmp_path, ("train.zip",))
    assert [pictures.read(name) for name in ("train.zip/b.png", "train.zip/a.png", "c.png")] == [
        b"second",
        b"first",
        b"third",
    ]
    assert pickle.loads(pickle.dumps(pictures)) == pictures
    assert hash(pictures) == hash(Zips(tmp_path, ("train.zip",)))


def test_processes_read_at_the_same_time(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(40)]
    write_zip(tmp_path / "x.zip", **{name: name.encode() * 20_000 for name in names})
    pictures = Zips(tmp_path, ("x.zip",))
    pictures.read("x.zip/n0.png")  # opened here first, and then in forked processes
    wanted = [f"x.zip/{name}.png" for name in names] * 5
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(pictures.read, wanted, chunksize=1)
    assert found == [name.encode() * 20_000 for name in names] * 5


def test_what_cannot_be_used_has_a_reason(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", a=b"\0" * 1_000_000, b=b"", c=b"good")
    pictures = Zips(tmp_path, ("x.zip",))
    assert reason(pictures, "x.zip/absent.png") == "not found"
    assert reason(pictures, "x.zip/../x.zip") == "not found"
    assert reason(pictures, "x.zip/b.png") == "empty file"
    assert reason(pictures, "x.zip/a.png", most=1000) == "1,000,000 bytes, more than 1,000"
    assert reason(pictures, "../x.png") == "outside the folder of images"
    assert "line break" in reason(pictures, "x.zip/a\n.png")
    content = bytearray(path.read_bytes())
    content[content.index(b"a.png") + 10] ^= 255  # in the compressed bytes
    path.write_bytes(content)
    assert "cannot be read from the zip file" in reason(pictures, "x.zip/a.png")
    assert pictures.read("x.zip/c.png") == b"good"
    path.unlink()
    assert reason(pictures, "x.zip/c.png") == "the zip file x.zip is gone"


def test_an_encrypted_member_and_a_linked_zip_outside_are_not_read(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", a=b"secret")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/y.zip").symlink_to(path)
    assert reason(Zips(tmp_path / "data", ("y.zip",)), "y.zip/a.png") == "outside the folder of images"
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    assert reason(Zips(tmp_path, ("x.zip",)), "x.zip/a.png") == "encrypted"
