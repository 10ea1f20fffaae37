"""The audit's table: worst first, one row per training pair, in CSV and Parquet."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from crcl.auditing.findings import find, write_table
from crcl.auditing.suggestions import Suggestions
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.metrics import detection

COLUMNS = ["row", "image", "caption", "correspondence", "suspect", "similarity"]
BELIEFS = np.array([0.9, 0.1, 0.5, 0.1], dtype=np.float32)
SIMILARITY = np.array([0.8, 0.3, -0.2, 0.1], dtype=np.float32)
PAIRS = Split(
    captions=["a dog", 'a "quoted", cat', "=cmd()", "línea\nzwei"],
    image_index=np.array([0, 1, 1, 0]),
    features=np.zeros((2, 1, 1), dtype=np.float32),
    image_ids=["dog.jpg", "007"],
    source="pairs",
)
TRUTH = np.array([True, False, True, False])


def read_back(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    text = pa.csv.ConvertOptions(column_types={"image": pa.string(), "caption": pa.string()})
    return pa.csv.read_csv(path, parse_options=pa.csv.ParseOptions(newlines_in_values=True), convert_options=text)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("truth", [None, TRUTH])
def test_the_table_has_a_row_for_each_pair_the_least_believed_first(
    tmp_path: Path, suffix: str, truth: np.ndarray | None
) -> None:
    found = find(replace(PAIRS, truth=truth), BELIEFS, SIMILARITY, threshold=0.5)
    path = tmp_path / "deep" / f"suspects{suffix}"
    write_table(found.table(), path)
    table = read_back(path)
    assert table.column_names == COLUMNS + (["truth"] if truth is not None else [])
    rows: list[dict[str, Any]] = table.to_pylist()
    assert [row["row"] for row in rows] == [3, 1, 2, 0]  # equal beliefs: the less similar pair first
    assert [row["image"] for row in rows] == ["dog.jpg", "007", "007", "dog.jpg"]
    assert [row["caption"] for row in rows] == [PAIRS.captions[row] for row in (3, 1, 2, 0)]
    assert [row["suspect"] for row in rows] == [True, True, False, False]  # at the threshold is no suspect
    np.testing.assert_allclose([row["correspondence"] for row in rows], [0.1, 0.1, 0.5, 0.9], rtol=1e-6)
    np.testing.assert_allclose([row["similarity"] for row in rows], [0.1, 0.3, -0.2, 0.8], rtol=1e-6)
    if truth is not None:
        assert [row["truth"] for row in rows] == [False, False, True, True]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(("threshold", "suspects"), [(0.0, []), (0.1, []), (0.5, [3, 1]), (1.0, [3, 1, 2, 0])])
def test_suspects_are_the_pairs_below_the_threshold_worst_first(threshold: float, suspects: list[int]) -> None:
    found = find(PAIRS, BELIEFS, SIMILARITY, threshold=threshold)
    assert found.suspects.tolist() == suspects


def test_detection_is_measured_where_the_truth_is_known() -> None:
    assert find(PAIRS, BELIEFS, SIMILARITY).detection() is None
    found = find(replace(PAIRS, truth=TRUTH), BELIEFS, SIMILARITY, threshold=0.5).detection()
    assert found is not None
    assert found == detection(BELIEFS, TRUTH, threshold=0.5)
    assert (found.auroc, found.precision, found.recall, found.f1) == (1, 1, 1, 1)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_that_is_no_belief_is_refused(threshold: float) -> None:
    with pytest.raises(InputError, match="threshold must be between 0 and 1"):
        find(PAIRS, BELIEFS, SIMILARITY, threshold=threshold)


def test_beliefs_of_other_pairs_are_refused() -> None:
    with pytest.raises(InputError, match="pairs: 4 pairs, but correspondences of 3"):
        find(PAIRS, BELIEFS[:3], SIMILARITY)


@pytest.mark.parametrize("name", ["suspects.xlsx", "suspects", "suspects.csv.gz"])
def test_other_endings_are_refused_with_those_that_can_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"written as \.csv or \.parquet"):
        write_table(find(PAIRS, BELIEFS, SIMILARITY).table(), tmp_path / name)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"suspects{suffix}"
    path.mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_table(find(PAIRS, BELIEFS, SIMILARITY).table(), path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_suggestions_by_belief_say_in_which_row_the_image_is() -> None:
    numbers, fit = np.array([[0, -1]]), np.array([[0.83, -np.inf]], np.float32)
    suggestions = Suggestions(np.array([1]), np.array([[3, -1]]), fit, numbers, fit, "belief")
    pairs = replace(PAIRS, caption_rows=np.array([2, 5, 7, 9]))
    table = find(pairs, BELIEFS, SIMILARITY, threshold=0.5, suggestions=suggestions).table()
    assert not any("_similarity" in name for name in table.column_names)
    row: dict[str, Any] = table.to_pylist()[1]
    assert row["row"] == 5
    assert (row["image_1"], row["image_1_row"], row["image_1_belief"]) == ("dog.jpg", 2, pytest.approx(0.83))
    assert (row["caption_1"], row["caption_1_belief"]) == ("línea\nzwei", pytest.approx(0.83))
    assert (row["image_2"], row["image_2_row"], row["image_2_belief"]) == (None, None, None)
    assert table.to_pylist()[0]["image_1_row"] is None


def test_the_probability_to_be_wrong_is_a_column_where_it_is_known() -> None:
    table = find(PAIRS, BELIEFS, SIMILARITY, p_wrong=np.array([0.1, 0.8, 0.3, 0.9])).table()
    assert table.column_names == [*COLUMNS, "p_wrong"]
    np.testing.assert_allclose(table["p_wrong"].to_pylist(), [0.9, 0.8, 0.3, 0.1], rtol=1e-6)
