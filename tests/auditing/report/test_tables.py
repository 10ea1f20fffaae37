"""The tables of the report: what is kept in steps, the scores with the one that was taken, and kinds of decoys."""

import numpy as np
import pyarrow as pa
import pytest
from made_audits import made_audit

from crcl.auditing.estimate import estimate
from crcl.auditing.report import tables
from crcl.auditing.scores.interval import Interval


def test_what_is_kept_is_told_in_steps_and_at_the_threshold() -> None:
    rng = np.random.default_rng(0)
    pairs = np.concatenate([rng.beta(1, 12, 400), rng.beta(8, 2, 1600)])
    known = estimate(pairs, rng.beta(1, 12, 300))
    table = tables.kept_table(known, 0.2)
    kept = [float(row[0].removesuffix(" %")) for row in table.rows]
    assert len(kept) == 11
    assert kept[0] == 100
    assert kept == sorted(kept, reverse=True)
    assert [round(share, -1) for share in kept if abs(share - 100 * (pairs >= 0.2).mean()) > 0.1] == [
        *range(100, 0, -10)
    ]
    assert table.rows[0] == ("100.0 %", "2,000", f"{100 * known.rate:.1f} %", "0")
    assert table.marked is not None
    assert table.rows[table.marked] == (
        f"{100 * (pairs >= 0.2).mean():.1f} %",
        f"{(pairs >= 0.2).sum():,}",
        f"{100 * known.kept_at(0.2)[1]:.1f} %",
        "0.2",
    )


def test_pairs_that_are_believed_alike_are_kept_or_removed_together() -> None:
    pairs = np.repeat([0.1, 0.9], [100, 300])
    table = tables.kept_table(estimate(pairs, np.full(50, 0.1)), 0.9)
    assert [row[:2] for row in table.rows] == [("100.0 %", "400"), ("75.0 %", "300")]
    assert [float(row[2].removesuffix(" %")) for row in table.rows] == pytest.approx([25, 0], abs=0.2)
    assert table.marked == 1
    everything = tables.kept_table(estimate(pairs, np.full(50, 0.1)), 1.0)
    assert everything.marked is None  # nothing is kept there


def test_scores_have_estimates_with_intervals_or_dashes_and_the_taken_one_is_marked() -> None:
    rows = [
        {"score": "cosine", "meaning": "a", "taken": False, "auroc": 0.6, "error": 0.1},
        {"score": "linear", "meaning": "b", "taken": True, "auroc": 0.5, "error": 0.1, "rate": 0.2, "suspects": 1200}
        | {"rate_low": 0.17, "rate_high": 0.22}
        | {"precision": 0.9, "precision_low": 0.7, "precision_high": 0.95}
        | {"recall": 0.8, "recall_low": 0.72, "recall_high": 0.86},
    ]
    names = list(rows[1])
    table = tables.scores_table(pa.table({name: [row.get(name) for row in rows] for name in names}))
    assert table.rows[0] == ("cosine: a", "0.600 ± 0.100", "–", "–", "–", "–")
    assert table.rows[1] == (
        "linear: b",
        "0.500 ± 0.100",
        "20.0 % (17.0–22.0)",
        "1,200",
        "90 % (70–95)",
        "80 % (72–86)",
    )
    assert (table.marked, table.mark) == (1, "taken")


def test_one_kind_of_decoy_needs_no_table() -> None:
    assert tables.kinds_table({"random": Interval(0.9, 0.8, 0.95)}) is None
    table = tables.kinds_table({"swap": Interval(0.1, 0.02, 0.3), "random": Interval(0.9, 0.8, 0.95)})
    assert table is not None
    assert table.rows == [
        ("random: captions of other images", "90 % (80–95)"),
        ("swap: captions with one word exchanged", "10 % (2–30)"),
    ]
    assert tables.tables(None, made_audit(np.ones(3)).threshold, None, {}) == []
