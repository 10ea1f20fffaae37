"""Data sets of the library `datasets`, in memory and by name."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from annotated import documented
from drawn import SETTINGS, drawn, reference
from hub_files import cell, write_hub
from PIL import Image
from tiny import call

import crcl
from crcl.data.pairs import Pairs
from crcl.data.sources import layout_of
from crcl.errors import InputError

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()


def made(columns: dict[str, list[Any]], image: str = "image", **features: Any) -> Any:
    """A data set with a column of images."""
    kinds = {name: datasets.Value("string") for name in columns} | {image: datasets.Image()} | features
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def scenes(split: str) -> Any:
    """The drawn scenes of a split."""
    data = drawn()
    rows = [i for i, name in enumerate(data.splits) if name == split]
    images = [cell(data.pictures[i], data.names[i]) for i in rows]
    return made({"image": images, "text": [data.captions[i][0] for i in rows], "url": [f"u{i}" for i in rows]})


def rows_of(pairs: Pairs) -> list[tuple[str, ...]]:
    """All rows, as they are read."""
    rows = pairs.source.rows()
    assert rows is not None
    return [tuple(row.values()) for row in rows.to_pylist()]


def refusal(data: Any, **options: Any) -> str:
    """The message with which reading is refused."""
    with pytest.raises(InputError) as caught:
        crcl.read(data, **options)
    return str(caught.value)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with the cache of `datasets` in it."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_splits_of_a_dictionary_give_the_audit_of_the_table_and_are_saved_with_it(tmp_path: Path) -> None:
    expected = reference(tmp_path / "reference")
    data = datasets.DatasetDict({"train": scenes("train"), "validation": scenes("val")})
    found = crcl.audit(data, tmp_path / "audit", settings=SETTINGS)
    assert found.findings.pairs.captions == expected.findings.pairs.captions
    np.testing.assert_array_equal(found.correspondence, expected.correspondence)
    assert (found.rate, found.precision) == (expected.rate, expected.precision)
    saved = tmp_path / "audit/data"
    assert [(saved / f"images/{i:07d}.png").read_bytes() for i in range(200)] == drawn().pictures
    done = crcl.clean(tmp_path / "audit/run", saved.parent / "cleaned.parquet")
    cleaned = pyarrow.parquet.read_table(saved.parent / "cleaned.parquet")
    assert cleaned.column_names == ["image", "text", "split", "url"]
    assert len(cleaned) == 200 - done.removed < 200
    assert cleaned["url"].to_pylist() == [f"u{int(name[7:14])}" for name in cleaned["image"].to_pylist()]


def test_bytes_are_kept_and_files_get_the_ending_of_their_format(tmp_path: Path) -> None:
    (tmp_path / "file.webp").write_bytes(b"RIFF0000WEBP")
    contents = [b"\xff\xd8\xff 1", b"\x89PNG 2", b"<html>", None, None]
    images: list[Any] = [cell(content) for content in contents]
    images[3]["path"], images[4]["path"] = str(tmp_path / "file.webp"), str(tmp_path / "none.gif")
    pairs = crcl.read(made({"image": images, "caption": list("abcde")}))
    names = [f"images/000000{name}" for name in ("0.jpg", "1.png", "2.bin", "3.webp", "4.gif")]
    assert pairs.images == names
    saved = pairs.save(tmp_path / "saved")
    found = sorted(str(file.relative_to(tmp_path / "saved")) for file in (tmp_path / "saved/images").iterdir())
    assert found == names[:4]
    assert saved.pictures is not None
    assert [saved.pictures.read(name) for name in names[:4]] == [*contents[:3], b"RIFF0000WEBP"]
    assert rows_of(saved) == rows_of(pairs)
    assert pairs.save(tmp_path / "saved").images == names  # again, which writes nothing
    images[0]["bytes"] = b"\xff\xd8\xff other"
    with pytest.raises(InputError, match="contains other data"):
        crcl.read(made({"image": images, "caption": list("abcde")})).save(tmp_path / "saved")


def test_lists_of_captions_are_pairs_of_one_image_and_other_columns_go_along(tmp_path: Path) -> None:
    columns = {"image": [cell(b"1"), None, cell(b"3")], "captions": [["a", "b"], ["c"], []], "id": list("xyz")}
    data = made(columns, captions=datasets.List(datasets.Value("string")))
    pairs = crcl.read(data)
    assert rows_of(pairs) == [
        ("images/0000000.bin", "a"),
        ("images/0000000.bin", "b"),
        ("", "c"),
        ("images/0000002.bin", ""),
    ]
    pairs.save(tmp_path / "saved")
    table = pyarrow.parquet.read_table(tmp_path / "saved/pairs.parquet")
    assert table["id"].to_pylist() == ["x", "x", "y", "z"]
    assert table["captions"].to_pylist() == ["a", "b", "c", ""]


def test_a_path_that_repeats_is_one_image_where_the_bytes_are_the_same() -> None:
    images = [cell(b"1", "x"), cell(b"2", "x"), cell(b"1", "x"), cell(b"1"), cell(b"1")]
    pairs = crcl.read(made({"image": images, "caption": list("abcde")}))
    assert [name[13:14] for name in pairs.images] == ["0", "1", "0", "3", "4"]


def test_pictures_in_memory_and_selected_rows_are_read() -> None:
    shades = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in range(4)]
    data = made({"photo": shades, "caption": list("abcd")}, "photo").select([3, 1, 2])
    pairs = crcl.read(data, image_column="photo")
    assert pairs.captions == ["d", "b", "c"]
    assert pairs.pictures is not None
    file = pairs.pictures.read(pairs.images[0])
    assert file.startswith(b"\x89PNG")


def test_a_column_of_splits_is_read_and_one_split_is_divided(tmp_path: Path) -> None:
    images = [cell(b"1"), cell(b"2"), cell(b"3")]
    data = made({"image": images, "caption": list("abc"), "split": ["restval", "val", "test"]})
    pairs = crcl.read(datasets.DatasetDict({"test": data}))
    assert [row[2] for row in rows_of(pairs)] == ["restval", "val", "test"]
    assert pairs.splits == ["train", "dev", "test"]
    data = datasets.DatasetDict({"test": data.remove_columns("split")})
    assert crcl.read(data).splits == ["train", "dev"]


def test_a_data_set_that_names_its_images_is_read_as_a_table() -> None:
    data = datasets.Dataset.from_dict({"image": ["a.png", "b.png"], "caption": [["x", "y"], ["z"]]})
    pairs = crcl.read(datasets.DatasetDict({"train": data, "val": data.select([1])}))
    assert [row[:3] for row in rows_of(pairs)] == [
        ("a.png", "x", "train"),
        ("a.png", "y", "train"),
        ("b.png", "z", "train"),
        ("b.png", "z", "val"),
    ]


def test_what_cannot_be_read_is_refused() -> None:
    data = made({"image": [cell(b"1")], "caption": ["a"]})
    assert "load it without streaming=True" in refusal(data.to_iterable_dataset())
    assert "load it without streaming=True" in refusal(datasets.DatasetDict({}))
    other = datasets.DatasetDict({"train": data, "test": data.rename_column("caption", "text")})
    assert "the splits 'train' and 'test' have different columns" in refusal(other)
    assert "no column 'txt'" in refusal(data, caption_column="txt")
    assert "has no rows" in refusal(data.select([]))


def test_a_name_on_the_hub_is_loaded_with_all_splits(cache: Path) -> None:
    write_hub(drawn(), cache / "me/scenes")  # `datasets` reads a folder of this name as it would the hub's
    assert layout_of("hub:me/scenes") == "datasets"
    pairs = crcl.read("hub:me/scenes")
    assert (len(pairs), pairs.splits, pairs.name) == (200, ["train", "dev"], "hub:me/scenes")
    assert pairs.pictures is not None
    assert pairs.pictures.read(pairs.images[7]) == drawn().pictures[7]
    assert len(crcl.read("me/scenes", layout="datasets")) == 200


def test_data_on_the_hub_that_only_names_its_images_goes_by_its_own_name(cache: Path) -> None:
    (cache / "me/names").mkdir(parents=True)
    (cache / "me/names/train.csv").write_text("image,caption\na.png,x\nb.png,y\n")
    assert crcl.read("hub:me/names").name == "hub:me/names"
    with pytest.raises(InputError, match="hub:me/names: no column 'alt'; columns: image, caption"):
        crcl.read("hub:me/names", caption_column="alt")


def test_a_name_on_the_hub_is_audited_by_the_command_line(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hub(drawn(), cache / "nlphuji/flickr30k")
    commands = documented("Data sets of the library datasets")
    for words in commands:
        answer = call(capsys, monkeypatch, *words)
        assert answer.code == 0, answer.err
    assert (cache / "flickr30k-audit/report/index.html").is_file()
    assert (cache / "flickr30k-audit/data/images/0000199.png").read_bytes() == drawn().pictures[199]
    assert len(pyarrow.parquet.read_table("cleaned.parquet")) < 200
    assert call(capsys, monkeypatch, *commands[0]).code == 0  # resumes


def test_a_configuration_is_the_third_part_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    data = datasets.DatasetDict({"train": made({"image": [cell(b"1"), cell(b"2")], "caption": ["a", "b"]})})
    monkeypatch.setattr(datasets, "load_dataset", lambda *names: asked.append(names) or data)
    crcl.read("hub:user/name/config")
    crcl.read(Path("hub:user/name"))
    assert asked == [("user/name", "config"), ("user/name", None)]


@pytest.mark.parametrize("name", ["hub:", "hub:../etc", "hub:/etc", "hub:a/b/c/d", "hub:a b", "hub:..", "hub:a/.."])
def test_what_is_no_name_on_the_hub_is_refused(name: str) -> None:
    assert f"{name}: not a name on the hub; write hub:USER/NAME" in refusal(name)


def test_a_name_that_cannot_be_loaded_is_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise ConnectionError("Couldn't reach\nthe Hub")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    assert "hub:me/none: cannot be loaded (Couldn't reach the Hub); check the name" in refusal("hub:me/none")
    answer = call(capsys, monkeypatch, "audit", "hub:me/none")
    assert (answer.code, "Traceback" in answer.err) == (2, False)


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "need the package datasets; pip install 'crcl[datasets]'" in refusal("hub:me/scenes")


def test_data_from_the_hub_reads_no_file_outside_of_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "cache").mkdir()
    (cache / "cache/in.png").write_bytes(b"in")
    (cache / "secret.png").write_bytes(b"secret")
    images = [cell(None, str(cache / "cache/in.png")), cell(None, str(cache / "secret.png"))]
    data = datasets.DatasetDict({"train": made({"image": images, "caption": ["a", "b"]})})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: data)
    pairs = crcl.read("hub:me/them")
    pairs.save(cache / "saved")
    assert [file.read_bytes() for file in (cache / "saved/images").iterdir()] == [b"in"]
