"""Folders of images with captions in text files beside them, and img2dataset's output `files`."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from annotated import documented
from drawn import Drawn, assert_same_audit, drawn
from tiny import call

import crcl
from crcl.data.pictures.base import UnusableError
from crcl.data.sources import captioned, layout_of
from crcl.errors import InputError

PNG = drawn(4).pictures[0]


def write_captioned(data: Drawn, folder: Path) -> Path:
    """The scenes as files `train/000000.png` with `train/000000.txt`."""
    for name, picture, captions, split in zip(data.names, data.pictures, data.captions, data.splits, strict=True):
        (folder / split).mkdir(parents=True, exist_ok=True)
        (folder / split / name).write_bytes(picture)
        (folder / split / name).with_suffix(".txt").write_text("\n".join(captions) + "\n", "utf-8")
    return folder


def put(folder: Path, **texts: str | bytes) -> Path:
    """Images with these texts beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, text in texts.items():
        (folder / f"{stem}.png").write_bytes(PNG)
        (folder / f"{stem}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        crcl.read(folder, layout="captioned")
    return str(caught.value)


def test_the_scenes_give_the_same_audit_and_come_back_as_text_files(tmp_path: Path) -> None:
    data = drawn(captions=2)
    folder = write_captioned(data, tmp_path / "data")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    audit = assert_same_audit(folder, tmp_path, captions=2)
    suspects = set(audit.table.filter(audit.table["suspect"])["row"].to_pylist())
    assert 10 < len(suspects) < 250
    done = audit.clean(tmp_path / "cleaned", images="link")
    assert done.removed == len(suspects)
    expected: dict[str, list[str]] = {}
    for row, (name, caption, split) in enumerate(data.rows()):
        if row not in suspects:
            expected.setdefault(f"{split}/{Path(name).stem}", []).append(caption)
    found = {
        file.relative_to(tmp_path / "cleaned").with_suffix("").as_posix(): file.read_text().splitlines()
        for file in (tmp_path / "cleaned").rglob("*.txt")
    }
    assert found == expected
    pictures = dict(zip(data.names, data.pictures, strict=True))
    linked = list((tmp_path / "cleaned").rglob("*.png"))
    assert sorted(file.stem for file in linked) == sorted(Path(name).name for name in expected)
    assert all(file.read_bytes() == pictures[file.name] for file in linked)
    again = crcl.read(tmp_path / "cleaned")
    assert again.captions == [caption for name in sorted(expected) for caption in expected[name]]
    audit.clean(tmp_path / "marked", mark=True)
    marked = json.loads((tmp_path / "marked/train/000003.json").read_text())
    assert marked["correspondence"] == pytest.approx(audit.correspondence[6:8].tolist(), abs=1e-6)
    assert (tmp_path / "marked/train/000003.txt").read_bytes() == (folder / "train/000003.txt").read_bytes()
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_command_line_audits_and_cleans_such_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_captioned(drawn(60), tmp_path / "photos")
    (folder / "train/alone.png").write_bytes(PNG)
    audit, clean = documented("Images with text files")
    audited = call(capsys, monkeypatch, *audit)
    assert audited.code == 0, audited.err
    assert "1 images have no caption" in audited.err
    cleaned = call(capsys, monkeypatch, *clean, "--threshold", "0.3")
    assert cleaned.code == 0, cleaned.err
    assert 0 < len(list(Path("cleaned").rglob("*.txt"))) < 60
    assert len(list(Path("cleaned").rglob("*.txt"))) == len(list(Path("cleaned").rglob("*.png")))
    assert call(capsys, monkeypatch, "clean", "photos-audit/run", "-o", "photos/in").code == 2


def test_lines_are_captions_folders_are_names_and_splits_are_folders(tmp_path: Path) -> None:
    put(tmp_path / "cats", a=b"\xef\xbb\xbfone cat\r\n\r\n  two cats \r\n", b="a third one")
    pairs = crcl.read(tmp_path)
    assert layout_of(tmp_path) == "captioned"
    assert pairs.captions == ["one cat", "two cats", "a third one"]
    assert pairs.images == ["cats/a.png", "cats/a.png", "cats/b.png"]
    assert pairs.splits == ["train", "dev"]
    put(tmp_path / "val", c="held out")
    put(tmp_path / "Test", d="for the end")
    pairs = crcl.read(tmp_path)
    assert pairs.splits == ["train", "dev", "test"]
    assert pairs.source.rows().column("split").to_pylist() == ["test", "train", "train", "train", "dev"]  # type: ignore[union-attr]


def test_a_caption_file_serves_where_there_is_no_txt(tmp_path: Path) -> None:
    put(tmp_path, a="from the text")
    (tmp_path / "a.caption").write_text("not this")
    (tmp_path / "b.PNG").write_bytes(PNG)
    (tmp_path / "b.caption").write_text("from the caption")
    assert crcl.read(tmp_path).captions == ["from the text", "from the caption"]


def test_what_has_no_partner_is_counted(tmp_path: Path) -> None:
    put(tmp_path, a="a caption", b="", c=b"caf\xe9", d="  \n\n")
    (tmp_path / "a.webp").write_bytes(PNG)  # the same stem as a.png
    (tmp_path / "readme.txt").write_text("about this")
    (tmp_path / "alone.jpg").write_bytes(PNG)
    (tmp_path / ".hidden").mkdir()
    put(tmp_path / ".hidden", e="not seen")
    pairs = crcl.read(tmp_path)
    assert (pairs.images, pairs.captions) == (["a.png"], ["a caption"])
    assert pairs.notes == (
        "3 images have no caption: no .txt of the same name, or an empty one",
        "1 text files have no image of the same name",
        "1 images share their name with an image of another format, which has the captions",
        "1 images have a .txt that is not UTF-8, leads outside of the folder or cannot be read",
    )


def test_nothing_outside_of_the_folder_is_read(tmp_path: Path) -> None:
    put(tmp_path / "outside", secret="a secret")
    folder = put(tmp_path / "data", a="one", b="two", c="three")
    (folder / "linked").symlink_to(tmp_path / "outside")
    (folder / "b.txt").unlink()
    (folder / "b.txt").symlink_to(tmp_path / "outside/secret.txt")
    (folder / "c.png").unlink()
    (folder / "c.png").symlink_to(tmp_path / "outside/secret.png")
    pairs = crcl.read(folder)
    assert pairs.captions == ["one", "three"]
    assert "leads outside of the folder" in pairs.notes[0]
    assert pairs.pictures is not None
    assert pairs.pictures.read("a.png") == PNG
    with pytest.raises(UnusableError, match="outside the folder"):
        pairs.pictures.read("c.png")


def test_a_hundred_thousand_captions_of_one_image_are_read(tmp_path: Path) -> None:
    put(tmp_path, a="".join(f"caption {number}\n" for number in range(100_000)), b="another")
    pairs = crcl.read(tmp_path)
    assert len(pairs) == 100_001
    assert len(set(pairs.images)) == 2


def test_files_of_img2dataset_are_read_and_failed_downloads_counted(tmp_path: Path) -> None:
    put(tmp_path / "00000", **{"000000000": "a dog", "000000002": "a cat"})
    (tmp_path / "00000/000000000.json").write_text('{"key": "000000000", "caption": "a dog"}')
    (tmp_path / "00000_stats.json").write_text("{}")
    status = {"key": ["000000000", "000000001", "000000002"], "status": ["success", "failed_to_download", "success"]}
    pa.parquet.write_table(pa.table(status), tmp_path / "00000.parquet")
    assert layout_of(tmp_path) == "captioned"
    pairs = crcl.read(tmp_path)
    assert pairs.images == ["00000/000000000.png", "00000/000000002.png"]
    assert pairs.notes == ("1 downloads had failed, as img2dataset's tables say; they have no image",)


def test_a_folder_without_captions_is_refused_and_a_run_is_no_such_folder(tmp_path: Path) -> None:
    assert "no image has a .txt with captions beside it; it contains no files" in refusal(tmp_path)
    assert "no such folder" in refusal(tmp_path / "absent")
    folder = put(tmp_path / "data", a="one")
    assert captioned.recognises(folder)
    (folder / "config.json").write_text("{}")
    assert not captioned.recognises(folder)
    assert not captioned.recognises(tmp_path / "absent")
    (tmp_path / "words").mkdir()
    (tmp_path / "words/a.txt").write_text("no image")
    assert layout_of(tmp_path / "words") is None
