"""The share of mismatches among pairs, from histograms of decoys and pairs: a mixture fitted by maximum likelihood.

Let z be a correspondence on the scale on which decoys are a standard normal distribution: that of the u-th quantile of
the decoys is the u-th quantile of the normal one. Real mismatches are taken to look like decoys, and pairs that match
to be normal distributions above them, as many as are needed: of deviation 1 and means of `gap` or more,

    g(z) = rate * f0(z) + Σ_k w_k normal(z - m_k),    m_k = gap ... 6,    weights w_k of 0 or more

f0 is the histogram of the decoys as it is. Far below, the share of pairs that match vanishes, as each m_k is above 0:
so the rate is extrapolated to where only mismatches lie, even if pairs that match lie among the decoys everywhere else.
How near they may come is not told by the data: with a smaller gap more pairs count as matching, and the rate is lower.
Where nearly all matching pairs are above nearly all decoys, the gap does not matter.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

GAP, NEAR, FAR = 1.5, 1.0, 2.0
"""Least mean of matching pairs above the decoys, in deviations of these: as a rule, and at both ends of an interval."""
_LOWEST, _HIGHEST, _BINS = -2.2, 1.5, 24  # edges of the histograms, on the scale of z
_FARTHEST, _PARTS = 6.0, 12  # the highest m_k, and their number
_ROUNDS = 300
_CAUTION, _ENOUGH = 3.0, 0.25  # standard errors that the rate may be above a bound, and the decoys that bounds need
_FIRST = 2.0  # each m_k begins with so many times the weight of the one before: where the data do not tell, it is far


@dataclass(frozen=True)
class Bins:
    """Edges of histograms."""

    edges: np.ndarray
    """(B,) correspondences, ascending"""
    places: np.ndarray
    """(B,) z of each"""

    @classmethod
    def of(cls, decoys: np.ndarray) -> "Bins":
        """Bins at quantiles of the decoys; fewer where decoys are few, or alike."""
        shares = ndtr(np.linspace(_LOWEST, _HIGHEST, _BINS))
        few = 2 / len(decoys)
        edges = np.unique(np.quantile(decoys, shares[(shares > few) & (shares < 1 - few)]))
        below = np.searchsorted(np.sort(decoys), edges, side="right") / len(decoys)
        # where many are alike, the share below an edge may be that of a far higher quantile, or all of them
        return cls(edges, np.clip(ndtri(below), -np.inf, _HIGHEST))

    def count(self, values: np.ndarray) -> np.ndarray:
        """Histogram: how many values lie above each edge's predecessor and up to it, and above the last. (B + 1,)"""
        return np.bincount(np.searchsorted(self.edges, values), minlength=len(self.edges) + 1)


def mismatched_share(bins: Bins, decoys: np.ndarray, pairs: np.ndarray, *, gap: float = GAP) -> np.ndarray:
    """The rate from histograms of decoys and pairs, `(samples, B + 1)` each. (samples,)"""
    f0 = decoys / decoys.sum(1, keepdims=True)
    g = pairs / pairs.sum(1, keepdims=True)
    edges = np.concatenate([[-np.inf], bins.places, [np.inf]])
    means = np.linspace(gap, _FARTHEST, _PARTS)
    shapes = np.diff(ndtr(edges - means[:, None]), axis=1)  # (parts, B + 1)
    first = _FIRST ** np.arange(_PARTS)
    rate, weights = np.full((len(g), 1), 0.5), np.tile(first / (2 * first.sum()), (len(g), 1))
    for _ in range(_ROUNDS):  # expectation maximisation
        mixed = rate * f0 + weights @ shapes
        ratio = np.divide(g, mixed, out=np.zeros_like(g), where=mixed > 0)
        rate, weights = rate * (ratio * f0).sum(1, keepdims=True), weights * (ratio @ shapes.T)
        total = rate + weights.sum(1, keepdims=True)
        rate, weights = rate / total, weights / total
    return np.minimum(rate[:, 0], _bound(decoys, pairs))


def _bound(decoys: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The highest rate that the histograms allow: at no edge more mismatches than pairs. (samples,)

    Up to an edge there are rate * F0 mismatches and G pairs, so the rate is at most G / F0, here with three standard
    errors added, since the smallest of many ratios is small by chance too.
    """
    n0, n = decoys.sum(1, keepdims=True), pairs.sum(1, keepdims=True)
    below0, below = np.cumsum(decoys, 1)[:, :-1] / n0, np.cumsum(pairs, 1)[:, :-1] / n
    some = below0 >= _ENOUGH
    ratio = np.divide(below, below0, out=np.ones_like(below0), where=some)
    seen = (below * n + 1) / (n + 2)  # a count of zero has an error too
    variance = seen * (1 - seen) / n + ratio**2 * below0 * (1 - below0) / n0
    error = np.divide(np.sqrt(variance), below0, out=np.ones_like(below0), where=some)
    return np.minimum(ratio + _CAUTION * error, 1.0).min(1, initial=1.0)


def rate_of(bins: Bins, decoys: np.ndarray, pairs: np.ndarray, *, gap: float = GAP) -> np.ndarray:
    """The rate from histograms `(samples, B + 1)`; 0 where that is less than half a pair. (samples,)"""
    found = mismatched_share(bins, decoys, pairs, gap=gap)
    return np.where(found * pairs.sum(1) < 0.5, 0.0, found)
