"""Intervals of shares and of precision, and what a threshold chosen by decoys adds to their recall."""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from crcl.auditing.scores.mixture import FAR, NEAR, Bins, rate_of

RESAMPLES = 200
_HALVES = 100  # random halves of the decoys that choose a threshold


def precision_interval(
    correspondence: np.ndarray, decoys: np.ndarray, threshold: float, *, number: int | None = None, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of the precision: each resample has its own rate, recall and number of flagged pairs.

    Args:
        correspondence: (N,) of the pairs.
        decoys: (D,) of the decoys.
        threshold: Pairs with a lower correspondence are flagged.
        number: The interval that so many decoys like these would give; as many as there are, if not given.
        seed: Seed of the resamples.
    """
    again = _Resamples.draw(correspondence, decoys, threshold, number or len(decoys), seed)
    some = again.flagged > 0
    ends = []
    for gap, share in ((NEAR, 0.025), (FAR, 0.975)):
        rate = rate_of(again.bins, again.decoys, again.pairs, gap=gap)
        precision = rate[some] * again.recall[some] / again.flagged[some]
        ends.append(float(np.quantile(np.minimum(precision, 1.0), share)))
    return ends[0], ends[1]


def share_interval(share: float, number: float) -> tuple[float, float]:
    """The 95 % interval of a share that was seen among so many (Jeffreys); it holds what was seen."""
    low, high = betaincinv(share * number + 0.5, (1 - share) * number + 0.5, (0.025, 0.975))
    return min(float(low), share), max(float(high), share)


@dataclass(frozen=True)
class _Resamples:
    """Decoys and pairs drawn again, in histograms."""

    bins: Bins
    decoys: np.ndarray
    pairs: np.ndarray
    """(samples, B + 1) counts each"""
    recall: np.ndarray
    flagged: np.ndarray
    """(samples,) shares of the decoys, and of the pairs, below the threshold"""

    @classmethod
    def draw(
        cls, correspondence: np.ndarray, decoys: np.ndarray, threshold: float, number: int, seed: int
    ) -> "_Resamples":
        """Draw so many decoys, and all pairs, with the threshold as an edge beside those of the rate."""
        bins, rng = Bins.of(decoys), np.random.default_rng(seed)
        at = np.nextafter(threshold, -np.inf)  # flagged are those below, counted are those up to an edge
        edges = np.union1d(bins.edges, at)
        below = []
        for values, times in ((decoys, number), (correspondence, len(correspondence))):
            counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
            drawn = rng.multinomial(times, counts / len(values), size=RESAMPLES)
            below.append(np.cumsum(drawn, axis=1))
        own = np.append(np.searchsorted(edges, bins.edges), len(edges))
        f0, g = (np.diff(each[:, own], axis=1, prepend=0) for each in below)
        place = np.searchsorted(edges, at)
        return cls(bins, f0, g, below[0][:, place] / number, below[1][:, place] / len(correspondence))


def too_high(correspondence: np.ndarray, decoys: np.ndarray, thresholds: np.ndarray, *, seed: int = 0) -> float:
    """By how much the recall at the threshold of the best F1 is too high in the mean, since decoys chose it.

    Random halves of the decoys choose a threshold, and the other halves tell the recall there. Twice as many decoys
    choose better, by the square root of two.

    Args:
        correspondence: (N,) of the pairs.
        decoys: (D,) of the decoys.
        thresholds: (T,) to choose from, ascending.
        seed: Seed of the halves.
    """
    rng, bins = np.random.default_rng(seed), Bins.of(decoys)
    half = rng.permuted(np.tile(np.arange(len(decoys)) % 2 == 0, (_HALVES, 1)), axis=1)
    pairs = np.tile(bins.count(correspondence), (_HALVES, 1))
    rate = rate_of(bins, np.stack([bins.count(decoys[own]) for own in half]), pairs)[:, None]
    order = np.argsort(decoys)
    below = np.searchsorted(decoys[order], thresholds)  # decoys below each threshold
    recall, other = (
        np.concatenate([np.zeros((_HALVES, 1)), np.cumsum(own[:, order], axis=1)], axis=1)[:, below]
        / own.sum(1, keepdims=True)
        for own in (half, ~half)
    )
    share = np.searchsorted(np.sort(correspondence), thresholds) / len(correspondence)
    precision = np.divide(rate * recall, share, out=np.zeros_like(recall), where=share > 0)
    chosen = np.argmax(_f1(np.minimum(precision, 1.0), recall), axis=1)[:, None]
    told, judged = (np.take_along_axis(each, chosen, axis=1) for each in (recall, other))
    return max(float((told - judged).mean()) / float(np.sqrt(2)), 0.0)


def best_place(precision: np.ndarray, recall: np.ndarray) -> int | None:
    """Where F1 is best, of precisions and recalls `(T,)`; None where it is 0 everywhere."""
    f1 = _f1(precision, recall)
    best = int(np.argmax(f1))
    return best if f1[best] > 0 else None


def _f1(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
    both = precision + recall
    return np.divide(2 * precision * recall, both, out=np.zeros_like(both), where=both > 0)
