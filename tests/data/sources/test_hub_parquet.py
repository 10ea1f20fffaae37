"""Parquet with images in it: the hub's layout, one file, img2dataset's output; what is refused, and what is counted."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from annotated import documented
from drawn import assert_same_audit, drawn
from hub_files import STRUCT, cell, write_hub, write_parquet
from tiny import call

import crcl
from crcl.data.pairs import Pairs
from crcl.data.sources import layout_of
from crcl.data.sources.hub_parquet import recognises
from crcl.errors import InputError


def write(path: Path, captions: list[Any], **more: Any) -> Path:
    """A file with an image for each cell of captions."""
    images = [cell(f"{path.stem}{i}".encode(), f"{path.stem}/{i}.png") for i in range(len(captions))]
    return write_parquet(path, {"image": pa.array(images, STRUCT), "caption": captions} | more)


def rows_of(pairs: Pairs) -> list[tuple[str, ...]]:
    """All rows, as they are read."""
    rows = pairs.source.rows()
    assert rows is not None
    return [tuple(row.values()) for row in rows.to_pylist()]


def refusal(path: Path, **options: str) -> str:
    """The message with which reading is refused."""
    with pytest.raises(InputError) as caught:
        crcl.read(path, **options)
    return str(caught.value)


@pytest.mark.slow
def test_the_hub_layout_gives_the_audit_of_the_table(tmp_path: Path) -> None:
    folder = write_hub(drawn(), tmp_path / "hub")
    assert layout_of(folder) == "hub-parquet"
    assert_same_audit(folder, tmp_path)


@pytest.mark.slow
def test_lists_of_captions_give_the_audit_of_the_table(tmp_path: Path) -> None:
    assert_same_audit(write_hub(drawn(captions=2), tmp_path / "hub", several=True), tmp_path, captions=2)


def test_the_command_line_audits_and_cleans_a_folder_as_the_guide_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hub(drawn(), tmp_path / "flickr8k")
    monkeypatch.chdir(tmp_path)
    for words in documented("Parquet with the images in it"):
        done = call(capsys, monkeypatch, *words)
        assert done.code == 0, done.err
    assert "written to cleaned" in done.out + done.err
    names = sorted(file.name for file in (tmp_path / "flickr8k/data").iterdir())
    assert sorted(file.name for file in (tmp_path / "cleaned/data").iterdir()) == names
    assert layout_of("cleaned") == "hub-parquet"
    assert len(crcl.read("cleaned")) < 200
    done = call(capsys, monkeypatch, "clean", "flickr8k-audit/run", "-o", "flickr8k/data/more")
    assert done.code == 2
    assert "lies in the data" in done.err


def test_splits_are_in_the_names_of_files_and_validation_counts_as_dev(tmp_path: Path) -> None:
    write(tmp_path / "data/train-00000-of-00002.parquet", ["a", "b"])
    write(tmp_path / "data/train-00001-of-00002.parquet", ["c"])
    write(tmp_path / "data/validation-00000-of-00001.parquet", ["d"])
    write(tmp_path / "data/test-00000-of-00001.parquet", ["e"])
    pairs = crcl.read(tmp_path)
    assert pairs.splits == ["train", "dev", "test"]
    assert [(row[1], row[2]) for row in rows_of(pairs)] == [
        ("e", "test"),
        ("a", "train"),
        ("b", "train"),
        ("c", "train"),
        ("d", "dev"),
    ]


@pytest.mark.parametrize("names", [("train/0000", "test/0000"), ("plain/train-00000-of-00001", "plain/test")])
def test_splits_may_be_folders_and_one_configuration_is_read(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        write(tmp_path / f"{name}.parquet", [name])
    assert layout_of(tmp_path) == "hub-parquet"
    assert {row[1]: row[2] for row in rows_of(crcl.read(tmp_path))} == {names[0]: "train", names[1]: "test"}


def test_several_configurations_are_named(tmp_path: Path) -> None:
    for name in ("de", "en"):
        write(tmp_path / name / "train-00000-of-00001.parquet", ["a", "b"])
    assert layout_of(tmp_path) == "hub-parquet"
    assert "has 2 configurations: de, en; name the folder of one of them" in refusal(tmp_path)
    assert len(crcl.read(tmp_path / "en")) == 2


def test_one_file_or_one_split_is_divided_as_a_table_is(tmp_path: Path) -> None:
    file = write(tmp_path / "test-00000-of-00001.parquet", list("abcdefghij"))
    for path in (file, tmp_path):
        pairs = crcl.read(path)
        assert pairs.splits == ["train", "dev"]
        assert len(rows_of(pairs)[0]) == 2


def test_a_column_of_splits_counts_more_than_the_names_of_files(tmp_path: Path) -> None:
    write(tmp_path / "test-0.parquet", ["a", "b"], split=["restval", "val"])
    write(tmp_path / "train-0.parquet", ["c"], split=["train"])
    pairs = crcl.read(tmp_path)
    assert [row[1:] for row in rows_of(pairs)] == [("a", "restval"), ("b", "val"), ("c", "train")]
    assert pairs.splits == ["train", "dev"]


def test_files_of_which_only_some_name_a_split_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00001.parquet", ["a"])
    write(tmp_path / "extra.parquet", ["b"])
    assert "(train-00000-of-00001.parquet), but not that of extra.parquet; rename it" in refusal(tmp_path)


def test_captions_in_a_list_are_pairs_of_one_image(tmp_path: Path) -> None:
    pairs = crcl.read(write(tmp_path / "a.parquet", [["one", " two "], None, [], ["three", None]]))
    assert rows_of(pairs) == [
        ("a/0.png", "one"),
        ("a/0.png", "two"),
        ("a/1.png", ""),
        ("a/2.png", ""),
        ("a/3.png", "three"),
        ("a/3.png", ""),
    ]
    assert len(pairs.without_empty()) == 3


def test_sentences_of_karpathy_are_their_raw_text(tmp_path: Path) -> None:
    sentences = [[{"raw": "one", "sentid": 0}, {"raw": "two", "sentid": 1}], [{"raw": "three", "sentid": 2}]]
    images = pa.array([cell(b"1", "x"), cell(b"2", "y")], STRUCT)
    path = write_parquet(tmp_path / "a.parquet", {"image": images, "sentences": sentences, "filename": ["x", "y"]})
    assert rows_of(crcl.read(path)) == [("x", "one"), ("x", "two"), ("y", "three")]


def test_a_hundred_thousand_captions_of_one_image_are_read(tmp_path: Path) -> None:
    pairs = crcl.read(write(tmp_path / "a.parquet", [[f"{i}" for i in range(100_000)], ["z"]]))
    assert (len(pairs), len(set(pairs.images)), pairs.captions[99_999]) == (100_001, 2, "99999")


def test_other_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, {"photo": pa.array([b"1", b"2"], pa.binary()), "alt": ["a", "b"], "url": ["c", "d"]})
    assert layout_of(path) == "table"  # nothing says that these are images
    named = {"layout": "hub-parquet", "image_column": "photo", "caption_column": "alt"}
    pairs = crcl.read(path, **named)
    assert rows_of(pairs) == [("a.parquet:1", "a"), ("a.parquet:2", "b")]
    assert pairs.pictures is not None
    assert pairs.pictures.read("a.parquet:2") == b"2"
    assert "no column 'alte' (did you mean 'alt'?)" in refusal(path, **named | {"caption_column": "alte"})
    assert "image and caption must be two columns" in refusal(path, **named | {"caption_column": "photo"})


def test_img2dataset_rows_that_failed_are_told_with_their_status(tmp_path: Path) -> None:
    for number in range(2):
        columns = {
            "url": ["u", "v", "w"],
            "key": [f"{number}00", f"{number}01", f"{number}02"],
            "caption": ["a", "b", "c"],
            "status": ["success", "failed_to_download", "failed_to_resize"],
            "jpg": pa.array([b"x", None, None], pa.binary()),
        }
        write_parquet(tmp_path / f"0000{number}.parquet", columns)
        (tmp_path / f"0000{number}_stats.json").write_text("{}")
    assert layout_of(tmp_path) == "hub-parquet"
    pairs = crcl.read(tmp_path)
    assert rows_of(pairs)[:3] == [("000", "a"), ("", "b"), ("", "c")]
    assert len(pairs.without_empty()) == 2
    assert pairs.notes == (
        "4 of 6 rows have no image in column 'jpg' (status: 2 failed_to_download, 2 failed_to_resize)",
    )


def test_plain_tables_runs_and_other_folders_are_not_taken_for_it(tmp_path: Path) -> None:
    table = write_parquet(tmp_path / "tables/pairs.parquet", {"image": ["a.png"], "caption": ["x"]})
    assert layout_of(table) == "table"
    assert not recognises(tmp_path / "tables")
    write(tmp_path / "run/data/train-0.parquet", ["a"])
    assert recognises(tmp_path / "run")
    (tmp_path / "run/config.json").write_text("{}")
    assert layout_of(tmp_path / "run") is None
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/a.parquet").write_bytes(b"PAR1 and no more")
    for path in ("broken", "broken/a.parquet", "none", "none.parquet"):
        assert not recognises(tmp_path / path)
    (tmp_path / "none").mkdir()
    assert "no Parquet files" in refusal(tmp_path / "none", layout="hub-parquet")


def test_files_that_differ_in_their_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["x"])
    write(tmp_path / "b.parquet", [["x", "y"]])
    assert "b.parquet: its columns of images and captions (image: struct<bytes: binary, path: string>" in refusal(
        tmp_path
    )
    assert "differ from those of a.parquet" in refusal(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["x", "y"])
    raw = write(tmp_path / "b.parquet", ["x", "y"]).read_bytes()
    (tmp_path / "b.parquet").write_bytes(raw[: len(raw) // 2])
    assert f"{tmp_path / 'b.parquet'}: not a readable parquet file" in refusal(tmp_path)


def test_a_file_without_rows_is_refused_and_among_others_is_nothing(tmp_path: Path) -> None:
    empty = {"image": pa.array([], STRUCT), "caption": pa.array([], pa.string())}
    write_parquet(tmp_path / "a.parquet", empty)
    assert "has no rows" in refusal(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", ["x", "y"])
    assert len(crcl.read(tmp_path)) == 2


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    write(tmp_path / "a.parquet", broken)  # type: ignore[arg-type]
    assert "a.parquet: not a readable parquet file (" in refusal(tmp_path / "a.parquet")


def test_bytes_that_are_no_image_are_skipped_with_the_reason(tmp_path: Path) -> None:
    data = drawn()
    contents = [*data.pictures[:6], b"<html>404</html>", b""]
    images = [cell(content, f"{i}") for i, content in enumerate(contents)]
    path = write_parquet(
        tmp_path / "a.parquet", {"image": pa.array(images, STRUCT), "text": [f"t{i}" for i in range(8)]}
    )
    made = crcl.extract_features(crcl.read(path), tmp_path / "features")
    assert made.skipped == [("7", "empty file"), ("6", "not an image of a known format")] or dict(made.skipped) == {
        "6": "not an image of a known format",
        "7": "empty file",
    }
    assert made.images == 6


def test_files_that_are_counted_and_not_there_are_told(tmp_path: Path) -> None:
    folder = write_hub(drawn(20), tmp_path / "data")
    assert crcl.read(folder).notes == ()
    (folder / "data" / "train-00001-of-00002.parquet").unlink()
    assert crcl.read(folder).notes == ("1 of 2 files data/train-*-of-00002 is not there",)
    assert crcl.read(folder / "data" / "train-00000-of-00002.parquet").notes == ()
