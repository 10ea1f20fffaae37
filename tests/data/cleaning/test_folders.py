"""Cleaned folders: bytes of what is kept, links and copies of images, captions that move, nothing half-done."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crcl
from crcl.data.cleaning.folders import clean_captioned, clean_imagefolder
from crcl.data.cleaning.judged import Judged
from crcl.data.rows.tables import USUAL
from crcl.errors import InputError


def judge(folder: Path, *, suspects: set[int] = frozenset(), moved: dict[int, str] | None = None, **how: Any) -> Judged:  # type: ignore[assignment]
    """All rows are judged; row n has the correspondence n / 8."""
    pairs = crcl.read(folder)
    rows = list(zip(pairs.images, pairs.captions, strict=True))
    beliefs = {row: np.float32(row / 8) for row in range(len(rows))}
    return Judged(folder, dict(enumerate(rows)), beliefs, set(suspects), moved or {}, **how)


def texts(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.fixture
def captioned(tmp_path: Path) -> Path:
    """Rows 0 to 4: two captions of a, one of sub/b, two of c."""
    (tmp_path / "data/sub").mkdir(parents=True)
    for name, text in (("a", b"one\r\n\r\n two \r\n"), ("sub/b", b"three"), ("c", b"four\nfive\n")):
        (tmp_path / f"data/{name}.png").write_bytes(name.encode())
        (tmp_path / f"data/{name}.txt").write_bytes(text)
    (tmp_path / "data/sub/b.json").write_text('{"url": "x"}')
    assert crcl.read(tmp_path / "data").captions == ["one", "two", "four", "five", "three"]
    return tmp_path / "data"


def test_kept_lines_stay_as_they_are_and_an_image_without_captions_has_no_text_file(
    captioned: Path, tmp_path: Path
) -> None:
    assert clean_captioned(captioned, judge(captioned, suspects={0, 2, 3}), tmp_path / "out") == 5
    assert texts(tmp_path / "out") == {"a.txt": b"\r\n two \r\n", "sub/b.txt": b"three", "sub/b.json": b'{"url": "x"}'}


@pytest.mark.parametrize("how", ["link", "copy"])
def test_images_of_kept_captions_are_linked_or_copied(captioned: Path, tmp_path: Path, how: Any) -> None:
    clean_captioned(captioned, judge(captioned, suspects={2, 3}, images=how), tmp_path / "out")
    found = {name: content for name, content in texts(tmp_path / "out").items() if name.endswith(".png")}
    assert found == {"a.png": b"a", "sub/b.png": b"sub/b"}
    assert (tmp_path / "out/a.png").samefile(captioned / "a.png") == (how == "link")
    assert not (tmp_path / "out/a.png").is_symlink()
    assert crcl.read(tmp_path / "out").captions == ["one", "two", "three"]


def test_marked_captions_have_their_correspondences_beside_them(captioned: Path, tmp_path: Path) -> None:
    clean_captioned(captioned, judge(captioned, suspects={0, 1}, mark=True, images="copy"), tmp_path / "out")
    found = texts(tmp_path / "out")
    assert {name: content for name, content in found.items() if name.endswith(".txt")} == {
        name: content for name, content in texts(captioned).items() if name.endswith(".txt")
    }
    assert json.loads(found["a.json"]) == {"correspondence": [0, 0.125]}
    assert json.loads(found["sub/b.json"]) == {"url": "x", "correspondence": 0.5}
    with pytest.raises(InputError, match="has a column 'correspondence' already"):
        clean_captioned(tmp_path / "out", judge(captioned, mark=True), tmp_path / "twice")
    (captioned / "a.json").write_text("[1]")
    with pytest.raises(InputError, match=r"a\.json: not a JSON object"):
        clean_captioned(captioned, judge(captioned, mark=True), tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_caption_moves_to_the_text_file_of_its_new_image(captioned: Path, tmp_path: Path) -> None:
    moved = {1: "sub/b.png", 2: "sub/b.png", 3: "a.png"}
    clean_captioned(captioned, judge(captioned, suspects={4}, moved=moved), tmp_path / "out")
    found = texts(tmp_path / "out")
    assert found["a.txt"] == b"one\r\n\r\nfive\n"
    assert found["sub/b.txt"] == b"two\nfour\n"
    assert "c.txt" not in found


def test_a_folder_that_changed_is_refused_and_nothing_is_left(captioned: Path, tmp_path: Path) -> None:
    judged = judge(captioned)
    (captioned / "c.txt").write_text("four\n")
    with pytest.raises(InputError, match="cannot be cleaned"):
        clean_captioned(captioned, judged, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.fixture
def imagefolder(tmp_path: Path) -> Path:
    """Rows 0 and 1 in test, 2 and 3 in train."""
    for split in ("test", "train"):
        (tmp_path / f"data/{split}").mkdir(parents=True)
        for name in "ab":
            (tmp_path / f"data/{split}/{name}.png").write_bytes(f"{split} {name}".encode())
        (tmp_path / f"data/{split}/metadata.csv").write_bytes(
            f'id,"text",file_name\r\n1,"{split}, ""a""",a.png\r\n2,{split} b,./b.png\r\n'.encode()
        )
    return tmp_path / "data"


def test_metadata_is_written_without_the_suspects_and_otherwise_as_it_was(imagefolder: Path, tmp_path: Path) -> None:
    judged = judge(imagefolder, suspects={2}, images="copy")
    assert clean_imagefolder(imagefolder, USUAL, judged, tmp_path / "out") == 4
    expected = texts(imagefolder)
    del expected["train/a.png"]
    expected["train/metadata.csv"] = b'id,"text",file_name\r\n2,train b,./b.png\r\n'
    assert texts(tmp_path / "out") == expected


def test_marked_metadata_has_a_column_more(imagefolder: Path, tmp_path: Path) -> None:
    clean_imagefolder(imagefolder, USUAL, judge(imagefolder, mark=True), tmp_path / "out")
    assert texts(tmp_path / "out")["train/metadata.csv"] == (
        b'id,"text",file_name,correspondence\r\n1,"train, ""a""",a.png,0.25\r\n2,train b,./b.png,0.375\r\n'
    )
    with pytest.raises(InputError, match="has a column 'correspondence' already"):
        clean_imagefolder(tmp_path / "out", USUAL, judge(imagefolder, mark=True), tmp_path / "twice")


def test_a_moved_caption_names_the_image_as_its_metadata_does(imagefolder: Path, tmp_path: Path) -> None:
    judged = judge(imagefolder, moved={2: "train/b.png", 3: "test/a.png"}, images="link")
    clean_imagefolder(imagefolder, USUAL, judged, tmp_path / "out")
    found = texts(tmp_path / "out")
    assert found["train/metadata.csv"] == (
        b'id,"text",file_name\r\n1,"train, ""a""",./b.png\r\n2,train b,../test/a.png\r\n'
    )
    assert {name for name in found if name.endswith(".png")} == {"train/b.png", "test/a.png", "test/b.png"}
    assert crcl.read(tmp_path / "out").images[2:] == ["train/b.png", "test/a.png"]


def test_images_that_are_missing_or_outside_are_not_placed(imagefolder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    lines = [f"3,x,{name}" for name in ("../../secret.png", str(tmp_path / "secret.png"), "gone.png", "link.png")]
    with (imagefolder / "train/metadata.csv").open("a") as file:
        file.write("\n".join(lines) + "\n")
    (imagefolder / "train/link.png").symlink_to(tmp_path / "secret.png")
    clean_imagefolder(imagefolder, USUAL, judge(imagefolder, images="copy"), tmp_path / "out")
    found = texts(tmp_path / "out")
    assert found["train/metadata.csv"] == (imagefolder / "train/metadata.csv").read_bytes()
    assert sorted(name for name in found if name.endswith(".png")) == [
        f"{split}/{name}.png" for split in ("test", "train") for name in "ab"
    ]


def test_a_row_that_names_the_metadata_as_its_image_does_not_bring_the_suspects_back(
    imagefolder: Path, tmp_path: Path
) -> None:
    with (imagefolder / "train/metadata.csv").open("a") as file:
        file.write("3,x,metadata.csv\n4,y,../train.zip\n")
    judged = judge(imagefolder, suspects={2, 3}, images="copy")
    clean_imagefolder(imagefolder, USUAL, judged, tmp_path / "out")
    found = texts(tmp_path / "out")["train/metadata.csv"]
    assert found == b'id,"text",file_name\r\n3,x,metadata.csv\n4,y,../train.zip\n'


def test_a_zip_beside_a_folder_of_its_name_loses_nothing(imagefolder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(imagefolder / "train.zip", "w") as archive:
        archive.writestr("metadata.csv", "file_name,text\na.png,zipped\n../train.zip,y\n")
        archive.writestr("a.png", "a")
    assert crcl.read(imagefolder).images[2:4] == ["train.zip/a.png", "train.zip"]
    clean_imagefolder(imagefolder, USUAL, judge(imagefolder, suspects={0}, images="copy"), tmp_path / "out")
    assert crcl.read(tmp_path / "out").captions == crcl.read(imagefolder).captions[1:]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["test", "train", "train.zip"]
    with pytest.raises(InputError, match="train is a folder and a zip file"):
        clean_imagefolder(imagefolder, USUAL, judge(imagefolder), tmp_path / "other")


def test_metadata_in_a_zip_that_leads_outside_is_no_metadata(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data/train.zip", "w") as archive:
        archive.writestr("metadata.csv", "file_name,text\na.png,one\nb.png,two\n")
        for name in (
            "../../outside/metadata.csv",
            f"{tmp_path}/outside/metadata.csv",
            "x/../../../outside/metadata.csv",
        ):
            archive.writestr(name, "file_name,text\na.png,bad\n")
    judged = judge(tmp_path / "data", suspects={1})
    clean_imagefolder(tmp_path / "data", USUAL, judged, tmp_path / "out")
    assert texts(tmp_path / "out") == {"train/metadata.csv": b"file_name,text\na.png,one\n"}
    assert not (tmp_path / "outside").exists()


def test_images_that_cannot_be_linked_are_told_what_to_do(
    imagefolder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(InputError, match=r"cannot be linked from there \(Invalid cross-device link\); pass images=..."):
        clean_imagefolder(imagefolder, USUAL, judge(imagefolder, images="link"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_caption_of_a_zip_moves_within_it_only(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split in ("test", "train"):
        with zipfile.ZipFile(tmp_path / f"data/{split}.zip", "w") as archive:
            archive.writestr("metadata.csv", "file_name,text\nx/a.png,one\nx/b.png,two\n")
            archive.writestr("x/a.png", "a")
            archive.writestr("x/b.png", "b")
            archive.writestr("../outside.png", "never written")
    data = tmp_path / "data"
    judged = judge(data, moved={2: "train.zip/x/b.png"}, images="copy")
    clean_imagefolder(data, USUAL, judged, tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "out/train.zip") as archive:
        assert archive.namelist() == ["metadata.csv", "x/b.png"]
        assert archive.read("metadata.csv") == b"file_name,text\nx/b.png,one\nx/b.png,two\n"
    with pytest.raises(InputError, match=r"would move to test.zip/x/a.png, which it cannot name"):
        clean_imagefolder(data, USUAL, judge(data, moved={2: "test.zip/x/a.png"}), tmp_path / "other")
