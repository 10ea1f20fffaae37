"""Messages about paths that no layout recognises: they say what was found, and what to do."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from tiny import call

import crcl
from crcl.data.sources import layout_of
from crcl.data.sources.unknown import READABLE, not_recognised
from crcl.errors import InputError


def said(path: Path, content: Any = None) -> str:
    """The message about a path; if content is given, it is written to that file first."""
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert layout_of(path) is None
    return str(not_recognised(path))


@pytest.mark.parametrize(
    ("content", "found", "hint"),
    [
        ([{"img": "a.jpg", "text": "a dog"}], "a JSON list of objects with the keys img, text", "to a .jsonl file"),
        ({"rows": [1], "about": {"x": 1}}, "a JSON object with the keys about, rows", "Karpathy's splits"),
        ({"images": [], "annotations": []}, "with the keys annotations, images", "name it by layout=..."),
        ([1, 2], "a JSON list, neither", "COCO captions"),
        (b"<html>", "not a JSON object or list", "get it again"),
        (b"", "an empty file", "get it again"),
        (b"[" * 100_000, "a JSON list", "COCO captions"),
    ],
)
def test_of_json_the_message_tells_what_is_inside_and_what_is_read(
    tmp_path: Path, content: Any, found: str, hint: str
) -> None:
    message = said(tmp_path / "other.json", content)
    assert found in message
    assert "neither a run folder nor data that is recognised" in message
    assert hint in message


def test_a_zip_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("train/metadata.csv", "file_name,text\na.jpg,a dog\n")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("photos/a.jpg", b"x")
    assert "a zip file of an imagefolder" in said(tmp_path / "a.zip")
    assert "move it to a folder of its own, and name that folder" in said(tmp_path / "a.zip")
    assert "a zip file with photos/a.jpg in it" in said(tmp_path / "b.zip")
    assert "unpack it" in said(tmp_path / "b.zip")
    assert "a zip file that cannot be read" in said(tmp_path / "c.zip", b"PK")
    with pytest.raises(InputError, match=r"a zip file of an imagefolder, expected a folder; move it"):
        crcl.read(tmp_path / "a.zip", layout="imagefolder")


def test_of_a_folder_the_message_tells_which_file_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert "it contains data; tables" in said(tmp_path)
    (tmp_path / "data" / "train-00000.parquet").write_bytes(b"PAR1 cut off")
    assert "data/train-00000.parquet is not a readable parquet file" in said(tmp_path)
    (tmp_path / "metadata.csv").write_text("image,text\na.jpg,a dog\n", "utf-8")
    assert "metadata.csv has no column file_name, but image, text" in said(tmp_path)
    assert f"to read a table, name the file: {tmp_path / 'metadata.csv'}" in said(tmp_path)
    assert said(tmp_path).endswith(f"{READABLE} are read")
    pa.parquet.write_table(pa.table({"x": [1]}), tmp_path / "data" / "train-00000.parquet")
    assert "not a readable" not in said(tmp_path)


@pytest.mark.parametrize("command", ["audit", "info"])
def test_commands_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "other.json").write_text('{"a\\u001b[31m{": 1}', "utf-8")
    (tmp_path / "empty").mkdir()
    answer = call(capsys, monkeypatch, command, str(tmp_path / "other.json"))
    assert answer.code == 2
    assert "a JSON object with the keys a\\x1b[31m{, neither a run folder nor data" in answer.err
    assert "name it by --layout" in answer.err
    answer = call(capsys, monkeypatch, command, str(tmp_path / "empty"))
    assert answer.code == 2
    assert "nor data that is recognised; it contains no files" in answer.err


@pytest.mark.parametrize(
    "name", ["metadata.csv", "metadata.jsonl", "a.zip", "captions_train.json", "pairs.csv", "pairs.json", "x/0.npz"]
)
def test_pipes_are_not_read_since_they_never_end(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / "data" / name
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    for path in (tmp_path / "data", pipe):
        with pytest.raises(InputError):
            crcl.read(path)
    with pytest.raises(InputError, match="a pipe or a device, not a file"):
        layout_of(pipe)


def test_braces_in_the_name_of_a_file_are_only_braces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a{b}{.csv").write_text("image,caption\na.jpg,a dog\nb.jpg,a cat\n", "utf-8")
    answer = call(capsys, monkeypatch, "evaluate", str(tmp_path / "a{b}{.csv"))
    assert answer.code == 2
    assert "name a run, such as that of its audit" in answer.err
