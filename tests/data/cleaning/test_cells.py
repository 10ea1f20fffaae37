"""Lists of captions in one cell: suspects leave the list, everything else stays."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from crcl.data.cleaning.cells import Listed, clean_listed
from crcl.data.cleaning.judged import Judged
from crcl.data.rows.tables import Columns
from crcl.errors import InputError

RECORDS: list[dict[str, Any]] = [
    {"file": "a.png", "captions": ["one", "zwö"], "n": 1.50},
    {"file": "b.png", "captions": ["three"], "n": 2},
    {"file": "c.png", "captions": [], "n": 3},
    {"file": "d.png", "captions": ["four", "five"], "n": 4},
]
COLUMNS = Columns("file", "captions")
ROWS = [("a.png", "one"), ("a.png", "zwö"), ("b.png", "three"), ("c.png", ""), ("d.png", "four"), ("d.png", "five")]
FORMATS = pytest.mark.parametrize("ending", ["jsonl", "parquet"])


def written(path: Path) -> Path:
    if path.suffix == ".parquet":
        kind = pa.schema([("file", pa.string()), ("captions", pa.list_(pa.string())), ("n", pa.float64())])
        pa.parquet.write_table(pa.Table.from_pylist(RECORDS, kind.with_metadata({"a": "b"})), path, row_group_size=3)
    else:
        path.write_text("\n".join(json.dumps(record) for record in RECORDS) + "\n\n")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pa.parquet.read_table(path).to_pylist())
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def clean(path: Path, **options: Any) -> Path:
    """All rows are judged but the empty one; row n has the correspondence n / 8."""
    expected = {row: pair for row, pair in enumerate(ROWS) if row != 3}
    beliefs = {row: np.float32(row / 8) for row in expected}
    given = {"expected": expected, "correspondence": beliefs, "suspects": set(), "moved": {}} | options
    output = path.with_name(f"out{path.suffix}")
    table = Listed(path, COLUMNS, np.array([2, 1, 1, 2]))
    assert clean_listed(table, Judged(path, **given), output) == 6
    return output


@FORMATS
def test_suspects_leave_their_list_and_a_record_without_captions_is_left_out(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path / f"metadata.{ending}")
    found = read(clean(path, suspects={1, 2, 4}))
    assert found == [RECORDS[0] | {"captions": ["one"]}, RECORDS[2], RECORDS[3] | {"captions": ["five"]}]
    if ending == "parquet":
        assert pa.parquet.read_schema(tmp_path / "out.parquet") == pa.parquet.read_schema(path)
        assert pa.parquet.read_schema(tmp_path / "out.parquet").metadata[b"a"] == b"b"


@FORMATS
def test_correspondences_are_in_step_with_the_captions(tmp_path: Path, ending: str) -> None:
    found = read(clean(written(tmp_path / f"metadata.{ending}"), suspects={1}, mark=True))
    assert [record.pop("correspondence") for record in found] == [[0, 0.125], [0.25], [], [0.5, 0.625]]
    assert found == RECORDS


def test_lines_that_do_not_change_stay_byte_by_byte(tmp_path: Path) -> None:
    path = written(tmp_path / "metadata.jsonl")
    path.write_text(path.read_text().replace(", ", ",   "))
    lines = path.read_text().splitlines()
    assert clean(path, suspects={5}).read_text().splitlines()[:3] == lines[:3]


@FORMATS
def test_all_captions_of_a_record_can_move_and_some_cannot(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path / f"metadata.{ending}")
    found = read(clean(path, moved={2: "d.png", 4: "a.png", 5: "a.png"}))
    assert [record["file"] for record in found] == ["a.png", "d.png", "c.png", "a.png"]
    for moved in ({0: "b.png"}, {0: "b.png", 1: "d.png"}):
        with pytest.raises(InputError, match=r"captions of 'a\.png' share a cell, and would not all move"):
            clean(path, moved=moved)


@FORMATS
def test_marked_or_changed_data_is_refused(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path / f"metadata.{ending}")
    with pytest.raises(InputError, match=r"row 1 \(the first is 1\) is not the pair that was judged"):
        clean(path, expected={0: ("a.png", "other")})
    marked = clean(path, mark=True)
    with pytest.raises(InputError, match="has a column 'correspondence' already"):
        clean(marked.rename(path), mark=True)
