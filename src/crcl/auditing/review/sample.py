"""Precision and recall of an audit from verdicts on random samples of its flagged and of its unflagged pairs."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from crcl.auditing.scores.interval import Interval
from crcl.errors import InputError

_DRAWS = 20_000


@dataclass(frozen=True)
class Stratum:
    """A group of pairs, and what people said of a random sample of it."""

    pairs: int
    """How many pairs the group has."""
    right: int
    """How many of the sample were said to match."""
    wrong: int
    """How many of the sample were said to be wrong."""

    @property
    def judged(self) -> int:
        """The size of the sample."""
        return self.right + self.wrong


@dataclass(frozen=True)
class Measured:
    """What a sample says, each with its interval; None where the sample says nothing of it."""

    precision: Interval | None
    """Share of the flagged pairs that are wrong."""
    recall: Interval | None
    """Share of the wrong pairs that are flagged."""
    rate: Interval | None
    """Share of all pairs that are wrong."""


def measure(flagged: Stratum, unflagged: Stratum, *, level: float = 0.95, seed: int = 0) -> Measured:
    """Precision, recall and rate of wrong pairs, from verdicts on random samples of both groups.

    The interval of the precision is that of Clopper and Pearson, which covers at least as often as it says. Those of
    recall and rate weigh both groups by their sizes; they are quantiles over draws of both groups' shares, each from
    its Beta distribution with the prior of Jeffreys. A group that is empty, or judged as a whole, adds no doubt.

    Args:
        flagged: The suspects.
        unflagged: All other pairs.
        level: How often the intervals should hold the true value.
        seed: Seed of the draws.

    Returns:
        The estimates. Verdicts "unsure" count for neither.

    Example:
        >>> measure(Stratum(200, right=5, wrong=45), Stratum(800, right=49, wrong=1)).precision
        0.9 (0.782 to 0.967)
    """
    for stratum in (flagged, unflagged):
        if min(stratum.pairs, stratum.right, stratum.wrong) < 0 or stratum.judged > stratum.pairs:
            raise InputError(f"{stratum.right} right and {stratum.wrong} wrong verdicts on {stratum.pairs} pairs")
    if not 0 < level < 1:
        raise InputError(f"the level must be between 0 and 1, got {level}")
    precision = _share(flagged, level) if flagged.judged else None
    if any(stratum.pairs and not stratum.judged for stratum in (flagged, unflagged)):
        return Measured(precision, None, None)
    rng = np.random.default_rng(seed)
    found, missed = _wrong(flagged), _wrong(unflagged)
    found_draws, missed_draws = _drawn(flagged, rng), _drawn(unflagged, rng)
    total, total_draws = found + missed, found_draws + missed_draws
    pairs = flagged.pairs + unflagged.pairs
    rate = None if not pairs else _interval(total / pairs, total_draws / pairs, level)
    recall = None
    if total > 0:
        shares = np.divide(found_draws, total_draws, out=np.zeros_like(total_draws), where=total_draws > 0)
        recall = _interval(found / total, shares, level)
    return Measured(precision, recall, rate)


def _share(stratum: Stratum, level: float) -> Interval:
    """The share of wrong pairs, with the interval of Clopper and Pearson."""
    wrong, judged, tail = stratum.wrong, stratum.judged, (1 - level) / 2
    share = wrong / judged
    if judged == stratum.pairs:
        return Interval(share, share, share)
    low = float(beta.ppf(tail, wrong, judged - wrong + 1)) if wrong else 0.0
    high = float(beta.ppf(1 - tail, wrong + 1, judged - wrong)) if wrong < judged else 1.0
    return Interval(share, low, high)


def _wrong(stratum: Stratum) -> float:
    """Estimated number of wrong pairs."""
    return stratum.pairs * stratum.wrong / stratum.judged if stratum.judged else 0.0


def _drawn(stratum: Stratum, rng: np.random.Generator) -> np.ndarray:
    """Possible numbers of wrong pairs, given the sample. (draws,)"""
    if stratum.judged == stratum.pairs:
        return np.full(_DRAWS, float(stratum.wrong))
    left = stratum.pairs - stratum.judged
    return stratum.wrong + left * rng.beta(stratum.wrong + 0.5, stratum.right + 0.5, _DRAWS)


def _interval(value: float, draws: np.ndarray, level: float) -> Interval:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, min(float(low), value), max(float(high), value))
