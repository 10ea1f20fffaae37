"""Lines of a table mean pairs by image and caption; a table with errors changes nothing, nor does a second import."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from crcl.data.split import Split
from crcl.errors import InputError
from crcl.runs.exchange.files import Line, given_lines
from crcl.runs.exchange.matching import Imported, add_lines, newest, records_of, to_lines, to_steps
from crcl.runs.verdicts import Verdict, Verdicts

CAPTIONS = ["a dog", "a cat", "a dog", "a bird "]
PAIRS = Split(
    captions=CAPTIONS,
    image_index=np.array([0, 1, 0, 2]),
    features=np.zeros((3, 1, 1), np.float32),
    image_ids=["0.jpg", "1.jpg", "2.jpg"],
    caption_rows=np.array([0, 2, 5, 7]),
)


@pytest.fixture
def verdicts(tmp_path: Path) -> Verdicts:
    return Verdicts(tmp_path, "known")


def lines(*records: dict[str, Any]) -> list[Line]:
    return given_lines([{"image": "1.jpg", "caption": "a cat", "verdict": "wrong", **one} for one in records])


def test_a_pair_is_found_by_its_row_or_by_image_and_caption(verdicts: Verdicts) -> None:
    said = lines(
        {"row": 2}, {"image": "0.jpg", "caption": "a dog", "verdict": "right"}, {"caption": "a bird", "image": "2.jpg"}
    )
    assert add_lines(said, verdicts, PAIRS) == Imported(added=4, known=0)
    assert {row: one.verdict for row, one in verdicts.current().items()} == {
        2: "wrong",
        0: "right",
        5: "right",
        7: "wrong",
    }


def test_what_is_exported_and_imported_elsewhere_is_the_same_and_twice_changes_nothing(
    verdicts: Verdicts, tmp_path: Path
) -> None:
    verdicts.add(
        [Verdict(0, "right", queue="worst"), Verdict(2, "wrong", caption="=a lion", queue="grid")], reviewer="Ana"
    )
    verdicts.add([Verdict(2, "wrong", image="2.jpg", queue="worst"), Verdict(7, "unsure", queue="x")], reviewer="Ben")
    verdicts.add([Verdict(5, "wrong")], reviewer="Ben")
    verdicts.undo(reviewer="Ben")
    verdicts.add([Verdict(0, "unsure", queue="grid")], reviewer="Ana")
    other = Verdicts(tmp_path / "other", "known")
    other.folder.mkdir()
    table = given_lines(to_lines(verdicts, PAIRS))
    assert add_lines(table, other, PAIRS) == Imported(added=4, known=0)
    assert add_lines(table, other, PAIRS) == Imported(added=0, known=4)
    assert other.dated() == verdicts.dated()
    assert other.disagreements() == verdicts.disagreements()
    assert len(other.history()) == 4


def test_an_older_verdict_does_not_replace_a_newer_one(verdicts: Verdicts) -> None:
    verdicts.add([Verdict(2, "right")], reviewer="Ana")
    assert add_lines(lines({"at": "2020-01-01T12:00:00+02:00", "reviewer": "Ana"}), verdicts, PAIRS).added == 1
    assert verdicts.current()[2].verdict == "right"
    assert verdicts.history()["at"].to_pylist()[-1] == "2020-01-01T10:00:00.000000+00:00"


def test_a_verdict_without_a_time_is_new_only_if_the_reviewer_says_otherwise_now(verdicts: Verdicts) -> None:
    assert add_lines(lines({}), verdicts, PAIRS, reviewer="Ana").added == 1
    assert add_lines(lines({}), verdicts, PAIRS, reviewer="Ana").known == 1
    assert add_lines(lines({"verdict": "Right "}), verdicts, PAIRS, reviewer="Ana").added == 1
    assert add_lines(lines({}), verdicts, PAIRS, reviewer="Ana").added == 1
    assert verdicts.current()[2].verdict == "wrong"


def test_all_errors_are_told_at_once_and_nothing_is_added(verdicts: Verdicts) -> None:
    bad = [
        ({"row": 1}, "row 1 is no training pair"),
        ({"row": 0}, "row 0 of the data shows '0.jpg' with 'a dog', not '1.jpg' with 'a cat'"),
        ({"row": "two"}, "'two' is no row"),
        ({"caption": "a lion"}, "no training pair has image '1.jpg' and caption 'a lion'"),
        ({"verdict": "maybe"}, "'maybe' is no verdict: right, wrong, unsure"),
        ({"caption": None}, "no caption"),
        ({"new_image": "9.jpg"}, "'9.jpg' is no image of the training pairs"),
        ({"verdict": "right", "new_caption": "a lion"}, "so the verdict must be wrong"),
        ({"new_caption": "a lion", "new_image": "0.jpg"}, "give one of them"),
        ({"at": "yesterday"}, "'yesterday' is no time"),
    ]
    with pytest.raises(InputError) as caught:
        add_lines(lines({}, *(record for record, _ in bad)), verdicts, PAIRS)
    assert [problem.where for problem in caught.value.problems] == [f"line {place}" for place in range(2, 12)]
    for problem, (_, told) in zip(caught.value.problems, bad, strict=True):
        assert told in str(problem)
    assert not verdicts.path.exists()


def test_two_lines_that_contradict_each_other_are_refused_unless_they_have_times() -> None:
    with pytest.raises(InputError, match="line 2: says otherwise of the same pair than line 1"):
        to_steps(lines({}, {"verdict": "right"}), PAIRS)
    dated = lines({"at": "2026-01-02"}, {"verdict": "right", "at": "2026-01-01"})
    assert newest(to_steps(dated, PAIRS)) == {2: Verdict(2, "wrong", queue="import")}


def test_tables_in_memory_are_taken_as_they_come() -> None:
    frame = pandas.DataFrame({"row": [2.0, None], "image": ["1.jpg"] * 2, "caption": ["a cat"] * 2, "verdict": "wrong"})
    frame["at"] = pandas.to_datetime(["2026-01-01", None])
    frame["new_caption"] = [None, float("nan")]
    steps = to_steps(given_lines(records_of(frame)), PAIRS)
    assert [(step.at, step.verdicts[0].row) for step in steps] == [("2026-01-01T00:00:00.000000+00:00", 2), (None, 2)]
    with pytest.raises(InputError, match="not a table of verdicts"):
        records_of("verdicts")
