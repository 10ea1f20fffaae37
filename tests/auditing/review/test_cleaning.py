"""Verdicts beat beliefs: right stays, wrong goes or is repaired, unsure follows the belief."""

import csv
from pathlib import Path

import numpy as np
import pytest
from drawn import drawn, write_table
from tiny import call

import crcl
from crcl.auditing.clean import Cleaned
from crcl.auditing.result import Audit
from crcl.auditing.review.cleaning import ByVerdict, decide
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.runs.exchange.known import Known
from crcl.runs.verdicts import Verdict, Verdicts

PAIRS = Split(
    captions=["a dog", "a cat", "a cow", "a bird", "a fox", "a cat"],
    image_index=np.array([0, 1, 2, 3, 1, 2]),
    features=np.zeros((4, 1, 1), np.float32),
    image_ids=["0.jpg", "1.jpg", "2.jpg", "3.jpg"],
    caption_rows=np.array([0, 2, 4, 6, 8, 10]),
)
BELIEFS = np.array([0.0, 0.9, 0.9, 0.0, 0.9, 0.0], np.float32)


def known(*verdicts: Verdict) -> Known:
    return Known.of({verdict.row: verdict for verdict in verdicts}, PAIRS, "run")


def test_right_stays_wrong_goes_and_unsure_follows_the_belief() -> None:
    said = known(Verdict(0, "right"), Verdict(2, "wrong"), Verdict(4, "unsure"), Verdict(6, "unsure"))
    fates = decide(PAIRS, BELIEFS, None, threshold=0.5, known=said)
    assert fates.removed.tolist() == [False, True, False, True, False, True]
    assert fates.correspondence.tolist() == pytest.approx([1, 0, 0.9, 0, 0.9, 0])
    assert fates.by_verdict == ByVerdict(kept=1, removed=1)
    alone = decide(PAIRS, BELIEFS, None, threshold=0, known=said)
    assert np.flatnonzero(alone.removed).tolist() == [1]


def test_a_corrected_caption_and_a_moved_one_stay_and_beat_moves_by_belief() -> None:
    moves = np.array([-1, 3, -1, -1, 3, -1])
    said = known(Verdict(0, "wrong", caption="a wolf"), Verdict(2, "right"), Verdict(6, "wrong", image="0.jpg"))
    fates = decide(PAIRS, BELIEFS, moves, threshold=0.5, known=said)
    assert fates.images.tolist() == [-1, -1, -1, 0, 3, -1]
    assert fates.captions == {0: "a wolf"}
    assert fates.removed.tolist() == [False] * 5 + [True]
    assert fates.by_verdict == ByVerdict(kept=1, corrected=1, moved=1)


def test_a_pair_that_would_be_in_the_data_twice_is_removed() -> None:
    said = known(Verdict(8, "wrong", caption="a cat"), Verdict(10, "wrong", image="1.jpg"), Verdict(4, "right"))
    fates = decide(PAIRS, BELIEFS, None, threshold=0.5, known=said)
    assert np.flatnonzero(fates.removed).tolist() == [0, 3, 4, 5]
    assert (fates.captions, fates.images.max()) == ({}, -1)
    gone = decide(PAIRS, BELIEFS, None, threshold=0.95, known=known(Verdict(8, "wrong", caption="a cat")))
    assert gone.captions == {4: "a cat"}  # the other one is removed, so this one stays


def test_verdicts_on_other_rows_or_with_unknown_images_are_refused() -> None:
    with pytest.raises(InputError, match="run: has a verdict on row 1, which is no training pair"):
        known(Verdict(1, "right"))
    with pytest.raises(InputError, match=r"run: moves row 0 to '9\.jpg', no image of the training pairs"):
        known(Verdict(0, "wrong", image="9.jpg"))


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    folder = tmp_path_factory.mktemp("reviewed")
    settings = {"method": "relink", "matcher.name": "linear"}
    return crcl.audit(write_table(drawn(100), folder), folder / "made", keep=0.8, settings=settings)


@pytest.fixture
def said(audit: Audit) -> dict[int, Verdict]:
    """Verdicts on the worst pairs, and on the best."""
    rows, images = (audit.table[name].to_pylist() for name in ("row", "image"))
    found = [
        Verdict(rows[0], "right"),
        Verdict(rows[1], "wrong", caption='a "new", caption'),
        Verdict(rows[2], "wrong", image=images[-3]),
        Verdict(rows[3], "unsure"),
        Verdict(rows[-1], "wrong"),
        Verdict(rows[-2], "unsure"),
    ]
    for path in audit.run.path.glob("verdicts.sqlite*"):
        path.unlink()
    Verdicts.open(audit.run).add(found, reviewer="Ana")
    return {verdict.row: verdict for verdict in found}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_an_audit_cleans_by_its_verdicts_and_tells_what_they_did(
    audit: Audit, said: dict[int, Verdict], tmp_path: Path
) -> None:
    done = audit.clean(tmp_path / "cleaned.csv", verdicts=True)
    assert done.verdicts == ByVerdict(kept=1, removed=1, corrected=1, moved=1)
    assert crcl.clean(audit.run, tmp_path / "same.csv", verdicts=True, keep=0.8) == done
    assert (tmp_path / "same.csv").read_bytes() == (tmp_path / "cleaned.csv").read_bytes()
    data = Path(audit.run.config["data"]["path"])
    suspects = set(audit.suspects["row"].to_pylist())
    expected = []
    for row, values in enumerate(rows_of(data)):
        verdict = said.get(row, Verdict(row, "unsure"))
        if verdict.verdict == "unsure" and row in suspects:
            continue
        if verdict.verdict == "wrong" and verdict.caption is verdict.image:
            continue
        changed = {"caption": verdict.caption, "image": verdict.image}
        expected.append(values | {name: value for name, value in changed.items() if value is not None})
    assert rows_of(tmp_path / "cleaned.csv") == expected


def test_without_being_asked_for_verdicts_change_nothing(
    audit: Audit, said: dict[int, Verdict], tmp_path: Path
) -> None:
    done = audit.clean(tmp_path / "cleaned.csv")
    assert done == Cleaned(audit.suspect_count, 100 - audit.suspect_count, 20)


def test_marked_rows_have_the_correspondence_that_verdicts_say(
    audit: Audit, said: dict[int, Verdict], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    words = ["clean", str(audit.run.path), "-o", str(tmp_path / "marked.csv"), "--mark", "--verdicts"]
    answer = call(capsys, monkeypatch, *words)
    assert "by verdicts: 4 marked" in answer.out
    marked = rows_of(tmp_path / "marked.csv")
    for row, verdict in said.items():
        if verdict.verdict != "unsure":
            assert float(marked[row]["correspondence"]) == (verdict.verdict == "right")
    assert [row["caption"] for row in marked] == [
        row["caption"] for row in rows_of(Path(audit.run.config["data"]["path"]))
    ]


def test_the_command_tells_what_verdicts_did(
    audit: Audit, said: dict[int, Verdict], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    words = ["clean", str(audit.run.path), "-o", str(tmp_path / "cleaned.csv"), "--verdicts", "--threshold", "0"]
    answer = call(capsys, monkeypatch, *words)
    assert "1 rows removed, 99 kept" in answer.out
    assert "by verdicts: 1 kept, 1 removed, 1 corrected, 1 moved" in answer.out
