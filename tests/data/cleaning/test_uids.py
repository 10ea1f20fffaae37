"""Lists of a DataComp pool: uids as two numbers, sorted, each once."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from crcl.data.cleaning.judged import Judged
from crcl.data.cleaning.uids import as_numbers, write_uids


def test_uids_are_two_numbers_of_64_bits() -> None:
    assert as_numbers("0000000000000001fffffffffffffffe") == (1, 2**64 - 2)


def test_kept_uids_are_sorted_and_each_is_there_once(tmp_path: Path) -> None:
    uids = ["ff" * 16, "00" * 16, "ff" * 16, "0f" * 16, "f0" * 16]
    rows = pa.table({"image": uids, "caption": list("abcde")})
    beliefs = {row: np.float32(0.5) for row in range(5)}
    judged = Judged(tmp_path, {}, beliefs, suspects={0, 3}, moved={})
    assert write_uids(tmp_path, judged, rows) == 5
    found = np.load(tmp_path / "keep.npy", allow_pickle=False)
    assert found.tolist() == [as_numbers("00" * 16), as_numbers("f0" * 16), as_numbers("ff" * 16)]
    assert (tmp_path / "keep.txt").read_text().splitlines() == ["00" * 16, "ff" * 16, "f0" * 16]


def test_a_pool_of_which_nothing_is_kept_gives_an_empty_list(tmp_path: Path) -> None:
    rows = pa.table({"image": ["ff" * 16], "caption": ["a"]})
    write_uids(tmp_path, Judged(tmp_path, {}, {}, suspects={0}, moved={}), rows)
    found = np.load(tmp_path / "keep.npy", allow_pickle=False)
    assert (found.dtype, len(found)) == (np.dtype("u8,u8"), 0)
