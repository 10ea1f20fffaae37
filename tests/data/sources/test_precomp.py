"""Readers of folders in the field's layout."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import reading as formats

from crcl.errors import InputError


def features_of(count: int, *, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Random features, (count, 2, 3)."""
    return np.random.default_rng(seed).normal(size=(count, 2, 3)).astype(dtype)


def write_folder(
    folder: Path, images: np.ndarray, captions: int, *, split: str = "train", ids: Sequence[str] | None = None
) -> Path:
    """A folder in the field's layout with numbered captions."""
    np.save(folder / f"{split}_ims.npy", images)
    (folder / f"{split}_caps.txt").write_text("".join(f"caption {i}\n" for i in range(captions)))
    if ids is not None:
        (folder / f"{split}_ids.txt").write_text("\n".join(ids) + "\n")
    return folder


def refusal(path: Path, split: str = "train", **options: Path) -> str:
    """The message with which reading is refused."""
    with pytest.raises(InputError) as caught:
        formats.read(path, split, **options)
    return str(caught.value)


@pytest.mark.parametrize("each", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_captions_per_image_follow_from_the_counts(tmp_path: Path, each: int, dtype: str) -> None:
    images = features_of(6, dtype=dtype)
    pairs = formats.read(write_folder(tmp_path, images, 6 * each))
    assert pairs.image_index.tolist() == [i // each for i in range(6 * each)]
    assert pairs.image_ids == ["0", "1", "2", "3", "4", "5"]
    assert np.array_equal(pairs.gather(np.arange(6)), images.astype(np.float32))
    assert isinstance(pairs.features, np.memmap)
    assert pairs.truth is None


@pytest.mark.parametrize("each", [2, 5])
@pytest.mark.parametrize("count", [4, 300])
@pytest.mark.parametrize("named", ["no ids", "ids of rows", "ids of images", "ids of captions"])
def test_images_stored_once_per_caption_are_found(tmp_path: Path, each: int, count: int, named: str) -> None:
    images, rows = features_of(count), range(count * each)
    ids = {
        "no ids": None,
        "ids of rows": [f"i{i // each}" for i in rows],
        "ids of images": [f"i{i}" for i in range(count)],
        "ids of captions": [f"c{i}" for i in rows],
    }
    pairs = formats.read(write_folder(tmp_path, np.repeat(images, each, axis=0), len(rows), ids=ids[named]))
    assert pairs.images == count
    assert pairs.image_index.tolist() == [i // each for i in rows]
    assert np.array_equal(pairs.gather(np.arange(count)), images)
    expected = {"no ids": "1", "ids of rows": "i1", "ids of images": "i1", "ids of captions": f"c{each}"}
    assert pairs.image_ids[1] == expected[named]


def test_ids_by_which_captions_of_an_image_are_apart_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, features_of(3), 6)
    (tmp_path / "train_ids.txt").write_text("a\nb\nc\na\nb\nc\n")
    assert "train_ids.txt: lines 1 and 4 name the same image, a, but are not among the 2 lines" in refusal(tmp_path)


def test_two_equal_images_in_a_row_do_not_hide_the_repetition(tmp_path: Path) -> None:
    images = features_of(6)
    images[1] = images[0]
    assert formats.read(write_folder(tmp_path, np.repeat(images, 3, axis=0), 18)).images == 6


def test_some_equal_rows_do_not_make_a_repetition(tmp_path: Path) -> None:
    images = features_of(400)
    images[1], images[3], images[399] = images[0], images[2], images[398]
    assert formats.read(write_folder(tmp_path, images, 400)).images == 400


def test_features_that_are_equal_throughout_are_not_taken_for_one_image(tmp_path: Path) -> None:
    assert formats.read(write_folder(tmp_path, np.zeros((8, 2, 3), np.float32), 8)).images == 8


@pytest.mark.parametrize("per", ["image", "caption"])
def test_ids_are_given_per_image_or_per_caption(tmp_path: Path, per: str) -> None:
    ids = ["a", "b", "c"] if per == "image" else ["a", "a", "b", "b", "c", "c"]
    assert formats.read(write_folder(tmp_path, features_of(3), 6, ids=ids)).image_ids == ["a", "b", "c"]


def test_global_vectors_are_images_of_one_region(tmp_path: Path) -> None:
    vectors = features_of(4)[:, 0]
    assert np.array_equal(
        formats.read(write_folder(tmp_path, vectors, 8)).gather(np.arange(4)), vectors.reshape(4, 1, 3)
    )


def test_splits_are_listed_in_order(tmp_path: Path) -> None:
    for split in ("testall", "dev", "test", "train"):
        write_folder(tmp_path, features_of(2), 4, split=split)
    assert formats.splits(tmp_path) == ["train", "dev", "test", "testall"]
    assert len(formats.read(tmp_path, "testall")) == 4


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    write_folder(tmp_path, features_of(2), 2)
    (tmp_path / "train_caps.txt").write_bytes("\ufeffa dog\u2028runs\r\nein Hund\x0b läuft".encode())
    assert formats.read(tmp_path).captions == ["a dog\u2028runs", "ein Hund\x0b läuft"]


def test_a_table_of_captions_in_a_folder_names_the_images(tmp_path: Path) -> None:
    images = write_folder(tmp_path, features_of(3), 3) / "train_caps.txt"
    images.unlink()
    (tmp_path / "train_caps.tsv").write_text('007\ta dog\n008\t"a ""big"" dog"\nx\ta dog, "wet"\n')
    pairs = formats.read(tmp_path)
    assert pairs.captions == ["a dog", 'a "big" dog', 'a dog, "wet"']
    assert pairs.image_ids == ["007", "008", "x"]
    assert pairs.image_index.tolist() == [0, 1, 2]


def test_a_caption_count_that_nothing_explains_is_refused_with_those_that_fit(tmp_path: Path) -> None:
    message = refusal(write_folder(tmp_path, features_of(4), 11))
    assert "train_caps.txt: 11 captions for 4 images of " in message
    assert "expected 8 captions (2 per image) or 12 captions (3 per image)" in message
    assert "expected 4 captions (1 per image)" in refusal(write_folder(tmp_path, features_of(4), 3))


def test_missing_files_are_answered_with_what_is_there(tmp_path: Path) -> None:
    write_folder(tmp_path, features_of(2), 4)
    assert "no split 'trian' (did you mean 'train'?)" in refusal(tmp_path, "trian")
    assert "splits: train" in refusal(tmp_path, "dev")
    (tmp_path / "train_caps.txt").rename(tmp_path / "train_cap.txt")
    assert "train_caps.txt: not found (did you mean 'train_cap.txt'?), expected one caption" in refusal(tmp_path)
    assert "not found (did you mean" in refusal(tmp_path.with_name(tmp_path.name + "x"))
    assert "does not exist" in refusal(tmp_path / "no" / "where")
    assert "a file that ends in .npy, neither a run folder nor data that is recognised" in refusal(
        tmp_path / "train_ims.npy"
    )


def test_a_folder_without_features_says_what_it_holds(tmp_path: Path) -> None:
    assert "nor data that is recognised; it contains no files" in refusal(tmp_path)
    (tmp_path / "pairs.csv").touch()
    assert f"to read a table, name the file: {tmp_path / 'pairs.csv'}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 2, 2, 2), np.float32), "features have shape (2, 2, 2, 2), expected (images, regions, size)"),
        (np.zeros(4, np.float32), "features have shape (4,), expected (images, regions, size)"),
        (np.zeros((2, 2, 2), np.int64), "features are int64, expected float16 or float32"),
        (np.zeros((2, 2, 2), np.float64), "features are float64, expected float16 or float32"),
        (np.zeros((0, 2, 2), np.float32), "empty, shape (0, 2, 2)"),
        (np.array([[None]], dtype=object), "contains Python objects, which are never loaded"),
    ],
)
def test_features_of_a_wrong_kind_are_refused(tmp_path: Path, images: np.ndarray, message: str) -> None:
    assert f"train_ims.npy: {message}" in refusal(write_folder(tmp_path, images, 4))


@pytest.mark.parametrize("kept", [0, 3, 60, 150])
def test_half_a_features_file_is_refused(tmp_path: Path, kept: int) -> None:
    write_folder(tmp_path, features_of(4), 8)
    stored = tmp_path / "train_ims.npy"
    stored.write_bytes(stored.read_bytes()[:kept])
    assert "train_ims.npy: not a complete .npy file" in refusal(tmp_path)


def test_nan_in_the_features_is_refused_when_the_image_is_used(tmp_path: Path) -> None:
    images = features_of(3)
    images[1, 0, 0] = np.nan
    pairs = formats.read(write_folder(tmp_path, np.repeat(images, 2, axis=0), 6, ids=["a", "a", "b", "b", "c", "c"]))
    with pytest.raises(InputError, match=r"train_ims.npy: NaN or infinity in row 2 \(image 'b'\)"):
        pairs.gather(np.arange(3))


def test_all_empty_captions_are_named_at_once_up_to_ten(tmp_path: Path) -> None:
    write_folder(tmp_path, features_of(2), 2)
    (tmp_path / "train_caps.txt").write_text("a dog\n\n  \na cat\n")
    message = refusal(tmp_path)
    assert "train_caps.txt:2: empty caption" in message
    assert "train_caps.txt:3: empty caption" in message
    (tmp_path / "train_caps.txt").write_text("\n" * 25)
    assert refusal(tmp_path).count("empty caption") == 10
    assert "... and 15 more" in refusal(tmp_path)
    (tmp_path / "train_caps.txt").write_text("")
    assert "train_caps.txt: empty, expected one caption per line" in refusal(tmp_path)


def test_invalid_utf8_is_named_by_file_and_line(tmp_path: Path) -> None:
    write_folder(tmp_path, features_of(2), 2)
    (tmp_path / "train_caps.txt").write_bytes(b"a dog\ncaf\xe9\na\n\xff\n")
    message = refusal(tmp_path)
    assert "train_caps.txt:2: not UTF-8 (byte 0xe9 at position 4); save the file as UTF-8" in message
    assert "train_caps.txt:4: not UTF-8" in message


def test_ids_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    ids = ["a", "b"]
    assert "train_ids.txt: 2 ids, expected 3 (one per image) or 6 (one per caption)" in refusal(
        write_folder(tmp_path, features_of(3), 6, ids=ids)
    )
    assert "duplicate image ids: 'a' (2 times)" in refusal(
        write_folder(tmp_path, features_of(3), 6, ids=["a", "b", "a"])
    )
    assert "train_ids.txt:2: empty id" in refusal(write_folder(tmp_path, features_of(3), 6, ids=["a", "", "b"]))


def test_a_broken_table_of_captions_is_refused_line_by_line(tmp_path: Path) -> None:
    (write_folder(tmp_path, features_of(3), 3) / "train_caps.txt").unlink()
    (tmp_path / "train_caps.tsv").write_text('1\ta dog\n2\n3\t\n4\ta\tb\n5\t"open\n6\tmore"\n')
    message = refusal(tmp_path)
    assert "train_caps.tsv:2: 1 columns, expected two: image id, caption" in message
    assert "train_caps.tsv:3: empty caption" in message
    assert "train_caps.tsv:4: 3 columns" in message
    assert "train_caps.tsv:6: a caption with several lines" in message
    (tmp_path / "train_caps.tsv").write_text("1\ta\n2\tb\n")
    assert "2 captions for 3 images" in refusal(tmp_path)


def test_a_folder_takes_no_features_or_ids(tmp_path: Path) -> None:
    assert "with a table only" in refusal(write_folder(tmp_path, features_of(2), 2), features=tmp_path / "a.npy")
