"""What scores are worth, in sentences and as a table."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from crcl.auditing.estimate import distinguishable, estimate
from crcl.auditing.scores.interval import Interval, told
from crcl.auditing.scores.of_run import MEANINGS, Scores
from crcl.auditing.scores.rating import BY_NAME_ONLY, Rating
from crcl.auditing.summary import precision_at, rate_of, recall_at

KINDS = {
    "random": "captions of other images",
    "near": "captions of similar images",
    "swap": "captions with one word exchanged",
}
"""Kinds of decoys in words."""
_ADDS = 2.0  # standard errors from which training is said to add something, or to take it away


def about_score(
    score: str, ratings: Mapping[str, Rating], *, doubtful: bool = False, blind: bool = False, vague: bool = False
) -> list[str]:
    """Which score was taken, and how well it and the others tell decoys from pairs; nothing where there is one only.

    Args:
        score: The score that was taken.
        ratings: How well each score tells decoys from pairs.
        doubtful: Whether most pairs lie among the decoys.
        blind: Whether no score tells decoys from pairs, which is said instead.
        vague: Whether the estimate is not told, because it may be nearly anything.
    """
    if len(ratings) < 2 or score not in ratings:
        return []
    if blind:
        most = max((one for name, one in ratings.items() if name not in BY_NAME_ONLY), key=lambda one: one.auroc)
        best = f"{most.auroc:.2f} ± {most.error:.2f}"
        return [f"No score tells decoys from pairs: the best AUROC is {best}, where chance is 0.50."]
    free = {name: rating for name, rating in ratings.items() if name != score and name not in BY_NAME_ONLY}
    others = ", ".join(f"{name} {rating.auroc:.3f}" for name, rating in free.items())
    own = ratings[score]
    found = [
        f"Judged by {score}, the {MEANINGS[score]}: AUROC of decoys against pairs {own.auroc:.3f} ± {own.error:.3f}"
        f"{others and f'; other scores: {others}'}."
    ]
    if doubtful:
        found.append(
            "Most pairs lie among the decoys: the features do not show what the captions say, or nearly all pairs are "
            "wrong. "
            + ("" if vague else "The estimated share is an upper bound, and the true one may be far lower. ")
            + "Features of a better model would tell."
        )
    return found


def about_training(ratings: Mapping[str, Rating]) -> list[str]:
    """What training added to the best score without it, in a sentence; nothing where only one of them is there."""
    if "belief" not in ratings or "linear" not in ratings:
        return []
    quick = ratings["linear"]  # beside the belief of the run, so that the sign is turned
    added, error = -quick.added, quick.added_error
    if added > _ADDS * error:
        return [f"Training added {added:.3f} ± {error:.3f} to the AUROC of the quick audit."]
    what = "took from it" if added < -_ADDS * error else "added nothing to it that decoys can tell"
    return [f"Training {what}: {added:+.3f} ± {error:.3f} to the AUROC of the quick audit."]


def about_kinds(recall: Mapping[str, Interval]) -> list[str]:
    """How much of each kind of decoy is flagged, with intervals; nothing where there is one kind only."""
    if len(recall) < 2:
        return []
    parts = [f"{told(recall[kind])} of {words}" for kind, words in KINDS.items() if kind in recall]
    return [f"Of decoys are flagged: {', '.join(parts[:-1])}, and {parts[-1]}."]


def scores_table(scores: Scores, ratings: Mapping[str, Rating], taken: str) -> pa.Table:
    """One row for each score, the best first: how well it tells decoys from pairs, and what it estimates.

    Columns: score, meaning, taken, auroc and error (of decoys against pairs), rate, rate_low, rate_high (estimated
    share of mismatched pairs), threshold (with the best estimated F1), suspects, precision, precision_low,
    precision_high, recall, recall_low, recall_high. `_low` and `_high` are ends of intervals; what has an interval that
    says nothing is null.
    """
    random = np.flatnonzero(scores.kinds == "random") + scores.pairs
    rows = []
    for name, rating in ratings.items():
        row = {"score": name, "meaning": MEANINGS[name], "taken": name == taken}
        row |= {"auroc": rating.auroc, "error": rating.error}
        belief = scores.belief(name)
        pairs, decoys = belief[: scores.pairs], belief[random]
        if distinguishable(pairs, decoys):
            found = estimate(pairs, decoys)
            flagged = found.at(found.best_f1())
            row |= _columns("rate", rate_of(found))
            row |= {"threshold": flagged.threshold, "suspects": flagged.count}
            row |= _columns("precision", precision_at(found, flagged.threshold))
            row |= _columns("recall", recall_at(found, flagged.threshold))
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _columns(name: str, found: Interval | None) -> dict[str, float]:
    """An estimate and the ends of its interval as columns; without what is not known, or so vague as to say nothing."""
    if found is None:
        return {}
    return ({} if found.vague else {name: float(found)}) | {f"{name}_low": found.low, f"{name}_high": found.high}


_SCHEMA = pa.schema(
    [
        ("score", pa.string()),
        ("meaning", pa.string()),
        ("taken", pa.bool_()),
        ("auroc", pa.float64()),
        ("error", pa.float64()),
        ("rate", pa.float64()),
        ("rate_low", pa.float64()),
        ("rate_high", pa.float64()),
        ("threshold", pa.float64()),
        ("suspects", pa.int64()),
        ("precision", pa.float64()),
        ("precision_low", pa.float64()),
        ("precision_high", pa.float64()),
        ("recall", pa.float64()),
        ("recall_low", pa.float64()),
        ("recall_high", pa.float64()),
    ]
)
