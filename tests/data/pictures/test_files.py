"""Image files: named within their folder, read with care, or refused with a reason."""

import os
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from crcl.data.pairs import Pairs
from crcl.data.pictures.base import UnusableError, Wanted
from crcl.data.pictures.files import Files, wanted_files
from crcl.data.pictures.zips import Zips
from crcl.errors import InputError


@pytest.mark.parametrize("name", ["../secret.png", "a/../../secret.png", "link.png", "linked/secret.png", "/etc/hosts"])
def test_a_name_does_not_lead_out_of_the_folder(tmp_path: Path, name):
    (tmp_path / "secret.png").write_bytes(b"secret")
    root = tmp_path / "images"
    (root / "a").mkdir(parents=True)
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "linked").symlink_to(tmp_path)
    with pytest.raises(UnusableError, match="outside the folder"):
        Files(root).read(name)


def test_a_name_may_turn_back_within_the_folder_and_be_absolute(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b.png").write_bytes(b"here")
    for name in ("a/../b.png", str(tmp_path / "b.png"), "./b.png"):
        assert Files(tmp_path).read(name) == b"here"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty name"),
        ("none.png", "not found"),
        ("a\nb.png", "line break"),
        (" a.png", "spaces"),
        ("a\0.png", "line break"),
        ("a\udcff.png", "UTF-8"),
        ("x" * 5000, "cannot be read"),
        ("empty.png", "empty file"),
        ("folder.png", "directory"),
        ("pipe.png", "not a file"),
        ("circle.png", "not found|cannot be read"),
        ("large.png", "11 bytes, more than 10"),
    ],
)
def test_what_cannot_be_read_has_a_reason(tmp_path: Path, name, reason):
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "large.png").write_bytes(b"x" * 11)
    (tmp_path / "circle.png").symlink_to(tmp_path / "circle.png")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(UnusableError, match=reason):
        Files(tmp_path).read(name, most=10)


def test_a_folder_gives_its_images_by_name_with_those_below(tmp_path: Path):
    for name in ("b.JPG", "a.png", "below/c.gif", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [image.name for image in wanted_files([tmp_path])] == ["a.png", "b.JPG", "below/c.gif"]
    with pytest.raises(InputError, match="give one folder, one table"):
        wanted_files([tmp_path, tmp_path / "a.png"])


def test_a_table_names_each_image_once(tmp_path: Path):
    table = tmp_path / "pairs.csv"
    table.write_text("image,caption\nb.png,one\na.png,two\nb.png,three\n,four\n")
    assert Pairs.of(table).wanted_images() == [Wanted(name, Files(tmp_path)) for name in ("b.png", "a.png")]
    assert Pairs.of(table, images=tmp_path).wanted_images()[0].pictures == Files(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        wanted_files([tmp_path / "b.png"], folder=tmp_path / "none")


def test_files_are_named_from_the_folder_on_as_a_table_would(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.png").write_bytes(b"here")
    files, folder = [Path("photos/a.png"), tmp_path / "photos/a.png"], Path("photos")
    assert wanted_files(files, folder=folder) == [Wanted("a.png", Files(folder))]
    assert Files(folder).read("a.png") == b"here"
    assert wanted_files(files[:1]) == [Wanted("photos/a.png", Files(None))]


def test_a_small_file_takes_little_memory(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(b"here")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("a.png", b"here")
    tracemalloc.start()
    for pictures, name in ((Files(tmp_path), "a.png"), (Zips(tmp_path, ("b.zip",)), "b.zip/a.png")):
        tracemalloc.reset_peak()
        assert pictures.read(name) == b"here"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
