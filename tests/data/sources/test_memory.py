"""Data in memory: tables of columns, lists of images, arrays of features."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from crcl.data.pairs import Pairs
from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.files import Files
from crcl.data.rows.tables import Columns
from crcl.errors import InputError

IMAGES = ["a.jpg", "b.jpg", "a.jpg", "c.jpg"]
CAPTIONS = ["a dog", "a cat", "the dog", "a car"]
SPLITS = ["train", "train", "train", "val"]
FEATURES = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)


def refusal(*given: Any, **options: Any) -> str:
    """The message with which pairs are refused, when they are given or when they are read."""
    with pytest.raises(InputError) as caught:
        Pairs.of(*given, **options).split("train")
    return str(caught.value)


def columns(**changes: Any) -> dict[str, Any]:
    """Columns of a small table."""
    return {"image": IMAGES, "caption": CAPTIONS, "split": SPLITS} | changes


class Frame:
    """What is used of a DataFrame, without pandas."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.columns = list(content)

    def __dataframe__(self) -> None:
        """Marks a table."""

    def __getitem__(self, column: str) -> np.ndarray:
        return np.array(self.content[column], dtype=object)


@pytest.mark.parametrize("make", [dict, pa.table, Frame], ids=["dict", "pyarrow", "frame"])
def test_a_table_of_columns_is_read_whatever_holds_it(make: Any) -> None:
    pairs = Pairs.of(make(columns()), features=FEATURES, ids=["c.jpg", "a.jpg", "b.jpg"])
    train, dev = pairs.split("train"), pairs.split("dev")
    assert pairs.splits == ["train", "dev"]
    assert (train.captions, train.image_ids) == (["a dog", "a cat", "the dog"], ["a.jpg", "b.jpg"])
    assert train.image_index.tolist() == [0, 1, 0]
    assert np.array_equal(train.gather(np.array([0, 1])), FEATURES[[1, 2]])
    assert np.array_equal(dev.gather(np.array([0])), FEATURES[[0]])


def test_a_pandas_data_frame_is_a_table_with_its_own_kinds_of_nothing() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"picture": IMAGES, "text": ["a dog", np.nan, pandas.NA, "a car"]})
    pairs = Pairs.of(frame, columns=Columns("picture", "text"))
    assert pairs.captions == ["a dog", "", "", "a car"]
    assert len(pairs.without_empty()) == 2
    assert pairs.images == IMAGES
    numbered = Pairs.of(pandas.DataFrame({"image": [7, 8], "caption": ["x", "y"]}))
    assert numbered.images == ["7", "8"]


def test_features_of_as_many_rows_belong_to_the_rows() -> None:
    features = np.arange(12, dtype=np.float64).reshape(4, 3)
    train = Pairs.of(columns(), features=features).split("train")
    assert train.gather(np.array([0, 1]))[:, 0].tolist() == features[:2].tolist()
    assert train.features.dtype == np.float32


def test_arrays_of_features_share_out_the_captions_or_follow_an_index() -> None:
    even = Pairs.of(FEATURES, [f"caption {n}" for n in range(6)])
    assert even.images == ["0", "0", "1", "1", "2", "2"]
    uneven = Pairs.of(FEATURES, CAPTIONS, image_index=[2, 2, 0, 1], ids=["x", "y", "z"])
    assert uneven.images == ["z", "z", "x", "y"]
    flat = Pairs.of(FEATURES[:, 0], CAPTIONS[:3]).split("train")
    assert flat.features.shape == (3, 1, 5)


def test_embeddings_of_both_sides_are_read() -> None:
    images, texts = np.ones((3, 4), np.float16), np.arange(18, dtype=np.float32).reshape(6, 3)
    pairs = Pairs.of(images, [f"caption {n}" for n in range(6)], text_features=texts)
    assert pairs.has_features
    assert pairs.has_text_features
    train = pairs.split("train")
    assert np.array_equal(train.gather_texts(np.arange(len(train))), texts[train.rows])


def test_files_in_a_list_are_named_from_their_common_folder_on(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("x/a.png", "y/b.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path / "x")
    wanted = Pairs.of([Path("a.png"), str(tmp_path / "y" / "b.png"), "../x/a.png"], CAPTIONS[:3]).wanted_images()
    assert [image.name for image in wanted] == ["x/a.png", "y/b.png"]
    assert {image.pictures for image in wanted} == {Files(tmp_path)}


def test_a_listed_link_that_leaves_its_folder_is_read_where_it_leads(tmp_path: Path) -> None:
    for folder in ("stored", "linked"):
        (tmp_path / folder).mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "stored" / "a.png")
    (tmp_path / "linked" / "b.png").symlink_to(tmp_path / "stored" / "a.png")
    (wanted,) = Pairs.of([tmp_path / "linked" / "b.png"], ["x"]).wanted_images()
    assert wanted == ("a.png", Files(tmp_path / "stored"))


def test_names_in_a_table_stay_below_its_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outside = {"image": ["../a.jpg", "/etc/passwd"], "caption": ["x", "y"]}
    assert {image.pictures for image in Pairs.of(outside).wanted_images()} == {Files(tmp_path)}
    (tmp_path / "photos").mkdir()
    assert {image.pictures for image in Pairs.of(outside, images="photos").wanted_images()} == {Files(Path("photos"))}


def test_the_same_picture_twice_is_one_image() -> None:
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    pairs = Pairs.of([red, blue, red], CAPTIONS[:3])
    assert pairs.images == ["images/0000000.png", "images/0000001.png", "images/0000000.png"]
    assert "no features" in refusal([red, blue, red], CAPTIONS[:3])


def png(colour: str) -> bytes:
    """A small image file."""
    file = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(file, format="PNG")
    return file.getvalue()


@pytest.mark.parametrize("make", [dict, pa.table, pd.DataFrame], ids=["dict", "pyarrow", "pandas"])
def test_a_table_as_the_hub_has_it_holds_image_files_and_lists_of_captions(make: Any, tmp_path: Path) -> None:
    red, blue = ({"bytes": png(colour), "path": f"{colour}.png"} for colour in ("red", "blue"))
    captions = [["a red square", "red"], [], ["red again"]]
    table = make({"image": [red, blue, dict(red)], "number": [7, 8, 9], "caption": captions})
    pairs = Pairs.of(table)
    assert pairs.captions == ["a red square", "red", "", "red again"]
    assert pairs.images == [f"images/000000{number}.png" for number in (0, 0, 1, 0)]
    assert [image.read() for image in pairs.wanted_images()] == [png("red"), png("blue")]
    saved = pairs.save(tmp_path / "saved")
    assert pa.parquet.read_table(saved.name)["number"].to_pylist() == [7, 7, 8, 9]
    assert [image.read() for image in saved.wanted_images()] == [png("red"), png("blue")]


def test_plain_bytes_are_image_files_too_and_those_without_a_name_are_images_of_their_own() -> None:
    pairs = Pairs.of({"image": [png("red"), bytes(bytearray(png("red")))], "caption": ["x", "y"]})
    assert pairs.images == ["images/0000000.png", "images/0000001.png"]


def test_pictures_without_files_can_be_read_as_files() -> None:
    wanted = Pairs.of([Image.new("RGB", (4, 4), "red")] * 2, CAPTIONS[:2]).wanted_images()
    assert [Image.open(io.BytesIO(image.read())).getpixel((1, 1)) for image in wanted] == [(255, 0, 0)]
    with pytest.raises(UnusableError, match="not found"):
        wanted[0].pictures.read("another.png")
    with pytest.raises(UnusableError, match="more than 5"):
        wanted[0].pictures.read(wanted[0].name, most=5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (({"image": IMAGES, "caption": CAPTIONS[:2]},), "columns have different lengths: 'image' 4, 'caption' 2"),
        (
            ({"images": IMAGES, "caption": CAPTIONS},),
            "no column 'image' (did you mean 'images'?); columns: images",
        ),
        (({"image": "a.jpg", "caption": ["x"]},), "column 'image' is str 'a.jpg', expected a list"),
        ((columns(caption=["x", 5, "y", b"z"]),), "row 2 (the first is 1): caption is int '5', expected text"),
        ((columns(caption=["x", 5, "y", b"z"]),), "row 4 (the first is 1): caption is bytes"),
        (
            (columns(image=["a", 1.5, "c", "d"]),),
            "row 2 (the first is 1): image is float '1.5', expected a file name, a number, a PIL image or",
        ),
        ((columns(image=["a", "b\nc", "c", "d"]),), "row 2 (the first is 1): the image name contains a line break"),
        ((columns(split=["train", None, "dev", "dev"]),), "row 2 (the first is 1): empty split"),
        (
            (columns(caption=["x", None, "y", "z"]),),
            "row 2 (the first is 1): empty caption; each row needs an image and a caption",
        ),
        ((columns(caption=["x", "caf\udce9", "y", "z"]),), "not UTF-8"),
        (({"image": [], "caption": []},), "no rows"),
        ((IMAGES, CAPTIONS[:3]), "4 images, but 3 captions; give one caption per image"),
        ((IMAGES,), "list: expected a path, a table, or images with their captions; pass captions=..."),
        ((IMAGES, [None, *CAPTIONS[1:]]), "empty caption"),
        (
            ([Image.new("L", (1, 1)), "a.jpg"], ["x", "y"]),
            "row 2 (the first is 1): image is str 'a.jpg', expected an image like",
        ),
        ((FEATURES, CAPTIONS), "4 captions for 3 images, which is not a multiple; expected 3 captions (1"),
        ((FEATURES.astype(int), CAPTIONS[:3]), "features are int64, expected float16 or float32"),
        ((FEATURES[0, 0], CAPTIONS), "features have shape (5,)"),
        ((FEATURES[:, :, :, None], CAPTIONS[:3]), "features have shape (3, 2, 5, 1)"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_row_and_what_was_expected(given: tuple[Any, ...], told: str) -> None:
    assert told in refusal(*given)


def test_an_index_and_ids_must_fit_the_features() -> None:
    assert "need an image index of 4 whole numbers" in refusal(FEATURES, CAPTIONS, image_index=[0, 1])
    assert "must be from 0 to 2" in refusal(FEATURES, CAPTIONS, image_index=[0, 1, 2, 3])
    assert "2 ids, but features of 3 images" in refusal(FEATURES, CAPTIONS[:3], ids=["a", "b"])
    assert "duplicate image ids: 'a' (2 times)" in refusal(FEATURES, CAPTIONS[:3], ids=["a", "b", "a"])
    assert "4 rows, but features of 3 images; pass ids=..." in refusal(columns(), features=FEATURES)
    assert "image 'b.jpg' has no features" in refusal(columns(), features=FEATURES, ids=["a.jpg", "b.jpeg", "c.jpg"])
    assert "4 rows, but text features of 2 captions" in refusal(
        columns(), features=FEATURES, ids=["a.jpg", "b.jpg", "c.jpg"], text_features=np.ones((2, 3))
    )


def test_numbers_that_are_none_are_refused_with_their_rows() -> None:
    broken = FEATURES.copy()
    broken[1, 0, 0], broken[2, 1, 1] = np.nan, np.inf
    assert "NaN or infinity in the features, in row 1, 2" in refusal(broken, CAPTIONS[:3])
    assert "NaN or infinity in the text features" in refusal(FEATURES, CAPTIONS[:3], text_features=broken[:, 0])


def test_an_array_of_features_may_go_with_a_table_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("image,caption,split\na,x,train\nb,y,train\na,z,dev\n")
    pairs = Pairs.of(tmp_path / "pairs.csv", features=FEATURES, ids=["a", "b", "c"])
    assert pairs.location is None
    assert np.array_equal(pairs.split("train").gather(np.array([0, 1])), FEATURES[:2])
