"""Rows of a mapped file that are asked for are read in the background; asking changes nothing else."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from crcl.data.maps.ahead import ask_for
from crcl.data.maps.shards import Shards, open_sharded_features
from crcl.errors import InputError

ROWS, SIZE = 60, 1000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The places in the file, of the map of `stored`, that are asked for."""
    places: list[tuple[int, int]] = []

    class Map(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            assert option == mmap.MADV_WILLNEED
            super().madvise(option, start, length)
            places.append((start, length))

    monkeypatch.setattr(mmap, "mmap", Map)
    return places


@pytest.fixture
def stored(tmp_path: Path, asked: list[tuple[int, int]]) -> np.ndarray:
    """A memory map of features, whose requests are noted."""
    rows = np.arange(ROWS * SIZE, dtype=np.float32).reshape(ROWS, 1, SIZE)
    np.save(tmp_path / "features.npy", rows)
    return np.load(tmp_path / "features.npy", mmap_mode="r")


def covered(asked: list[tuple[int, int]], stored: np.ndarray, row: int) -> bool:
    begin = stored.offset + row * SIZE * 4  # type: ignore[attr-defined]
    bytes_asked = np.zeros(begin + SIZE * 4, dtype=bool)
    for start, length in asked:
        assert start % mmap.PAGESIZE == 0
        bytes_asked[start : start + length] = True
    return bool(bytes_asked[begin:].all())


def test_all_of_each_row_is_asked_for_and_neighbours_together(stored: np.ndarray, asked: list[tuple[int, int]]) -> None:
    ask_for(stored, np.array([41, 3, 4, 5, 4]))
    assert len(asked) == 2
    assert all(covered(asked, stored, row) for row in (3, 4, 5, 41))
    assert not covered(asked, stored, 50)


def test_long_runs_are_asked_for_in_pieces_that_systems_do_not_cut_off(
    stored: np.ndarray, asked: list[tuple[int, int]]
) -> None:
    ask_for(stored, np.arange(ROWS))
    assert max(length for _, length in asked) == 2**17
    assert all(covered(asked, stored, row) for row in range(ROWS))


def test_a_part_of_a_map_asks_for_its_own_rows(stored: np.ndarray, asked: list[tuple[int, int]]) -> None:
    ask_for(stored[30:], np.array([2]))
    assert covered(asked, stored, 32)
    assert not covered(asked, stored, 2)


def test_what_is_not_mapped_row_by_row_is_not_asked_for(stored: np.ndarray, asked: list[tuple[int, int]]) -> None:
    ask_for(np.array(stored), np.array([2]))
    ask_for(stored[:, :, ::2], np.array([2]))
    ask_for(stored, np.empty(0, np.int64))
    assert not asked


def test_shards_ask_in_each_file_for_its_own_rows(stored: np.ndarray, asked: list[tuple[int, int]]) -> None:
    Shards([stored[:20], stored[20:]]).ask_for(np.array([45, 7]))
    assert len(asked) == 2
    assert covered(asked, stored, 7)
    assert covered(asked, stored, 45)


def test_a_folder_of_files_is_read_as_one_array_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "train_ims"
    folder.mkdir()
    whole = np.random.default_rng(0).normal(size=(12, 2, 3)).astype(np.float16)
    for number, start in ((10, 8), (2, 4), (1, 0)):
        np.save(folder / f"part{number}.npy", whole[start : start + 4])
    found = open_sharded_features(folder)
    np.testing.assert_array_equal(found[np.arange(12)], whole)
    np.testing.assert_array_equal(found[3:9], whole[3:9])
    with pytest.raises(InputError, match=r"without \.npy files"):
        open_sharded_features(tmp_path)
