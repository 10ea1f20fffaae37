"""Images in columns of Parquet files: their names, and reading single ones."""

import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hub_files import STRUCT, cell, write_parquet

from crcl.data.pairs import Pairs
from crcl.data.pictures import columns
from crcl.data.pictures.base import UnusableError, Wanted
from crcl.data.pictures.columns import ParquetImages
from crcl.data.rows.cells import find_cells
from crcl.data.rows.tables import USUAL
from crcl.errors import InputError


def images_of(folder: Path, *files: str) -> ParquetImages:
    """The images in files of a folder."""
    schema = pa.parquet.read_schema(folder / files[0])
    return ParquetImages.at(folder, files, find_cells("x", schema, USUAL))


def write(path: Path, cells: list[dict[str, object] | None], **options: int) -> ParquetImages:
    """A file with these images."""
    write_parquet(path, {"image": pa.array(cells, STRUCT), "caption": ["x"] * len(cells)}, **options)
    return images_of(path.parent, path.name)


def test_an_image_has_the_path_in_the_file_and_without_one_the_file_and_the_row(tmp_path: Path) -> None:
    found = write(tmp_path / "a.parquet", [cell(b"1", "x.png"), cell(b"2"), cell(b"3", " "), None, cell(None)], group=2)
    assert found.names().to_pylist() == ["x.png", "a.parquet:2", "a.parquet:3", "", ""]
    assert [found.read(name) for name in found.names().to_pylist()[:3]] == [b"1", b"2", b"3"]


def test_a_path_that_repeats_is_one_image_only_where_the_bytes_are_the_same(tmp_path: Path) -> None:
    contents = [b"1", b"1", b"2", b"3", b"2", None, b"1"]
    found = write(tmp_path / "a.parquet", [cell(content, "same.jpg") for content in contents], group=2)
    names = found.names().to_pylist()
    assert names == ["same.jpg", "same.jpg", *("same.jpg#3", "same.jpg#4", "same.jpg#3", "same.jpg#6"), "same.jpg"]
    assert [found.read(name) for name in names if name != "same.jpg#6"] == [b"1", b"1", b"2", b"3", b"2", b"1"]
    with pytest.raises(UnusableError, match="only its path is in the Parquet file"):
        found.read("same.jpg#6")


def test_bytes_are_compared_over_several_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [cell(b"1", "x"), cell(b"2", "y")])
    write(tmp_path / "b.parquet", [cell(b"1", "x"), cell(b"other", "y"), cell(b"3")])
    found = images_of(tmp_path, "a.parquet", "b.parquet")
    assert found.names().to_pylist() == ["x", "y", "x", "y#4", "b.parquet:3"]
    assert [found.read(name) for name in ("y#4", "x", "b.parquet:3", "y")] == [b"other", b"1", b"3", b"2"]


def test_made_names_keep_clear_of_those_in_the_file(tmp_path: Path) -> None:
    cells = [cell(b"1", "x"), cell(b"2", "x"), cell(b"3", "x#2"), cell(b"4"), cell(b"5", "a.parquet:4")]
    found = write(tmp_path / "a.parquet", cells)
    names = found.names().to_pylist()
    assert names == ["x", "x#2#", "x#2", "a.parquet:4#", "a.parquet:4"]
    assert [found.read(name) for name in names] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("path", ["a\nb.png", "a\r.png", "a\0b.png", "\ufeffa.png", "a\u2028b"])
def test_a_path_that_does_not_fit_on_one_line_is_not_used(tmp_path: Path, path: str) -> None:
    assert write(tmp_path / "a.parquet", [cell(b"1", path)]).names().to_pylist() == ["a.parquet:1"]


@pytest.mark.parametrize("path", ["/etc/hosts", "../secret.png", "file:///etc/hosts"])
def test_a_path_is_only_a_name_and_nothing_outside_is_read(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "data").mkdir()
    found = write(tmp_path / "data/a.parquet", [cell(b"inside", path), cell(None, f"{path}2")])
    assert found.read(path) == b"inside"
    with pytest.raises(UnusableError, match="only its path"):
        found.read(f"{path}2")


@pytest.mark.parametrize("name", ["none", "a.parquet:0", "a.parquet:9", "x#0", "x#99", "b.parquet:1", ""])
def test_an_unknown_name_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnusableError, match="not found"):
        write(tmp_path / "a.parquet", [cell(b"1", "x"), cell(b"2")]).read(name)


def test_plain_bytes_are_named_by_their_key(tmp_path: Path) -> None:
    content = pa.array([b"1", None, b"2", b""], pa.binary())
    write_parquet(tmp_path / "a.parquet", {"jpg": content, "key": ["0", "1", "1", "3"], "caption": list("abcd")})
    found = images_of(tmp_path, "a.parquet")
    assert found.names().to_pylist() == ["0", "", "1#3", "3"]
    assert found.read("1#3") == b"2"
    with pytest.raises(UnusableError, match="empty file"):
        found.read("3")


def test_no_bytes_are_read_to_find_names_where_nothing_is_missing_or_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = write(tmp_path / "a.parquet", [cell(b"1", "x"), cell(b"2", "y"), cell(b"3")])
    monkeypatch.setattr(ParquetImages, "walk", None)
    assert found.names().to_pylist() == ["x", "y", "a.parquet:3"]


def test_a_large_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="11 bytes, more than 10"):
        write(tmp_path / "a.parquet", [cell(b"x" * 11, "x")]).read("x", most=10)


@pytest.mark.parametrize("kept", [2**20, 40])
def test_any_order_gives_the_same_images_and_a_row_group_is_decoded_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(columns, "_CHUNK", kept)
    found = write(tmp_path / "a.parquet", [cell(f"{i:09d}".encode(), f"{i}") for i in range(50)], group=10)
    begun: list[int] = []
    start = columns._Reader._start
    monkeypatch.setattr(
        columns._Reader, "_start", lambda self, *places: (begun.append(places[1]), start(self, *places))[1]
    )
    for i in range(50):
        assert found.read(f"{i}") == f"{i:09d}".encode()
    assert begun == [0, 10, 20, 30, 40]
    for i in (7, 3, 49, 48, 12, 12, 19, 0):
        assert found.read(f"{i}") == f"{i:09d}".encode()


def test_threads_and_processes_read_from_copies(tmp_path: Path) -> None:
    found = write(tmp_path / "a.parquet", [cell(f"{i}".encode() * 99, f"{i}") for i in range(60)], group=10)
    wanted = [Wanted(f"{i * 7 % 60}", pickle.loads(pickle.dumps(found))) for i in range(60)]
    expected = [image.name.encode() * 99 for image in wanted]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(Wanted.read, wanted)) == expected
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as workers:
        assert list(workers.map(Wanted.read, wanted, chunksize=20)) == expected
    assert len({*wanted, Wanted("0", found)}) == 60


def test_a_file_that_vanishes_or_changes_makes_its_images_unusable(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [cell(b"1", "x")])
    write(tmp_path / "b.parquet", [cell(b"2", "y"), cell(b"3", "z")])
    found = images_of(tmp_path, "a.parquet", "b.parquet")
    assert found.read("x") == b"1"
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(UnusableError, match=r"b.parquet: not a readable parquet file \(not found"):
        found.read("y")
    write(tmp_path / "b.parquet", [cell(b"3", "z")])
    with pytest.raises(UnusableError, match="has changed since"):
        found.read("z")
    assert found.read("x") == b"1"


def test_a_damaged_page_of_images_is_unusable(tmp_path: Path) -> None:
    found = write(tmp_path / "a.parquet", [cell(b"q" * 999 + bytes([i]), f"{i}") for i in range(9)], group=9)
    assert found.names()[0].as_py() == "0"
    raw = bytearray((tmp_path / "a.parquet").read_bytes())
    raw[10:200] = b"\xff" * 190
    (tmp_path / "a.parquet").write_bytes(raw)
    found = images_of(tmp_path, "a.parquet")
    for name in ("0", "1", "0"):
        with pytest.raises(UnusableError, match="cannot be read"):
            found.read(name)


def test_damaged_names_of_columns_are_no_crash(tmp_path: Path) -> None:
    path, column = tmp_path / "a.parquet", b"image"
    write_parquet(path, {"image": pa.array([b"1", b"2"]), "caption": ["x", "y"]})
    raw, at, refused = path.read_bytes(), -1, []
    while (at := raw.find(column, at + 1)) >= 0:
        path.write_bytes(raw[:at] + b"\x9b" + raw[at + 1 :])
        try:
            Pairs.of(path)
        except InputError as error:
            refused.append(str(error))
    assert refused
    assert all("a.parquet" in message for message in refused)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [cell(b"1", "x")])
    with pytest.raises(InputError, match=r"b.parquet: not a readable parquet file"):
        images_of(tmp_path, "a.parquet", "b.parquet")
