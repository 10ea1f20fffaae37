"""The tables of the report: the scores that were compared, recall by kind of decoy, and what cleaning keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from crcl.auditing.estimate import Estimate
from crcl.auditing.scores.interval import Interval, percent, told
from crcl.auditing.scores.telling import KINDS


@dataclass(frozen=True)
class Table:
    """A small table with a title; its first column names the rows."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    marked: int | None = None
    """The row that the audit chose."""
    mark: str = ""
    """What it was chosen as."""


def tables(
    estimate: Estimate | None, threshold: float, scores: pa.Table | None, recalls: Mapping[str, Interval]
) -> list[Table]:
    """The tables that there are numbers for."""
    found = [
        None if estimate is None else kept_table(estimate, threshold),
        None if scores is None else scores_table(scores),
        kinds_table(recalls),
    ]
    return [table for table in found if table is not None]


def kept_table(estimate: Estimate, threshold: float) -> Table:
    """What is kept in steps of a tenth, and at the chosen threshold: how much of it is wrong, as estimated."""
    kept, pairs = estimate.kept(), len(estimate.correspondence)
    # thresholds that keep at least so much
    enough = [np.flatnonzero(kept.share >= share - 1e-9) for share in np.arange(9, 0, -1) / 10]
    steps = {float(kept.thresholds[places[-1]]) for places in enough if len(places)}
    shares = {at: estimate.kept_at(at) for at in (threshold, 0.0, *sorted(steps))}
    told: dict[float, float] = {}  # where many pairs are believed alike, several thresholds keep the same
    for at, (share, _) in shares.items():
        told.setdefault(share, at)
    order = sorted(at for share, at in told.items() if share > 0)
    rows = [
        (percent(shares[at][0], 1), f"{round(shares[at][0] * pairs):,}", percent(shares[at][1], 1), f"{at:g}")
        for at in order
    ]
    marked = order.index(threshold) if threshold in order else None
    head = ("kept", "pairs", "wrong among the kept, estimated", "threshold")
    return Table("How much is wrong among the kept pairs", head, rows, marked, "chosen")


def scores_table(scores: pa.Table) -> Table:
    """Every score: how well it tells decoys from pairs, and what it would flag."""
    listed = scores.to_pylist()
    rows = [
        (
            f"{row['score']}: {row['meaning']}",
            f"{row['auroc']:.3f} ± {row['error']:.3f}",
            _share(row, "rate", 1),
            "–" if row["suspects"] is None else f"{row['suspects']:,}",
            _share(row, "precision"),
            _share(row, "recall"),
        )
        for row in listed
    ]
    taken = [row["taken"] for row in listed]
    head = ("score", "AUROC of decoys against pairs", "mismatched", "flagged", "precision", "recall")
    return Table("Scores that were compared", head, rows, taken.index(True) if any(taken) else None, "taken")


def kinds_table(recalls: Mapping[str, Interval]) -> Table | None:
    """The share of decoys that is flagged, by kind; None where there is one kind only."""
    rows = [(f"{kind}: {words}", told(recalls[kind])) for kind, words in KINDS.items() if kind in recalls]
    return None if len(rows) < 2 else Table("Recall by kind of decoy", ("kind", "flagged"), rows)


def _share(row: Mapping[str, Any], name: str, decimals: int = 0) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "–" if low is None else told(Interval(row[name] or 0.0, low, high), decimals)
