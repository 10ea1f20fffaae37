"""How sure an audit is: rate, precision and recall, estimated from the correspondences of decoys.

A decoy is a caption of the data with a random other image. Training treats decoys like any other pair. Let F0 be the
distribution of their correspondences after training, and G that of the real pairs. If real mismatches look like random
ones,

    G = rate * F0 + (1 - rate) * F1,    F1: the distribution for pairs that match

Then rate <= G(t) / F0(t) at every threshold t, with equality where only mismatches lie below t.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

FEWEST = 20
"""The smallest number of decoys for an estimate."""
_LOWEST, _USUAL = 0.25, 0.6  # shares of the decoys below the lowest threshold for the rate: ever, and usually
_CAUTION = 3.0  # standard errors added to each ratio before the smallest is chosen
_SURELY = 4.0  # standard errors by which a ratio at a lower threshold must be smaller to be preferred
_POINTS = 60  # thresholds at which the ratio is computed
_RESAMPLES = 1000
_MOST_DECOYS, _SEEN = 0.9, 0.7  # the share of decoys that matching pairs should be above, and how many of them should
_NEARLY_ALL = 0.85  # a higher rate is what a score that sees nothing would tell too
_DISTINGUISHABLE = 0.55  # AUROC of decoys against pairs
_THRESHOLDS = 200  # candidates, each flagging half a percent of the pairs more than the one before
_RARE = 0.05  # below this share of flagged pairs candidates are denser, for data with few mismatches


@dataclass(frozen=True)
class Estimate:
    """The share of mismatched pairs, and precision and recall at each threshold, estimated without the truth."""

    rate: float
    """Share of mismatched pairs."""
    low: float
    high: float
    """Its 95 % interval."""
    correspondence: np.ndarray
    """(N,) of the pairs"""
    decoys: np.ndarray
    """(D,) of the decoys"""
    thresholds: np.ndarray
    """(T,) ascending; pairs with a lower correspondence are flagged"""
    flagged: np.ndarray
    """(T,) number of flagged pairs, without decoys"""
    precision: np.ndarray
    """(T,) share of the flagged that are mismatched; NaN where nothing is flagged"""
    recall: np.ndarray
    """(T,) share of the mismatched that are flagged"""

    @property
    def doubtful(self) -> bool:
        """Whether most pairs lie among the decoys, so that the rate may be anything from 0 to the estimate.

        If the estimate is right, 1 - rate of the pairs match, and a score that sees this ranks nearly all of these
        above nine of ten decoys. Where it ranks clearly fewer there, the score does not tell what matches.
        """
        return _doubtful(self.correspondence, self.decoys, self.rate)

    def at(self, threshold: float) -> "Flagged":
        """The pairs below a threshold: how many they are, with estimated precision and recall."""
        count, recall = int((self.correspondence < threshold).sum()), float((self.decoys < threshold).mean())
        precision = _precision(self.rate, np.array([recall]), np.array([count]), len(self.correspondence))
        return Flagged(threshold, count, float(precision[0]), recall)

    def precision_interval(self, threshold: float) -> tuple[float, float] | None:
        """The 95 % bootstrap interval of the precision at a threshold; None where nothing is flagged."""
        if not (self.correspondence < threshold).any():
            return None
        low, high = _precision_interval(self.correspondence, self.decoys, threshold)
        return 0.0 if self.doubtful else low, high

    def best_f1(self) -> float:
        """The threshold with the best estimated F1; 0, which flags nothing, where F1 is 0 everywhere."""
        both = self.precision + self.recall
        f1 = np.divide(2 * self.precision * self.recall, both, out=np.zeros_like(both), where=both > 0)
        best = int(np.argmax(f1))
        return float(self.thresholds[best]) if f1[best] > 0 else 0.0

    def at_precision(self, precision: float) -> float | None:
        """The highest threshold with at least this estimated precision; None where there is none."""
        enough = np.flatnonzero(self.precision >= precision)
        return float(self.thresholds[enough[-1]]) if len(enough) else None

    def kept(self) -> "Kept":
        """What is kept at each threshold, and how much of it is still mismatched."""
        pairs = len(self.correspondence)
        left = pairs - self.flagged
        wrong = np.minimum(self.rate * pairs * (1 - self.recall), left)
        still = np.divide(wrong, left, out=np.zeros(len(left)), where=left > 0)
        return Kept(self.thresholds, left / pairs, still)

    def kept_at(self, threshold: float) -> tuple[float, float]:
        """The share of the pairs that is kept at a threshold, and the share of these that is still mismatched."""
        at, pairs = self.at(threshold), len(self.correspondence)
        left = pairs - at.count
        wrong = min(self.rate * pairs * (1 - at.recall), left)
        return left / pairs, wrong / left if left else 0.0

    def at_wrong(self, share: float) -> float | None:
        """The lowest threshold at which at most this share of the kept is still mismatched; None where there is none.

        A threshold that keeps nothing does not count.
        """
        kept = self.kept()
        enough = np.flatnonzero((kept.wrong <= share) & (kept.share > 0))
        return float(self.thresholds[enough[0]]) if len(enough) else None


@dataclass(frozen=True)
class Kept:
    """What cleaning keeps at each threshold."""

    thresholds: np.ndarray
    """(T,) ascending"""
    share: np.ndarray
    """(T,) of the pairs"""
    wrong: np.ndarray
    """(T,) share of the kept that is still mismatched, as estimated"""


@dataclass(frozen=True)
class Flagged:
    """The pairs below a threshold."""

    threshold: float
    count: int
    precision: float
    recall: float


def estimate(correspondence: np.ndarray, decoys: np.ndarray, *, seed: int = 0) -> Estimate:
    """The estimate from the correspondences of the pairs `(N,)` and of the decoys `(D,)`.

    The rate is G(t) / F0(t) at the threshold t that minimises the ratio plus three of its standard errors, among
    thresholds above at least 60 % of the decoys; the plain minimum would favour ratios that are small by chance. A
    lower threshold, above at least a quarter of the decoys, has larger errors. It is preferred where its ratio is
    smaller by four standard errors, because then matching pairs lie between the two. The interval is from a bootstrap
    over pairs and decoys; it begins at 0 where the estimate is doubtful.
    """
    below = _rate_thresholds(decoys)
    f0, g = (_counts(values, below) for values in (decoys, correspondence))
    rng = np.random.default_rng(seed)
    again, _ = _rate(
        rng.multinomial(len(decoys), f0 / len(decoys), size=_RESAMPLES),
        rng.multinomial(len(correspondence), g / len(correspondence), size=_RESAMPLES),
    )
    (rate,), (place,) = _rate(f0[None], g[None])
    low, high = np.quantile(again, [0.025, 0.975])
    # a bootstrap never draws pairs below t where none was seen, so the bound includes that of a binomial proportion
    seen, known = g[: place + 1].sum(), f0[: place + 1].sum() / len(decoys)
    high = max(high, min(betaincinv(seen + 1, max(len(correspondence) - seen, 1), 0.975) / known, 1.0))
    thresholds = _thresholds(correspondence)
    flagged = np.searchsorted(np.sort(correspondence), thresholds)
    recall = np.searchsorted(np.sort(decoys), thresholds) / len(decoys)
    return Estimate(
        rate=float(rate),
        low=0.0 if _doubtful(correspondence, decoys, float(rate)) else min(float(low), float(rate)),
        high=float(high),
        correspondence=correspondence,
        decoys=decoys,
        thresholds=thresholds,
        flagged=flagged,
        precision=_precision(float(rate), recall, flagged, len(correspondence)),
        recall=recall,
    )


def _doubtful(correspondence: np.ndarray, decoys: np.ndarray, rate: float) -> bool:
    above = float((correspondence > np.quantile(decoys, _MOST_DECOYS)).mean())
    matching = above - (1 - _MOST_DECOYS) * rate  # without the mismatched ones that lie as high as the highest decoys
    return rate > _NEARLY_ALL or matching < _SEEN * (1 - rate)


def _thresholds(correspondence: np.ndarray) -> np.ndarray:
    """Candidate thresholds, rounded to three digits so that users can type them. (T,) ascending"""
    shares = np.linspace(0, 1, _THRESHOLDS)
    if len(correspondence) > _THRESHOLDS:
        shares = np.union1d(shares, np.geomspace(1 / len(correspondence), _RARE, _THRESHOLDS))
    return np.unique([*(float(f"{value:.3g}") for value in np.quantile(correspondence, shares)), 1.0])


def _precision(rate: float, recall: np.ndarray, flagged: np.ndarray, pairs: int) -> np.ndarray:
    """Share of the flagged that are mismatched; NaN where nothing is flagged. (T,)"""
    share = np.divide(rate * recall * pairs, flagged, out=np.full(len(flagged), np.nan), where=flagged > 0)
    return np.minimum(share, 1.0)


def distinguishable(correspondence: np.ndarray, decoys: np.ndarray) -> bool:
    """Whether decoys have clearly lower correspondences than pairs; otherwise no estimate is possible."""
    from sklearn.metrics import roc_auc_score  # loads slowly: not for every command

    labels = np.concatenate([np.ones(len(correspondence), dtype=bool), np.zeros(len(decoys), dtype=bool)])
    by_chance = np.sqrt(
        (len(labels) + 1) / (12 * len(correspondence) * len(decoys))
    )  # standard error of a random AUROC
    auroc = roc_auc_score(labels, np.concatenate([correspondence, decoys]))
    return bool(auroc > max(_DISTINGUISHABLE, 0.5 + 2.5 * by_chance))


def _rate_thresholds(decoys: np.ndarray) -> np.ndarray:
    """Candidate thresholds for the rate."""
    return np.unique(np.quantile(decoys, np.linspace(_LOWEST, 1, _POINTS)))


def _precision_interval(
    correspondence: np.ndarray, decoys: np.ndarray, threshold: float, *, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of the precision: each resample has its own rate, recall and number of flagged pairs."""
    below = _rate_thresholds(decoys)
    at = np.nextafter(threshold, -np.inf)  # flagged are those below, counted are those up to an edge
    edges = np.union1d(below, at)
    place = int(np.searchsorted(edges, at))
    rng = np.random.default_rng(seed)
    counts = (_counts(values, edges) for values in (decoys, correspondence))
    f0, g = (np.cumsum(rng.multinomial(each.sum(), each / each.sum(), size=_RESAMPLES), axis=1) for each in counts)
    recall, flagged = f0[:, place] / len(decoys), g[:, place] / len(correspondence)
    if at not in below:
        f0, g = (np.delete(each, place, axis=1) for each in (f0, g))
    rate, _ = _rate(*(np.diff(each, axis=1, prepend=0) for each in (f0, g)))
    some = flagged > 0
    low, high = np.quantile(np.minimum(rate[some] * recall[some] / flagged[some], 1.0), [0.025, 0.975])
    return float(low), float(high)


def _counts(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Histogram: how many values lie above each edge's predecessor and up to it, and above the last. (edges + 1,)"""
    return np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)


def _rate(f0: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rate from histograms of decoys and pairs, (samples, bins), and the bin of its threshold. (samples,) each

    Standard errors add one pair of either kind, because a count of zero has an error too.
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
    # pairs below the lower threshold are below the higher one too, so only the difference of variances counts
    by_chance = np.sqrt(np.maximum(error**2 - error[each, best, None] ** 2, 0))
    lower = ~usual & (gap > _SURELY * by_chance)
    best = np.where(lower.any(1), np.argmin(np.where(lower, caution, np.inf), axis=1), best)
    return np.minimum(ratio[each, best], 1.0), best
