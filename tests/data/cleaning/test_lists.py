"""Lists of what to keep: every row with its belief, every kept key once."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from crcl.data.cleaning.judged import Judged
from crcl.data.cleaning.lists import write_lists
from crcl.errors import InputError

KEYS = pa.array(["a", "a", "b", "c", "d"])
ROWS = pa.table({"image": ["a.jpg", "a.jpg", "b.jpg", "c.jpg", "d.jpg"], "caption": ["1", "2", "3", "4", "5"]})


def judged(**options: Any) -> Judged:
    """Rows 0 and 2 are suspects, row 4 was not judged."""
    expected = {row: (f"{name}.jpg", str(row + 1)) for row, name in enumerate("aabc")}
    beliefs = {0: np.float32(0.01), 1: np.float32(0.9), 2: np.float32(0.02), 3: np.float32(0.8)}
    return Judged(
        Path("data"), **{"expected": expected, "correspondence": beliefs, "suspects": {0, 2}, "moved": {}} | options
    )


def test_keys_are_listed_once_in_order_and_rows_with_their_beliefs(tmp_path: Path) -> None:
    assert write_lists(tmp_path, judged(), KEYS, ROWS, more={"shard": pa.array(["s"] * 5)}) == 5
    assert (tmp_path / "keep.txt").read_text() == "a\nc\nd\n"
    table = pa.parquet.read_table(tmp_path / "keep.parquet")
    assert table.column_names == ["key", "shard", "image", "caption", "correspondence", "kept"]
    assert table["kept"].to_pylist() == [False, True, False, True, True]
    assert table["correspondence"].to_pylist() == [
        *(float(np.float32(value)) for value in (0.01, 0.9, 0.02, 0.8)),
        None,
    ]
    assert table["caption"].to_pylist() == ROWS["caption"].to_pylist()


def test_marked_rows_are_all_kept(tmp_path: Path) -> None:
    write_lists(tmp_path, judged(mark=True), KEYS, ROWS)
    assert (tmp_path / "keep.txt").read_text() == "a\nb\nc\nd\n"
    assert pa.parquet.read_table(tmp_path / "keep.parquet")["kept"].to_pylist() == [True] * 5


def test_a_moved_row_is_kept_and_names_its_new_image_but_does_not_keep_its_key(tmp_path: Path) -> None:
    write_lists(tmp_path, judged(suspects={0}, moved={2: "c.jpg"}), KEYS, ROWS)
    assert (tmp_path / "keep.txt").read_text() == "a\nc\nd\n"
    table = pa.parquet.read_table(tmp_path / "keep.parquet")
    assert table["moved_to"].to_pylist() == [None, None, "c.jpg", None, None]
    assert table["kept"].to_pylist() == [False, True, True, True, True]


def test_rows_other_than_those_that_were_judged_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 4 \(the first is 1\) is not the pair that was judged"):
        write_lists(tmp_path, judged(), KEYS, ROWS.set_column(1, "caption", pa.array(["1", "2", "3", "x", "5"])))
    with pytest.raises(InputError, match=r"it has 3 rows, but row 4 \(the first is 1\) was judged"):
        write_lists(tmp_path, judged(), KEYS.slice(0, 3), ROWS.slice(0, 3))


def test_a_key_of_two_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the key 'a\\nb' does not fit on one line"):
        write_lists(tmp_path, judged(expected={}), pa.array(["a\nb"] * 5), ROWS)
