"""Tables of verdicts as files: nothing is lost on the way, no cell is a formula, and all errors are told at once."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from crcl.errors import InputError
from crcl.runs.exchange.files import COLUMNS, guarded, read_table, unguarded, write_verdicts

TEXTS = [
    "a dog",
    '=HYPERLINK("http://example.com","x")',
    "+1",
    "-2+3",
    "@SUM(A1)",
    "'=already quoted",
    "''plain quotes",
    "\tafter a tab",
    "\r\nafter a line",
    "two\nlines, and a comma",
    'a "quote"',
    "＝wide",
    "ünï 犬",
]


def line(caption: str, **changed: Any) -> dict[str, Any]:
    known = dict.fromkeys(COLUMNS) | {"row": 3, "image": "-1.jpg", "verdict": "wrong", "reviewer": "@ana", "queue": ""}
    return known | {"caption": caption} | changed


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_every_text_comes_back_as_it_was(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"verdicts{ending}"
    write_verdicts(path, [line(text, new_caption=text) for text in TEXTS], overwrite=False)
    found = [one.values for one in read_table(path)]
    assert [one["caption"] for one in found] == TEXTS
    assert [one["new_caption"] for one in found] == TEXTS
    assert {(one["image"], one["reviewer"]) for one in found} == {("-1.jpg", "@ana")}


def test_no_cell_of_a_csv_file_begins_like_a_formula(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.csv"
    write_verdicts(path, [line(text) for text in TEXTS], overwrite=False)
    with path.open(encoding="utf-8", newline="") as file:
        cells = [cell for values in csv.reader(file) for cell in values]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝"))]
    assert all(unguarded(guarded(text)) == text for text in TEXTS)


def test_a_text_that_utf8_cannot_hold_is_refused_in_csv_and_kept_in_jsonl(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no text; name a \.jsonl file"):
        write_verdicts(tmp_path / "verdicts.csv", [line("\ud800")], overwrite=False)
    assert not (tmp_path / "verdicts.csv").exists()
    write_verdicts(tmp_path / "verdicts.jsonl", [line("\ud800")], overwrite=False)
    assert read_table(tmp_path / "verdicts.jsonl")[0].values["caption"] == "\ud800"


def test_a_file_is_replaced_only_if_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already; pass overwrite=True"):
        write_verdicts(path, [line("a dog")], overwrite=False)
    assert path.read_text() == "mine"
    path.unlink()
    for text in ("a dog", "a cat"):
        write_verdicts(path, [line(text)], overwrite=True)
        assert [one.values["caption"] for one in read_table(path)] == [text]
    with pytest.raises(InputError, match=r"\.csv or \.jsonl"):
        write_verdicts(tmp_path / "verdicts.xlsx", [], overwrite=False)


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_only_a_table_of_verdicts_is_replaced(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"pairs{ending}"
    for content in ("image,caption\na.jpg,a dog\n", '{"image": "a.jpg"}\n', "[1]\n", "1\n"):
        path.write_text(content)
        with pytest.raises(InputError, match="holds no verdicts, so it is not replaced"):
            write_verdicts(path, [line("a dog")], overwrite=True)
        assert path.read_text() == content
    path.unlink()
    for lines in ([], [line("a dog")], []):
        write_verdicts(path, lines, overwrite=True)


def test_a_table_without_the_columns_that_are_needed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.csv"
    path.write_text("row,label\n1,wrong\n")
    with pytest.raises(InputError, match="no column 'image', 'caption', 'verdict'; it has row, label; a table of"):
        read_table(path)
    path.write_text("image,caption,caption,verdict\n")
    with pytest.raises(InputError, match="the column 'caption' occurs twice"):
        read_table(path)


def test_a_file_of_a_spreadsheet_with_a_mark_at_its_start_is_read(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.csv"
    path.write_bytes("\ufeffimage,caption,verdict\r\na.jpg,a dog,right\r\n\r\n".encode())
    assert [one.values for one in read_table(path)] == [{"image": "a.jpg", "caption": "a dog", "verdict": "right"}]


def test_all_lines_that_cannot_be_read_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.csv"
    path.write_text("image,caption,verdict\na.jpg,a dog\nb.jpg,a cat,right\nc.jpg,a, b,wrong\n")
    with pytest.raises(InputError) as caught:
        read_table(path)
    assert [problem.where for problem in caught.value.problems] == [f"{path}:2", f"{path}:4"]
    lines = path.with_suffix(".jsonl")
    lines.write_text('[1]\n{"image": "a.jpg"\n' + json.dumps({"image": 1, "caption": 2, "verdict": 3}) + "\n")
    with pytest.raises(InputError) as caught:
        read_table(lines)
    assert [problem.where for problem in caught.value.problems] == [f"{lines}:1", f"{lines}:2"]
