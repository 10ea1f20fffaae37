"""What an audit tells, and what it leaves open: few pairs, one image, and intervals that say nothing."""

import csv
from pathlib import Path

import numpy as np
import pytest
from drawn import drawn
from made_audits import made_audit
from tiny import call

import crcl
from crcl.auditing.estimate import Estimate, estimate
from crcl.auditing.findings import Findings
from crcl.auditing.scores.interval import WIDEST, Interval, told, unless_vague
from crcl.auditing.scores.rating import BY_NAME_ONLY
from crcl.auditing.summary import about_decoys, more_decoys, precision_at, summary


def write_pairs(folder: Path, pairs: int) -> None:
    """The first so many pairs of drawn scenes with five captions each, as a table with images beside it."""
    data = drawn(captions=5)
    data.write_images(folder / "images")
    with (folder / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption"])
        writer.writerows((f"images/{name}", caption) for name, caption, _ in data.rows()[:pairs])


def blurred(pairs: int = 600, number: int = 30) -> tuple[Findings, Estimate]:
    """Findings at the threshold of the best F1, and an estimate, of beliefs that hardly tell decoys from pairs."""
    rng = np.random.default_rng(1)
    found = estimate(
        np.concatenate([rng.beta(2, 4, pairs // 5), rng.beta(4, 2, pairs - pairs // 5)]), rng.beta(2, 4, number)
    )
    audit = made_audit(found.correspondence)
    return Findings(audit.rows, audit.pairs, found.correspondence, audit.similarity, found.best_f1()), found


def test_an_interval_wider_than_half_of_all_is_told_without_its_estimate() -> None:
    wide, narrow = Interval(0.56, 0.0, WIDEST + 0.01), Interval(0.56, 0.3, 0.7)
    assert wide.vague
    assert unless_vague(wide) is None
    assert told(wide) == "between 0 and 51 %"
    assert told(narrow) == "56 % (30–70)"
    assert unless_vague(narrow) is narrow
    assert told(None) == "unknown"
    assert unless_vague(None) is None


def test_a_precision_that_may_be_nearly_anything_is_told_as_an_interval_alone() -> None:
    audit, found = blurred()
    precision = precision_at(found, audit.threshold)
    assert precision is not None
    assert precision.vague
    (sentence,) = summary(audit, found)
    assert f"estimated precision between {100 * precision.low:.0f} and {100 * precision.high:.0f} %, recall" in sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        (30, "decoys are too few for an estimate, which needs 20 or more"),
        (91, "so nothing can be estimated from them"),
        (150, "decoys say no more than that between "),
    ],
)
def test_few_pairs_give_a_sentence_and_no_number(
    pairs: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pairs(tmp_path, pairs)
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, monkeypatch, "audit", "pairs.csv")
    assert answer.code == 0, answer.err
    first = answer.out.splitlines()[0]
    assert first.startswith("None of the ")
    assert " pairs is flagged: " in first
    assert why in first
    for word in ("an estimated", "estimated precision", "recall", "upper bound", "next:"):
        assert word not in answer.out
    audit = crcl.audit(tmp_path / "pairs-audit" / "run")
    assert (audit.rate, audit.precision, audit.recall, audit.p_wrong, audit.kept) == (None,) * 5
    assert why in audit.unsure
    assert audit.unsure in repr(audit)
    assert audit.suspect_count == 0
    scores = [] if audit.scores is None else audit.scores.to_pylist()
    assert all(row["rate"] is None for row in scores if row["score"] not in BY_NAME_ONLY)
    page = (tmp_path / "pairs-audit" / "report" / "index.html").read_text("utf-8")
    assert "<dt>Precision</dt>" not in page
    refused = call(capsys, monkeypatch, "clean", "pairs-audit/run", "-o", "cleaned.csv")
    assert refused.code == 2
    assert f"no row is known to be wrong: {audit.unsure}" in refused.err
    assert "--threshold" in refused.err


@pytest.mark.slow
def test_captions_of_a_single_image_cannot_be_audited_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pairs(tmp_path, 5)
    monkeypatch.chdir(tmp_path)
    refused = call(capsys, monkeypatch, "audit", "pairs.csv")
    assert refused.code == 2
    assert "only one image, 'images/000000.png'" in refused.err
    assert "add images" in refused.err


def simulated(pairs: int, decoys: int, apart: float = 1.2) -> Estimate:
    """An estimate where a fifth of the pairs are mismatched; nearer ones are told apart less."""
    rng = np.random.default_rng(2)
    places = np.where(rng.random(pairs) < 0.2, -apart, apart) + rng.normal(size=pairs)
    return estimate(1 / (1 + np.exp(-places)), 1 / (1 + np.exp(apart - rng.normal(size=decoys))))


def test_more_decoys_are_advised_where_they_would_narrow_the_precision() -> None:
    wide = simulated(3000, 60)
    threshold = wide.best_f1()
    assert more_decoys(wide, threshold) == 0.33
    (sentence,) = about_decoys(wide, threshold)
    assert sentence == (
        "More decoys would narrow the interval of the precision: audit again with a share of 0.33 ({decoys})."
    )
    now, then = (np.ptp(each.precision_interval(threshold)) for each in (wide, simulated(3000, 990)))
    assert then < 0.75 * now
    assert more_decoys(simulated(40_000, 60), threshold) == 0.05  # two thousand are enough


def test_more_decoys_are_not_advised_where_they_would_not_help() -> None:
    few, clear, many = simulated(600, 50), simulated(3000, 600, apart=4), simulated(3000, 990)
    for found in (few, clear, many):
        assert more_decoys(found, found.best_f1()) is None
    wide = simulated(3000, 60)
    assert more_decoys(wide, 0.0) is None  # nothing is flagged
    known = wide.with_known(np.arange(3000) < 5, np.arange(3000) > 2990)
    assert more_decoys(known, wide.best_f1()) is None  # verdicts tell more
    assert about_decoys(None, 0.5) == []
