"""Columns of images and captions are found by type and name, and captions come one by one."""

import pyarrow as pa
import pytest
from hub_files import STRUCT

from crcl.data.rows.cells import find_cells, has_pictures, take_apart
from crcl.data.rows.tables import USUAL, Columns
from crcl.errors import InputError

TURNED = pa.struct([("path", pa.string()), ("bytes", pa.large_binary())])
RAW = pa.list_(pa.struct([("tokens", pa.list_(pa.string())), ("raw", pa.string())]))


@pytest.mark.parametrize(
    ("columns", "image", "caption"),
    [
        ({"image": STRUCT, "caption": pa.string()}, "image", "caption"),
        ({"text": pa.string(), "photo": TURNED}, "photo", "text"),
        ({"jpg": pa.binary(), "caption": pa.string(), "key": pa.string(), "hash": pa.binary()}, "jpg", "caption"),
        ({"image": STRUCT, "thumb": STRUCT, "captions": pa.list_(pa.string())}, "image", "captions"),
        ({"image": STRUCT, "url": pa.string(), "prompt": pa.string()}, "image", "prompt"),
        ({"image": STRUCT, "sentences": RAW, "url": pa.string()}, "image", "sentences"),
        ({"image": STRUCT, "sentences": pa.list_(pa.struct({"text": pa.string()}))}, "image", "sentences"),
        ({"image": STRUCT, "sentences": pa.struct({"id": pa.int64(), "raw": pa.string()})}, "image", "sentences"),
        ({"image": STRUCT, "captions": pa.struct({"caption": pa.list_(pa.string())})}, "image", "captions"),
        ({"image": STRUCT, "what": pa.string(), "about": pa.struct({"text": pa.string()})}, "image", "what"),
        ({"image": STRUCT, "what": pa.large_string(), "split": pa.string()}, "image", "what"),
        ({"image": STRUCT, "text": pa.int64(), "title": pa.string(), "url": pa.string()}, "image", "title"),
    ],
)
def test_columns_are_found_by_type_and_usual_names(columns: dict[str, pa.DataType], image: str, caption: str) -> None:
    found = find_cells("x", pa.schema(columns), USUAL)
    assert (found.image, found.caption) == (image, caption)
    assert has_pictures(pa.schema(columns))


def test_names_of_images_are_the_path_of_the_struct_or_the_key_beside_bytes() -> None:
    schema = {"caption": pa.string(), "key": pa.string()}
    assert find_cells("x", pa.schema({"image": STRUCT} | schema), USUAL).names == "image.path"
    assert find_cells("x", pa.schema({"png": pa.binary()} | schema), USUAL).names == "key"
    assert find_cells("x", pa.schema({"png": pa.binary(), "caption": pa.string()}), USUAL).names is None


def test_a_table_that_names_its_images_has_none_itself() -> None:
    assert not has_pictures(pa.schema({"image": pa.string(), "caption": pa.string(), "bytes": pa.binary()}))
    assert not has_pictures(pa.schema({"file": pa.string(), "sha": pa.binary()}))


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        (
            {"a": STRUCT, "b": STRUCT, "caption": pa.string()},
            USUAL,
            "several columns of images: a, b; pass image_column",
        ),
        (
            {"caption": pa.string(), "n": pa.int64()},
            USUAL,
            r"no column of images \(.*\); columns: caption .string., n .int64.",
        ),
        ({"image": STRUCT, "a": pa.string(), "b": pa.string()}, USUAL, "no column of captions .* pass caption_column"),
        (
            {"image": STRUCT, "sentences": pa.list_(pa.struct({"en": pa.string()}))},
            USUAL,
            "no column of captions .* image .struct<.*>., sentences .list<.*struct<en: string>>.; pass",
        ),
        (
            {"image": STRUCT, "caption": pa.string()},
            Columns("imag", "caption"),
            "no column 'imag' .did you mean 'image'",
        ),
        ({"image": STRUCT, "caption": pa.int64()}, Columns("image", "n"), "no column 'n'"),
        (
            {"image": STRUCT, "n": pa.int64()},
            Columns("image", "n"),
            "column 'n' is int64, expected text, lists of text, or structs with a field raw, text or caption",
        ),
    ],
)
def test_what_is_not_found_is_told_with_the_columns(
    columns: dict[str, pa.DataType], given: Columns, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        find_cells("x", pa.schema(columns), given)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two columns 'caption'"):
        find_cells("x", pa.schema([("image", STRUCT), ("caption", pa.string()), ("caption", pa.string())]), USUAL)


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda inner: pa.list_(inner, 2)])
def test_lists_of_captions_come_one_by_one_and_empty_ones_have_one_empty_caption(kind: object) -> None:
    lists = [["a", "b"], None, ["c", None]] if kind not in (pa.list_, pa.large_list) else [["a"], None, [], ["b", None]]
    rows, texts = take_apart(pa.array(lists, kind(pa.string())))  # type: ignore[operator]
    expected = [(row, text or "") for row, each in enumerate(lists) for text in each or [""]]
    assert list(zip(rows.tolist(), texts.to_pylist(), strict=True)) == expected


@pytest.mark.parametrize("name", ["raw", "text", "caption"])
def test_captions_that_are_structs_are_their_field_of_text(name: str) -> None:
    one = pa.struct([("id", pa.int64()), (name, pa.string())])
    rows, texts = take_apart(pa.array([[{name: "a", "id": 1}], [{name: None}, {name: "c"}]], pa.list_(one)))
    assert (rows.tolist(), texts.to_pylist()) == ([0, 1, 1], ["a", "", "c"])
    rows, texts = take_apart(pa.array([{name: "a"}, None, {name: None}], one))
    assert (rows.tolist(), texts.to_pylist()) == ([0, 1, 2], ["a", "", ""])
    several = pa.struct([("id", pa.list_(pa.int64())), (name, pa.list_(pa.string()))])
    rows, texts = take_apart(pa.array([{name: ["a", "b"]}, None, {name: []}, {name: [None]}], several))
    assert (rows.tolist(), texts.to_pylist()) == ([0, 0, 1, 2, 3], ["a", "b", "", "", ""])


def test_a_part_of_a_column_is_taken_apart_as_such() -> None:
    rows, texts = take_apart(pa.array([["x"], ["a", "b"], [], ["y"]]).slice(1, 2))
    assert (rows.tolist(), texts.to_pylist()) == ([0, 0, 1], ["a", "b", ""])
