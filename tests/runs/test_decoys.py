"""Decoys come out of a run folder as they went in; older folders have random ones; damaged files are refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from crcl.data.decoys import Decoys
from crcl.errors import InputError
from crcl.runs.decoys import read_decoys, write_decoys

DRAWN = np.array([[0, 1], [3, 0], [2, 2], [1, 1]])
MIXED = Decoys(DRAWN, np.array(["random", "near", "swap", "swap"]), ("a red dog", "ein \u00fc \udc80"))


def test_decoys_come_out_as_they_went_in(tmp_path: Path) -> None:
    vectors = np.arange(6, dtype=np.float16).reshape(2, 3)
    write_decoys(tmp_path, Decoys(MIXED.drawn, MIXED.kinds, MIXED.texts, vectors))
    found = read_decoys(tmp_path, pairs=4, images=3)
    assert found is not None
    assert found.equals(MIXED)
    assert found.kinds.tolist() == MIXED.kinds.tolist()
    np.testing.assert_array_equal(found.vectors, vectors)
    assert read_decoys(tmp_path / "none", pairs=4, images=3) is None


def test_random_ones_leave_the_file_that_they_always_left_and_are_read_from_it_alone(tmp_path: Path) -> None:
    write_decoys(tmp_path, Decoys.random(DRAWN))
    assert [file.name for file in tmp_path.iterdir()] == ["decoys.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "decoys.npy"), DRAWN)
    found = read_decoys(tmp_path, pairs=4, images=3)
    assert found is not None
    assert (found.kinds.tolist(), found.texts, found.vectors) == (["random"] * 4, (), None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("decoys.npy", DRAWN.astype(np.int32)),
        ("decoys.npy", DRAWN[:, :1]),
        ("decoys.npy", DRAWN + 1),
        ("decoys.npy", DRAWN[:3]),
        ("decoy_vectors.npy", np.zeros((3, 2), dtype=np.float16)),
        ("decoy_vectors.npy", np.full((2, 2), np.nan, dtype=np.float16)),
        ("decoy_vectors.npy", np.zeros((2, 2))),
        ("decoy_kinds.json", []),
        ("decoy_kinds.json", {"kinds": ["random", "near", "swap", "other"], "texts": ["a", "b"]}),
        ("decoy_kinds.json", {"kinds": ["near", "random", "swap", "swap"], "texts": ["a", "b"]}),
        ("decoy_kinds.json", {"kinds": [["near"], "random", "swap", "swap"], "texts": ["a", "b"]}),
        ("decoy_kinds.json", {"kinds": ["random", "near", "swap", "swap"], "texts": ["a"]}),
        ("decoy_kinds.json", {"kinds": ["random", "near", "swap", "swap"], "texts": ["a", 1]}),
        ("decoy_kinds.json", {"kinds": ["random", "near", "swap", "swap"]}),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: object) -> None:
    write_decoys(tmp_path, MIXED)
    if isinstance(content, np.ndarray):
        np.save(tmp_path / name, content)
    else:
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(InputError, match="damaged"):
        read_decoys(tmp_path, pairs=4, images=3)
