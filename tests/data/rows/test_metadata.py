"""Metadata files: where they are found, and what their cells mean."""

import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from crcl.data.rows.metadata import Metadata, as_list, find_metadata, read_cells
from crcl.data.rows.tables import USUAL, Columns
from crcl.errors import InputError


def test_metadata_is_found_in_folders_and_zips_in_the_order_of_paths(tmp_path: Path) -> None:
    for folder in ("train", "data/test", ".hidden"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "metadata.csv").write_text("file_name,text\na.png,x\n")
    with zipfile.ZipFile(tmp_path / "dev.zip", "w") as archive:
        archive.writestr("inner/metadata.jsonl", "{}")
    found = find_metadata(tmp_path)
    assert [each.name for each in found] == [
        "data/test/metadata.csv",
        "dev.zip/inner/metadata.jsonl",
        "train/metadata.csv",
    ]
    assert [each.member for each in found][1] == "inner/metadata.jsonl"
    with found[1].opened() as path:
        assert path.read_text() == "{}"
    assert not path.exists()


def test_a_cell_is_relative_to_its_metadata_file(tmp_path: Path) -> None:
    metadata = Metadata(tmp_path, "train/metadata.csv")
    assert [metadata.image(cell) for cell in ("a.png", "./x/../a.png", "../b.png", "../../c.png", "/d.png", "")] == [
        "train/a.png",
        "train/a.png",
        "b.png",
        "../c.png",
        "/d.png",
        "",
    ]


def test_a_cell_of_captions_is_a_text_or_a_list() -> None:
    assert [as_list(cell) for cell in ("a", None, ["a", None], [])] == [["a"], [""], ["a", ""], [""]]
    with pytest.raises(TypeError):
        as_list([["a"]])


def test_lists_of_something_else_than_text_are_refused_with_their_type(tmp_path: Path) -> None:
    path = tmp_path / "metadata.parquet"
    pa.parquet.write_table(pa.table({"file_name": ["a.png"], "text": [[{"raw": "x"}]]}), path)
    with pytest.raises(InputError, match=r"column 'text' is list<.*raw: string>>, expected text or lists of text"):
        read_cells(path, USUAL)


def test_rows_are_counted_for_each_record(tmp_path: Path) -> None:
    path = tmp_path / "metadata.jsonl"
    path.write_text('\n{"file_name": "a", "text": ["x", "y"]}\n{"file_name": "b", "text": "z", "split": "val"}\n')
    with pytest.raises(InputError, match="empty split"):
        read_cells(path, USUAL)
    path.write_text('\n{"file_name": "a", "text": ["x", "y"]}\n{"file_name": "b", "text": "z"}\n')
    cells = read_cells(path, USUAL)
    assert cells.columns == Columns("file_name", "text")
    assert cells.lengths is not None
    assert cells.lengths.tolist() == [2, 1]
    assert cells.rows.to_pylist() == [
        {"image": "a", "caption": "x"},
        {"image": "a", "caption": "y"},
        {"image": "b", "caption": "z"},
    ]
    path.write_text('{"file_name": "a", "text": ["\\ud800"]}\n')
    with pytest.raises(InputError, match="contains text that is not UTF-8"):
        read_cells(path, USUAL)
    path.write_text('{"file_name": "a", "text": "x"}\n')
    assert read_cells(path, USUAL).lengths is None
