"""How sure an audit is: known mismatches among the training pairs, and what their beliefs say of all others.

A decoy is a caption of the data with a random other image. Decoys are trained on like any pair, and nothing tells them
from the others. At the end, with F0 the distribution of their beliefs and G that of the real pairs,

    G = rate * F0 + (1 - rate) * F1,    F1: the beliefs in pairs that match

if real mismatches look like random ones. Then rate <= G(t) / F0(t) at every threshold t, and the two are equal where
only mismatches are believed in so little.
"""

from dataclasses import dataclass, replace

import numpy as np

from crcl.data.pairs import Pairs

SHARE = 0.05
"""Decoys that an audit adds, as a share of the pairs, unless told otherwise."""
LEAST = 50
"""Decoys that are drawn where the share would give fewer, though never more than a fourth of the pairs."""
FEWEST = 20
"""Decoys below which nothing is estimated."""
_STREAM = 0xDEC0  # sets the random numbers of decoys apart from others of the same seed
_LOWEST = 0.25  # share of the decoys below the lowest threshold at which the rate is read off
_CAUTION = 5.0  # standard errors that a ratio is taken to be larger than it looks, when the smallest is chosen
_POINTS = 60  # thresholds at which it is read off
_RESAMPLES = 1000
_THRESHOLDS = 200


@dataclass(frozen=True)
class Estimate:
    """How many pairs are mismatched, and how right suspicions are at each threshold: estimated, truth is not needed."""

    rate: float
    """Share of mismatched pairs."""
    low: float
    high: float
    """Its interval of 95 %."""
    decoys: np.ndarray
    """(D,) what was believed of the known mismatches in the end"""
    thresholds: np.ndarray
    """(T,) ascending; pairs believed in by less are flagged"""
    flagged: np.ndarray
    """(T,) how many real pairs are"""
    precision: np.ndarray
    """(T,) share of the flagged that are mismatched; NaN where nothing is flagged"""
    recall: np.ndarray
    """(T,) share of the mismatched that are flagged"""

    def at(self, threshold: float) -> "Flagged":
        """What is to be expected of the pairs that are believed in by less."""
        place = int(np.searchsorted(self.thresholds, threshold, side="right")) - 1
        if place < 0:
            return Flagged(threshold, 0, float("nan"), 0.0)
        return Flagged(threshold, int(self.flagged[place]), float(self.precision[place]), float(self.recall[place]))

    def balanced(self) -> float:
        """The threshold with the best F1 of estimated precision and recall."""
        f1 = 2 * self.precision * self.recall / (self.precision + self.recall)
        return float(self.thresholds[int(np.nanargmax(np.where(self.recall > 0, f1, 0)))])

    def precise(self, precision: float) -> float | None:
        """The highest threshold at which so large a share of the flagged is mismatched; None where there is none."""
        enough = np.flatnonzero(self.precision >= precision)
        return float(self.thresholds[enough[-1]]) if len(enough) else None


@dataclass(frozen=True)
class Flagged:
    """The pairs below a threshold."""

    threshold: float
    count: int
    precision: float
    recall: float


def draw(pairs: Pairs, share: float, seed: int) -> np.ndarray:
    """Captions without repetition, each with a random image that it is not shown with. (decoys, 2) int64"""
    rng = np.random.default_rng([_STREAM, seed])
    count = max(round(share * len(pairs)), min(LEAST, len(pairs) // 4), 1)
    captions = np.sort(rng.permutation(len(pairs))[:count])
    shift = rng.integers(1, pairs.images, size=count)
    return np.stack([captions, (pairs.image_index[captions] + shift) % pairs.images], axis=1)


def add(pairs: Pairs, drawn: np.ndarray) -> Pairs:
    """The pairs with these decoys behind them."""
    captions, images = drawn.T
    rows = np.arange(len(pairs)) if pairs.caption_rows is None else pairs.caption_rows
    return replace(
        pairs,
        captions=[*pairs.captions, *(pairs.captions[int(number)] for number in captions)],
        image_index=np.concatenate([pairs.image_index, images]),
        truth=None if pairs.truth is None else np.concatenate([pairs.truth, np.zeros(len(drawn), dtype=bool)]),
        caption_rows=np.concatenate([rows, rows[captions]]),
    )


def estimate(beliefs: np.ndarray, decoys: np.ndarray, *, seed: int = 0) -> Estimate:
    """What the beliefs in the decoys `(D,)` say of the pairs `(N,)`.

    The rate is G(t) / F0(t) at that t where it is surely small: where the ratio and five of its standard errors are
    least, among thresholds with a fourth of the decoys below them or more. The very smallest ratio would be one that
    chance made small. The interval is that of a bootstrap over pairs and decoys.
    """
    below = np.unique(np.quantile(decoys, np.linspace(_LOWEST, 1, _POINTS)))
    f0, g = (_counts(values, below) for values in (decoys, beliefs))
    rng = np.random.default_rng(seed)
    again = _rate(
        rng.multinomial(len(decoys), f0 / len(decoys), size=_RESAMPLES),
        rng.multinomial(len(beliefs), g / len(beliefs), size=_RESAMPLES),
    )
    rate = float(_rate(f0[None], g[None])[0])
    low, high = np.quantile(again, [0.025, 0.975])
    quantiles = np.quantile(beliefs, np.linspace(0, 1, _THRESHOLDS))
    thresholds = np.unique([*(float(f"{value:.3g}") for value in quantiles), 1.0])  # numbers that one can type
    flagged = np.searchsorted(np.sort(beliefs), thresholds)
    recall = np.searchsorted(np.sort(decoys), thresholds) / len(decoys)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.minimum(rate * recall / (flagged / len(beliefs)), 1.0)
    return Estimate(rate, min(float(low), rate), max(float(high), rate), decoys, thresholds, flagged, precision, recall)


def _counts(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """How many values are up to each edge and above the one before, and how many above all. (edges + 1,)"""
    return np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)


def _rate(f0: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The rate from counts of decoys and of pairs, (samples, bins) -> (samples,)."""
    decoys, pairs = f0.sum(1, keepdims=True), g.sum(1, keepdims=True)
    below0, below = np.cumsum(f0, 1)[:, :-1] / decoys, np.cumsum(g, 1)[:, :-1] / pairs
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = below / below0
        variance = below * (1 - below) / pairs + ratio**2 * below0 * (1 - below0) / decoys
        caution = np.where(below0 > 0, ratio + _CAUTION * np.sqrt(variance) / below0, np.inf)
    best = np.argmin(caution, axis=1)[:, None]
    return np.minimum(np.take_along_axis(ratio, best, 1)[:, 0], 1.0)
