"""A fixed random sample of the flagged and of the unflagged pairs, and which verdicts on it measure an audit."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crcl.auditing.review.sample import Stratum

EACH = 100
"""Default number of pairs from each group."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Pairs to judge in the order in which they are shown, and how many there are in all."""

    pairs: np.ndarray
    """(S,) numbers of pairs, flagged and unflagged ones mixed"""
    flagged: np.ndarray
    """(S,) bool"""
    all_flagged: int
    all_unflagged: int


def draw(suspect: np.ndarray, *, each: int = EACH, seed: int = 0) -> Sample:
    """A random sample from the flagged and from the unflagged pairs.

    Each pair has a random number that depends on the seed alone, and those with the smallest are drawn: where a
    threshold changes a little, most of the sample stays, and so do the verdicts on it.

    Args:
        suspect: Whether each pair is flagged, (N,) bool.
        each: How many pairs from each group; all of a group that has fewer.
        seed: Of the random numbers.
    """
    chance, order = np.random.default_rng(seed).random((2, len(suspect)))
    groups = [np.flatnonzero(suspect), np.flatnonzero(~suspect)]
    chosen = np.concatenate([group[np.argsort(chance[group], kind="stable")[:each]] for group in groups])
    chosen = chosen[np.argsort(order[chosen], kind="stable")].astype(np.int64)
    return Sample(chosen, suspect[chosen], len(groups[0]), len(groups[1]))


def strata(sample: Sample, wrong: Mapping[int, bool | None], reached: int) -> tuple[Stratum, Stratum]:
    """Verdicts on the part of the sample that was gone through, as counts of the flagged and of the unflagged pairs.

    A pair of the sample may have got its verdict elsewhere, as one of the worst. It counts only if it lies in that
    part: otherwise the worst pairs, which are judged first, would be too many among those that count.

    Args:
        sample: The sample.
        wrong: Whether a pair is wrong, for pairs with a verdict; None for those that people were unsure of.
        reached: The sample was gone through to this place at least; -1 where it was not begun.
    """
    places = sample.pairs.tolist()
    judged = next((place for place, pair in enumerate(places) if pair not in wrong), len(places))
    shown = zip(places[: max(reached + 1, judged)], sample.flagged.tolist(), strict=False)
    said = [(flagged, wrong[pair]) for pair, flagged in shown if wrong.get(pair) is not None]
    return (
        Stratum(sample.all_flagged, said.count((True, False)), said.count((True, True))),
        Stratum(sample.all_unflagged, said.count((False, False)), said.count((False, True))),
    )
