"""How sure an audit is: known mismatches among the training pairs, and what their beliefs say of all others.

A decoy is a caption of the data with a random other image. Decoys are trained on like any pair, and nothing tells them
from the others. At the end, with F0 the distribution of their beliefs and G that of the real pairs,

    G = rate * F0 + (1 - rate) * F1,    F1: the beliefs in pairs that match

if real mismatches look like random ones. Then rate <= G(t) / F0(t) at every threshold t, and the two are equal where
only mismatches are believed in so little.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

FEWEST = 20
"""Decoys below which nothing is estimated."""
_LOWEST, _USUAL = 0.25, 0.6  # shares of the decoys below the lowest threshold at which the rate is read off
_CAUTION = 3.0  # standard errors that a ratio is taken to be larger than it looks, when the smallest is chosen
_SURELY = 4.0  # standard errors by which a ratio below the usual thresholds must be smaller to be preferred
_POINTS = 60  # thresholds at which it is read off
_RESAMPLES = 1000
_TOLD_APART = 0.55  # AUROC of decoys against pairs
_THRESHOLDS = 200  # to choose from, each flagging half a percent of the pairs more than the one before
_RARE = 0.05  # share of flagged pairs below which they are closer to each other, so that few mismatches are met too


@dataclass(frozen=True)
class Estimate:
    """How many pairs are mismatched, and how right suspicions are at each threshold: estimated, truth is not needed."""

    rate: float
    """Share of mismatched pairs."""
    low: float
    high: float
    """Its interval of 95 %."""
    beliefs: np.ndarray
    """(N,) what was believed of the pairs in the end"""
    decoys: np.ndarray
    """(D,) and of the known mismatches"""
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
        count, recall = int((self.beliefs < threshold).sum()), float((self.decoys < threshold).mean())
        precision = _precision(self.rate, np.array([recall]), np.array([count]), len(self.beliefs))
        return Flagged(threshold, count, float(precision[0]), recall)

    def precision_interval(self, threshold: float) -> tuple[float, float] | None:
        """95 % of a bootstrap over pairs and decoys; None where nothing is flagged."""
        if not (self.beliefs < threshold).any():
            return None
        return _precision_interval(self.beliefs, self.decoys, threshold)

    def balanced(self) -> float:
        """The threshold with the best F1 of estimated precision and recall; 0, which flags none, if none has any."""
        both = self.precision + self.recall
        f1 = np.divide(2 * self.precision * self.recall, both, out=np.zeros_like(both), where=both > 0)
        best = int(np.argmax(f1))
        return float(self.thresholds[best]) if f1[best] > 0 else 0.0

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


def estimate(beliefs: np.ndarray, decoys: np.ndarray, *, seed: int = 0) -> Estimate:
    """What the beliefs in the decoys `(D,)` say of the pairs `(N,)`.

    The rate is G(t) / F0(t) at that t where it is surely small: where the ratio and three of its standard errors are
    least, among thresholds with six of ten decoys below them. The very smallest ratio would be one that chance made
    small. Lower thresholds, with a fourth of the decoys below them or more, are more at the mercy of chance; they are
    taken where the ratio is smaller there by four standard errors, since then pairs that match are among those above.
    The interval is that of a bootstrap over pairs and decoys.
    """
    below = _read_off(decoys)
    f0, g = (_counts(values, below) for values in (decoys, beliefs))
    rng = np.random.default_rng(seed)
    again, _ = _rate(
        rng.multinomial(len(decoys), f0 / len(decoys), size=_RESAMPLES),
        rng.multinomial(len(beliefs), g / len(beliefs), size=_RESAMPLES),
    )
    (rate,), (place,) = _rate(f0[None], g[None])
    low, high = np.quantile(again, [0.025, 0.975])
    # where no pair is seen below t, none is drawn again either: at the least there may be as many as are often unseen
    seen, known = g[: place + 1].sum(), f0[: place + 1].sum() / len(decoys)
    high = max(high, min(betaincinv(seen + 1, max(len(beliefs) - seen, 1), 0.975) / known, 1.0))
    thresholds = _thresholds(beliefs)
    flagged = np.searchsorted(np.sort(beliefs), thresholds)
    recall = np.searchsorted(np.sort(decoys), thresholds) / len(decoys)
    return Estimate(
        rate=float(rate),
        low=min(float(low), float(rate)),
        high=float(high),
        beliefs=beliefs,
        decoys=decoys,
        thresholds=thresholds,
        flagged=flagged,
        precision=_precision(float(rate), recall, flagged, len(beliefs)),
        recall=recall,
    )


def _thresholds(beliefs: np.ndarray) -> np.ndarray:
    """Between which to choose: numbers that one can type. (T,) ascending"""
    shares = np.linspace(0, 1, _THRESHOLDS)
    if len(beliefs) > _THRESHOLDS:
        shares = np.union1d(shares, np.geomspace(1 / len(beliefs), _RARE, _THRESHOLDS))
    return np.unique([*(float(f"{value:.3g}") for value in np.quantile(beliefs, shares)), 1.0])


def _precision(rate: float, recall: np.ndarray, flagged: np.ndarray, pairs: int) -> np.ndarray:
    """Share of the flagged that are mismatched; NaN where nothing is flagged. (T,)"""
    share = np.divide(rate * recall * pairs, flagged, out=np.full(len(flagged), np.nan), where=flagged > 0)
    return np.minimum(share, 1.0)


def told_apart(beliefs: np.ndarray, decoys: np.ndarray) -> bool:
    """Whether decoys are believed less than pairs, by more than a little and than chance; else nothing can be said."""
    from sklearn.metrics import roc_auc_score  # loads slowly: not for every command

    labels = np.concatenate([np.ones(len(beliefs), dtype=bool), np.zeros(len(decoys), dtype=bool)])
    by_chance = np.sqrt((len(labels) + 1) / (12 * len(beliefs) * len(decoys)))  # deviation of an AUROC of nothing
    auroc = roc_auc_score(labels, np.concatenate([beliefs, decoys]))
    return bool(auroc > max(_TOLD_APART, 0.5 + 2.5 * by_chance))


def _read_off(decoys: np.ndarray) -> np.ndarray:
    """Thresholds at which the rate may be read off."""
    return np.unique(np.quantile(decoys, np.linspace(_LOWEST, 1, _POINTS)))


def _precision_interval(
    beliefs: np.ndarray, decoys: np.ndarray, threshold: float, *, seed: int = 0
) -> tuple[float, float]:
    """As the interval of the rate is found: rate, recall and flagged of each resample make its precision."""
    below = _read_off(decoys)
    at = np.nextafter(threshold, -np.inf)  # flagged are those below, counted are those up to an edge
    edges = np.union1d(below, at)
    place = int(np.searchsorted(edges, at))
    rng = np.random.default_rng(seed)
    counts = (_counts(values, edges) for values in (decoys, beliefs))
    f0, g = (np.cumsum(rng.multinomial(each.sum(), each / each.sum(), size=_RESAMPLES), axis=1) for each in counts)
    recall, flagged = f0[:, place] / len(decoys), g[:, place] / len(beliefs)
    if at not in below:
        f0, g = (np.delete(each, place, axis=1) for each in (f0, g))
    rate, _ = _rate(*(np.diff(each, axis=1, prepend=0) for each in (f0, g)))
    some = flagged > 0
    low, high = np.quantile(np.minimum(rate[some] * recall[some] / flagged[some], 1.0), [0.025, 0.975])
    return float(low), float(high)


def _counts(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """How many values are up to each edge and above the one before, and how many above all. (edges + 1,)"""
    return np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)


def _rate(f0: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rate from counts of decoys and of pairs, (samples, bins), and the bin at whose end it is read off. (samples,)

    Standard errors are those of counts with one more of either kind: none seen is not none.
    """
    decoys, pairs = f0.sum(1, keepdims=True), g.sum(1, keepdims=True)
    below0, below = np.cumsum(f0, 1)[:, :-1] / decoys, np.cumsum(g, 1)[:, :-1] / pairs
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = below / below0
        safe = (below * pairs + 1) / (pairs + 2)
        error = np.sqrt(safe * (1 - safe) / pairs + ratio**2 * below0 * (1 - below0) / decoys) / below0
        caution = np.where(below0 > 0, ratio + _CAUTION * error, np.inf)
    each = np.arange(len(ratio))
    usual = below0 >= _USUAL
    best = np.argmin(np.where(usual, caution, np.inf), axis=1)
    gap = ratio[each, best, None] - ratio
    # what is below a lower threshold is below a higher one too, so the difference varies by what the lower one adds
    by_chance = np.sqrt(np.maximum(error**2 - error[each, best, None] ** 2, 0))
    lower = ~usual & (gap > _SURELY * by_chance)
    best = np.where(lower.any(1), np.argmin(np.where(lower, caution, np.inf), axis=1), best)
    return np.minimum(ratio[each, best], 1.0), best
