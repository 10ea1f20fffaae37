"""Which rows are held out: a random tenth of the images, with the copies of these."""

import numpy as np
import pyarrow as pa
import pytest

from crcl.data.rows.splits import NONE, in_order, rows_of, splits_of
from crcl.errors import InputError


def table(images: int, captions: int = 2) -> pa.Table:
    names = [f"{number % images}.jpg" for number in range(images * captions)]
    return pa.table({"image": names, "caption": [f"caption {row}" for row in range(len(names))]})


def held_out(rows: pa.Table, copies: dict[str, bytes]) -> set[str]:
    dev = rows_of("data", rows, "dev", copies)
    train = rows_of("data", rows, "train", copies)
    assert sorted([*dev, *train]) == list(range(len(rows)))
    names = rows["image"].to_numpy()
    assert not set(names[dev]) & set(names[train])
    return set(names[dev])


def test_a_tenth_of_the_images_is_held_out_and_always_the_same() -> None:
    """The numbers are those of earlier versions, so that their runs can be resumed."""
    rows = table(30)
    assert held_out(rows, dict(NONE)) == {"2.jpg", "11.jpg", "26.jpg"} == held_out(rows, dict(NONE))


def test_hashes_of_different_images_change_nothing() -> None:
    rows = table(200)
    different = {f"{number}.jpg": b"%d" % number for number in range(150)}  # some have none: they could not be read
    assert held_out(rows, different) == held_out(rows, {})


def test_copies_are_on_one_side_that_of_the_first() -> None:
    rows = table(200)
    plain = held_out(rows, {})
    copies = {f"{number}.jpg": b"%d" % (number % 100) for number in range(200)}  # image 100 + n is a copy of n
    together = held_out(rows, copies)
    assert {int(name[:-4]) % 100 for name in plain if int(name[:-4]) < 100} == {
        int(name[:-4]) % 100 for name in together
    }
    assert all(f"{(int(name[:-4]) + 100) % 200}.jpg" in together for name in together)
    assert 10 <= len(together) <= 40
    assert together != plain


def test_many_copies_of_one_image_do_not_flood_what_is_held_out() -> None:
    rows = table(200)
    plain = held_out(rows, {})
    first = min(int(name[:-4]) for name in plain)
    found = held_out(rows, {f"{number}.jpg": b"same" for number in (first, *range(100, 200))})
    assert found == {name for name in plain if first < int(name[:-4]) < 100} != set()
    few = held_out(rows, {f"{number}.jpg": b"same" for number in (first, 198, 199)})
    assert few == plain | {"198.jpg", "199.jpg"}


def test_where_all_images_are_copies_they_are_divided_all_the_same() -> None:
    rows = table(20)
    copies = {f"{number}.jpg": b"same" for number in range(20)}
    assert held_out(rows, copies) == held_out(rows, {})


def test_splits_of_the_user_are_left_alone() -> None:
    rows = table(4, captions=1).append_column("split", pa.array(["train", "train", "val", "val"]))
    copies = {f"{number}.jpg": b"same" for number in range(4)}
    assert rows_of("data", rows, "val", copies).tolist() == [2, 3]
    with pytest.raises(InputError, match="no row of split 'test'"):
        rows_of("data", rows, "test", copies)


def test_names_of_splits_mean_the_same_in_all_layouts() -> None:
    names = ["train", "Training", "restval", "val", "validation", "DEV", "test", "testing", "eval", "extra"]
    rows = table(len(names), captions=1).append_column("split", pa.array(names))
    assert in_order(splits_of(rows)) == ["train", "dev", "test", "extra"]
    for split, expected in {
        "train": [0, 1, 2],
        "restval": [0, 1, 2],
        "dev": [3, 4, 5],
        "evaluation": [6, 7, 8],
    }.items():
        assert rows_of("data", rows, split).tolist() == expected


def test_one_image_cannot_be_divided() -> None:
    with pytest.raises(InputError, match="only one image"):
        rows_of("data", table(1), "dev")
    assert isinstance(rows_of("data", table(2), "dev"), np.ndarray)
