"""Tables of images and captions next to a features file."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import reading as formats

from crcl.data.rows.stored import skipped_text
from crcl.data.sources import table as tables
from crcl.errors import InputError

ROWS: list[dict[str, object]] = [
    {"image": "001", "caption": "a dog", "split": "train", "url": "2020-01-01"},
    {"image": "002", "caption": 'a "cat",\nasleep', "split": "dev", "url": ""},
    {"image": "001", "caption": "NA", "split": "train", "url": "x"},
    {"image": "003", "caption": "ein Köter", "split": "train", "url": "y"},
]
SUFFIXES = pytest.mark.parametrize("suffix", tables.SUFFIXES)


def write_table(path: Path, rows: list[dict[str, object]]) -> Path:
    """A table in the format of the path's suffix."""
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        options = pyarrow.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        pyarrow.csv.write_csv(table, path, options)
    return path


def write_images(folder: Path, ids: Sequence[str], *, name: str = "features.npy") -> np.ndarray:
    """Features and ids next to a table."""
    images = np.random.default_rng(0).normal(size=(len(ids), 2, 3)).astype(np.float32)
    np.save(folder / name, images)
    stem = name.removesuffix("features.npy").removesuffix("ims.npy")
    (folder / f"{stem}ids.txt").write_text("\n".join(ids))
    return images


def refusal(path: Path, split: str = "train", **options: Path) -> str:
    """The message with which reading is refused."""
    with pytest.raises(InputError) as caught:
        formats.read(path, split, **options)
    return str(caught.value)


@SUFFIXES
def test_a_table_is_read_in_every_format_with_ids_as_they_are_written(tmp_path: Path, suffix: str) -> None:
    images = write_images(tmp_path, ["003", "002", "009", "001"])
    path = write_table(tmp_path / f"pairs{suffix}", ROWS)
    assert formats.splits(path) == ["train", "dev"]
    train, dev = formats.read(path), formats.read(path, "dev")
    assert train.captions == ["a dog", "NA", "ein Köter"]
    assert train.image_ids == ["001", "003"]
    assert train.image_index.tolist() == [0, 0, 1]
    assert np.array_equal(train.gather(np.array([0, 1])), images[[3, 0]])
    assert dev.captions == ['a "cat",\nasleep']
    assert np.array_equal(dev.gather(np.array([0])), images[[1]])
    assert isinstance(train.features, np.memmap)


@SUFFIXES
def test_without_a_split_column_a_tenth_of_the_images_is_held_out(tmp_path: Path, suffix: str) -> None:
    ids = [f"{i}.jpg" for i in range(50)]
    write_images(tmp_path, ids)
    rows: list[dict[str, object]] = [{"image": ids[i % 50], "caption": f"caption {i}"} for i in range(150)]
    path = write_table(tmp_path / f"pairs{suffix}", rows)
    assert formats.splits(path) == ["train", "dev"]
    train, dev = formats.read(path), formats.read(path, "dev")
    assert (train.images, dev.images) == (45, 5)
    assert (len(train), len(dev)) == (135, 15)
    assert not set(train.image_ids) & set(dev.image_ids)
    assert formats.read(path, "dev").image_ids == dev.image_ids


def test_two_images_make_one_for_each_split_and_one_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, ["a", "b"])
    path = write_table(tmp_path / "pairs.csv", [{"image": name, "caption": "x"} for name in "ab"])
    assert formats.read(path).images == formats.read(path, "dev").images == 1
    assert "only one image, 'a', which cannot be split" in refusal(
        write_table(tmp_path / "one.csv", [{"image": "a", "caption": "x"}])
    )


def test_numbers_are_names_of_images_too(tmp_path: Path) -> None:
    write_images(tmp_path, ["17", "18"])
    rows: list[dict[str, object]] = [
        {"image": i, "caption": "x", "split": split} for i, split in ((18, "train"), (17, "train"), (17, "dev"))
    ]
    for suffix in (".jsonl", ".parquet"):
        assert formats.read(write_table(tmp_path / f"pairs{suffix}", rows)).image_ids == ["18", "17"]


def test_space_around_a_name_and_empty_lines_do_not_matter(tmp_path: Path) -> None:
    write_images(tmp_path, ["a", "b"])
    (tmp_path / "pairs.jsonl").write_text('\n{"image": " a", "caption": "x "}\n\n{"image": "a ", "caption": "y"}\n')
    assert "only one image, 'a'" in refusal(tmp_path / "pairs.jsonl")


def test_features_and_ids_are_found_by_name_or_as_given(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = write_table(tmp_path / "pairs.csv", ROWS)
    assert "pairs.csv: no features of its images" in refusal(path)
    assert "neither features.npy nor pairs_ims.npy" in refusal(path)
    write_images(tmp_path, ["001", "002", "003"], name="pairs_ims.npy")
    assert formats.read(path).source.endswith("pairs_ims.npy")
    write_images(elsewhere, ["001", "002", "003"])
    assert formats.read(path, features=elsewhere / "features.npy").source == str(elsewhere / "features.npy")
    (elsewhere / "ids.txt").rename(elsewhere / "names.txt")
    assert "ids.txt: not found" in refusal(path, features=elsewhere / "features.npy")
    assert len(formats.read(path, features=elsewhere / "features.npy", ids=elsewhere / "names.txt")) == 3


@SUFFIXES
def test_a_table_without_the_columns_is_refused_with_those_it_has(tmp_path: Path, suffix: str) -> None:
    path = write_table(tmp_path / f"pairs{suffix}", [{"images": "a", "caption": "x"}])
    assert f"pairs{suffix}: no column 'image' (did you mean 'images'?); columns: images, caption" in refusal(path)
    path = write_table(path, [{"picture": "a", "text": "x"}])
    message = refusal(path)
    assert "no column 'image'" in message
    assert "no column 'caption'" in message


def test_two_columns_of_one_name_are_refused_where_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("image,caption,caption\na.jpg,a dog,a cat\n")
    assert "pairs.csv: two columns 'caption'; rename or remove one" in refusal(tmp_path / "pairs.csv")


@pytest.mark.parametrize(
    ("name", "mark", "told"), [("pairs.csv", ";", ";"), ("pairs.csv", "\t", "tabs"), ("pairs.tsv", ",", ",")]
)
def test_another_sign_between_the_columns_is_named(tmp_path: Path, name: str, mark: str, told: str) -> None:
    (tmp_path / name).write_text("image,caption\na.jpg,a dog\n".replace(",", mark))
    assert f"the columns seem to be separated by {told};" in refusal(tmp_path / name)
    other = "," if name == "pairs.csv" else "\t"
    (tmp_path / name).write_text(
        f"image{mark}caption\na.jpg{mark}a dog{other} a cat\n"
    )  # rows seem to have two columns
    assert f"the columns seem to be separated by {told};" in refusal(tmp_path / name)


def test_a_file_of_blank_lines_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text("\n\n")
    assert "pairs.jsonl: has no rows" in refusal(tmp_path / "pairs.jsonl")


@SUFFIXES
def test_images_without_features_are_named_with_their_rows_up_to_ten(tmp_path: Path, suffix: str) -> None:
    write_images(tmp_path, ["a.jpeg", "b.jpg"])
    rows: list[dict[str, object]] = [
        {"image": name, "caption": "x", "split": "train"} for name in ["b.jpg", "a.jpg", "zzz", *"cdefghijkl"]
    ]
    rows.append({"image": "b.jpg", "caption": "x", "split": "dev"})
    message = refusal(write_table(tmp_path / f"pairs{suffix}", rows))
    assert f"pairs{suffix}:row 2 (the first is 1): image 'a.jpg' has no features" in message
    assert "(did you mean 'a.jpeg'?)" in message
    assert f"pairs{suffix}:row 3 (the first is 1): image 'zzz' has no features" in message
    assert "... and 2 more" in message


@SUFFIXES
def test_empty_cells_of_a_table_are_named_with_their_rows(tmp_path: Path, suffix: str) -> None:
    write_images(tmp_path, ["a"])
    rows: list[dict[str, object]] = [
        {"image": "a", "caption": "x", "split": "train"},
        {"image": "a", "caption": None, "split": "train"},
        {"image": " ", "caption": "x", "split": "train"},
        {"image": "a", "caption": "x", "split": "dev"},
    ]
    message = refusal(write_table(tmp_path / f"pairs{suffix}", rows))
    assert f"pairs{suffix}:row 2 (the first is 1): empty caption" in message
    assert f"pairs{suffix}:row 3 (the first is 1): empty image" in message
    rows[1]["split"] = None
    assert f"pairs{suffix}:row 2 (the first is 1): empty split" in refusal(
        write_table(tmp_path / f"pairs{suffix}", rows)
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pairs.csv", b"image,caption\na,x\nb,caf\xe9\n"),
        ("pairs.tsv", b"image\tcaption\na\tx\nb\tcaf\xe9\n"),
        ("pairs.jsonl", b'{"image": "a", "caption": "x"}\n\n{"image": "b", "caption": "caf\xe9"}\n'),
    ],
)
def test_invalid_utf8_in_a_table_is_named_by_file_and_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert f"{name}:3: not UTF-8 (byte 0xe9" in refusal(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pairs.csv", b""),
        ("pairs.csv", b"image,caption\na,b,c\n"),
        ("pairs.jsonl", b""),
        ("pairs.jsonl", b"[1, 2]\n"),
        ("pairs.jsonl", b'{"image": "a", "caption": \n'),
        ("pairs.parquet", b"PAR1 but nothing more"),
        ("pairs.parquet", b""),
        ("pairs.csv", b"image,caption\n"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert refusal(tmp_path / name).startswith(str(tmp_path / name))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("place", [0, 2])
def test_a_caption_of_ten_million_letters_is_read(tmp_path: Path, suffix: str, place: int) -> None:
    write_images(tmp_path, ["001", "002", "003"])
    rows = [dict(row) for row in ROWS]
    rows[place]["caption"] = "word " * 2_000_000 + "end"
    captions = formats.read(write_table(tmp_path / f"pairs{suffix}", rows)).captions
    assert max(len(caption) for caption in captions) == 10_000_003


def test_an_object_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    path = tmp_path / "pairs.jsonl"
    path.write_text(f'{{"image": "a", "caption": "x", "deep": {deep}}}\n')
    assert refusal(path).startswith(f"{path}: ")


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_quotation_mark_that_is_never_closed_does_not_swallow_the_rest_of_a_table(
    tmp_path: Path, suffix: str
) -> None:
    write_images(tmp_path, ["001", "002", "003"])
    comma = "," if suffix == ".csv" else "\t"
    lines = ["image,caption", "001,a dog", '002,"a cat', "003,a ball", "001,a car"]
    path = tmp_path / f"pairs{suffix}"
    path.write_text("\n".join(lines).replace(",", comma) + "\n")
    assert f"{path}:3: a quotation mark that opens here is never closed" in refusal(path)
    path.write_text("\n".join([*lines, *["001,a dog"] * 20_000]).replace(",", comma) + "\n")  # beyond csv's own limit
    assert f"{path}:3: a quotation mark that opens here is never closed" in refusal(path)
    lines[2:4] = ['002,"a cat', 'on two lines"', "003,a ball of 5 "]
    lines[-1] = '003,"a last one,\nalso on ""two"" lines"'
    path.write_text("\n".join(lines).replace(",", comma) + "\n")
    assert "a cat\non two lines" in [*formats.read(path, "train").captions, *formats.read(path, "dev").captions]


def test_the_names_of_skipped_images_are_read_as_they_were_written(tmp_path: Path) -> None:
    odd = ["b\rc", 'd"e', "f,g", "h\ni"]
    write_images(tmp_path, ["a", "b", "image", "z"])
    (tmp_path / "skipped.csv").write_bytes(skipped_text([(name, "broken") for name in odd]).encode())
    rows: list[dict[str, object]] = [
        {"image": name, "caption": "x", "split": split}
        for name, split in (*((name, "train") for name in ("a", "b", "image", *odd)), ("z", "dev"))
    ]
    assert formats.read(write_table(tmp_path / "pairs.jsonl", rows)).image_ids == ["a", "b", "image"]
    (tmp_path / "features.npy").unlink()
    write_images(tmp_path, ["a", "b", "z"])
    assert "image 'image' has no features" in refusal(tmp_path / "pairs.jsonl")


def test_ids_and_features_of_a_table_must_agree(tmp_path: Path) -> None:
    write_images(tmp_path, ["001", "002", "003"])
    path = write_table(tmp_path / "pairs.csv", ROWS)
    (tmp_path / "ids.txt").write_text("001\n002\n")
    assert "ids.txt: 2 ids, but " in refusal(path)
    assert "has features of 3 images" in refusal(path)
    (tmp_path / "ids.txt").write_text("001\n002\n001\n")
    assert "duplicate image ids: '001' (2 times)" in refusal(path)


def test_a_missing_table_and_a_missing_split_are_answered_with_the_nearest(tmp_path: Path) -> None:
    write_images(tmp_path, ["001", "002", "003"])
    path = write_table(tmp_path / "pairs.csv", ROWS)
    assert "pair.csv: not found (did you mean 'pairs.csv'?)" in refusal(tmp_path / "pair.csv")
    assert "no row of split 'trian' (did you mean 'train'?); splits: dev, train" in refusal(path, "trian")


@SUFFIXES
@pytest.mark.parametrize("name", ["val", "valid", "validation", "VAL", " Validation ", "Dev"])
def test_what_others_call_validation_is_dev(tmp_path: Path, suffix: str, name: str) -> None:
    splits = {"train": "Train" if name == "Dev" else "train", "dev": name}
    path = write_table(tmp_path / f"pairs{suffix}", [row | {"split": splits[str(row["split"])]} for row in ROWS])
    write_images(tmp_path, ["001", "002", "003"])
    assert formats.splits(path) == ["train", "dev"]
    assert list(formats.read(path, "dev").image_ids) == list(formats.read(path, name).image_ids) == ["002"]


@SUFFIXES
@pytest.mark.parametrize("name", ["train", "TRAIN"])
def test_where_all_rows_are_for_training_a_tenth_of_the_images_is_held_out(
    tmp_path: Path, suffix: str, name: str
) -> None:
    ids = [f"{i}.jpg" for i in range(50)]
    write_images(tmp_path, ids)
    rows: list[dict[str, object]] = [{"image": ids[i % 50], "caption": f"caption {i}"} for i in range(150)]
    plain = write_table(tmp_path / f"plain{suffix}", rows)
    named = write_table(tmp_path / f"named{suffix}", [row | {"split": name} for row in rows])
    assert formats.splits(named) == ["train", "dev"]
    for split in ("train", "dev"):
        assert formats.read(named, split).fingerprint() == formats.read(plain, split).fingerprint()


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n  \n", b'{"image": "a", "caption": "x"}\n'])
def test_a_line_that_is_null_is_refused_before_pyarrow_crashes_on_it(tmp_path: Path, before: bytes) -> None:
    path, line = tmp_path / "pairs.jsonl", 1 + before.count(b"\n")
    path.write_bytes(before + b' null\n{"image": "b", "caption": "y"}\n')
    assert f"pairs.jsonl:{line}: null, expected an object with 'image'" in refusal(path)
