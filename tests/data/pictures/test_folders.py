"""Images in one of several folders, none of which is left."""

import pickle
from pathlib import Path

import pytest

from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.files import Files
from crcl.data.pictures.folders import Folders, folder_of, has, pictures_in


def write(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_first_folder_that_has_the_image_counts(tmp_path: Path) -> None:
    write(tmp_path / "a/1.png", b"first")
    write(tmp_path / "b/1.png", b"second")
    write(tmp_path / "b/sub/2.png", b"third")
    pictures = Folders((tmp_path / "a", tmp_path / "b"))
    assert pictures.read("1.png") == b"first"
    again = pickle.loads(pickle.dumps(pictures))
    assert again == pictures
    assert hash(again) == hash(pictures)
    assert again.read("sub/2.png") == b"third"
    with pytest.raises(UnusableError, match="not found"):
        pictures.read("3.png")
    with pytest.raises(UnusableError, match="5 bytes, more than 3"):
        pictures.read("1.png", most=3)


def test_no_name_leads_out_of_the_folders(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.png")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "link.png").symlink_to(secret)
    pictures = Folders((tmp_path / "a", tmp_path / "b"))
    for name in ("../secret.png", str(secret), "link.png"):
        with pytest.raises(UnusableError, match="outside the folder of images"):
            pictures.read(name)
        assert not has(tmp_path / "a", name)
    with pytest.raises(UnusableError, match="line break"):
        pictures.read("a\n.png")


def test_the_folder_of_images_is_found_by_the_first_of_them(tmp_path: Path) -> None:
    write(tmp_path / "b/9.png")
    folders = [tmp_path / "nowhere", tmp_path / "a", tmp_path / "b"]
    assert folder_of([f"{n}.png" for n in range(20)], folders) == tmp_path / "b"
    assert folder_of([f"{n}.png" for n in range(20, 40)], folders) is None
    assert folder_of(["x" * 5000], folders) is None  # a name that no file can have
    assert pictures_in([]) is None
    assert pictures_in([tmp_path, tmp_path]) == Files(tmp_path)
    assert pictures_in(folders) == Folders(tuple(folders))
