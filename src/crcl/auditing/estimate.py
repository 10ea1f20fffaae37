"""How sure an audit is: rate, precision and recall, estimated from the correspondences of decoys.

A decoy is a caption of the data with a random other image. Training treats decoys like any other pair. Let F0 be the
distribution of their correspondences after training, and G that of the real pairs. If real mismatches look like random
ones,

    G = rate * F0 + (1 - rate) * F1,    F1: the distribution for pairs that match

`mixture` estimates the rate. Recall at a threshold t is F0(t), and precision rate * F0(t) / G(t).
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import betaincinv

from crcl.auditing.review.verified import Verified
from crcl.auditing.scores.mixture import FAR, NEAR, Bins, rate_of
from crcl.auditing.scores.resampling import RESAMPLES, best_place, precision_interval, share_interval, too_high

FEWEST = 20
"""The smallest number of decoys for an estimate."""
_MOST_DECOYS, _SEEN = 0.9, 0.7  # the share of decoys that matching pairs should be above, and how many of them should
_NEARLY_ALL = 0.85  # a higher rate is what a score that sees nothing would tell too
_DISTINGUISHABLE = 0.55  # AUROC of decoys against pairs
_THRESHOLDS = 200  # candidates, each flagging half a percent of the pairs more than the one before
_PLAIN = (0.001, 0.01, 0.1, 0.5)  # candidates too: where hardly a pair lies between, quantiles are all at the ends
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
    known: Verified | None = None
    """Pairs of which people said whether they match; None: there are none."""

    @property
    def doubtful(self) -> bool:
        """Whether most pairs lie among the decoys, so that the rate may be anything from 0 to the estimate.

        If the estimate is right, 1 - rate of the pairs match, and a score that sees this ranks nearly all of these
        above nine of ten decoys. Where it ranks clearly fewer there, the score does not tell what matches.
        """
        return _doubtful(self.correspondence, self.decoys, self.rate)

    def at(self, threshold: float) -> "Flagged":
        """The pairs below a threshold: how many they are, with estimated precision and recall.

        The recall is the share of the decoys below it. Where the threshold is that of the best F1, the decoys chose it
        themselves, which makes their share too high: it is less by what halves of them find it to be too high.
        """
        count, recall = int((self.correspondence < threshold).sum()), self._recall(threshold)
        if self.known is not None:
            split = self.known.split(threshold, count, self.rate * len(self.correspondence), recall)
            return Flagged(threshold, split.flagged, split.precision, split.recall)
        precision = _precision(self.rate, np.array([recall]), np.array([count]), len(self.correspondence))
        return Flagged(threshold, count, float(precision[0]), recall)

    def _recall(self, threshold: float) -> float:
        """The share of the decoys below a threshold, less what is too much of it if they chose the threshold."""
        share = float((self.decoys < threshold).mean())
        return max(share - self._too_high, 0.0) if 0 < threshold == self.best_f1() else share

    @cached_property
    def _too_high(self) -> float:
        return too_high(self.correspondence, self.decoys, self.thresholds)

    def precision_interval(self, threshold: float) -> tuple[float, float] | None:
        """The 95 % bootstrap interval of the precision at a threshold; None where nothing is flagged."""
        count = int((self.correspondence < threshold).sum())
        if self.known is not None:
            return self._known_interval(threshold, count)
        if not count:
            return None
        low, high = precision_interval(self.correspondence, self.decoys, threshold)
        told = self.at(threshold).precision
        return 0.0 if self.doubtful else min(low, told), max(high, told)

    def _known_interval(self, threshold: float, count: int) -> tuple[float, float] | None:
        """The interval of the precision where some pairs are known: that of the others, and what is known as it is."""
        assert self.known is not None
        bounds = (0.0, 0.0)
        if count:
            low, high = precision_interval(self.correspondence, self.decoys, threshold)
            bounds = (0.0 if self.doubtful else low, high)
        low, high = (self.known.split(threshold, count, bound * count, 1.0).precision for bound in bounds)
        told = self.at(threshold).precision
        return None if np.isnan(low) else (min(low, told), max(high, told))

    def recall_interval(self, threshold: float) -> tuple[float, float]:
        """The 95 % interval of the recall at a threshold.

        Decoys and mismatched pairs are both samples, so the interval is that of a binomial share (Jeffreys) of as many
        as both are worth together. Where the threshold is that of the best F1, the interval is wider by twice of what
        the recall was lessened by: it ends where that of the decoys as they are would end.
        """
        mismatched = max(self.rate * len(self.correspondence), 1.0)
        worth = 1 / (1 / len(self.decoys) + 1 / mismatched)
        raw, recall = float((self.decoys < threshold).mean()), self._recall(threshold)
        low, high = share_interval(recall, worth)[0], share_interval(raw, worth)[1]
        low = max(low - (raw - recall), 0.0)
        if self.known is not None:
            count, total = int((self.correspondence < threshold).sum()), self.rate * len(self.correspondence)
            low, high = (self.known.split(threshold, count, total, one).recall for one in (low, high))
        return low, high

    def best_f1(self) -> float:
        """The threshold with the best estimated F1; 0, which flags nothing, where F1 is 0 everywhere."""
        place = best_place(self.precision, self.recall)
        return 0.0 if place is None else float(self.thresholds[place])

    def at_precision(self, precision: float) -> float | None:
        """The highest threshold with at least this estimated precision; None where there is none."""
        enough = np.flatnonzero(self.precision >= precision)
        return float(self.thresholds[enough[-1]]) if len(enough) else None

    def kept(self) -> "Kept":
        """What is kept at each threshold, and how much of it is still mismatched."""
        pairs = len(self.correspondence)
        left = pairs - self.flagged
        wrong = np.minimum(self.rate * pairs * (1 - self.recall), left)
        if self.known is not None:
            wrong = np.array([self._missed(threshold) for threshold in self.thresholds])
        still = np.divide(wrong, left, out=np.zeros(len(left)), where=left > 0)
        return Kept(self.thresholds, left / pairs, still)

    def kept_at(self, threshold: float) -> tuple[float, float]:
        """The share of the pairs that is kept at a threshold, and the share of these that is still mismatched."""
        at, pairs = self.at(threshold), len(self.correspondence)
        left = pairs - at.count
        wrong = min(self.rate * pairs * (1 - at.recall), left)
        if self.known is not None:
            wrong = self._missed(threshold)
        return left / pairs, wrong / left if left else 0.0

    def _missed(self, threshold: float) -> float:
        """Estimated number of mismatched pairs that are kept at a threshold, where some pairs are known."""
        assert self.known is not None
        count, recall = int((self.correspondence < threshold).sum()), self._recall(threshold)
        return self.known.split(threshold, count, self.rate * len(self.correspondence), recall).missed

    def with_known(self, wrong: np.ndarray, right: np.ndarray) -> "Estimate":
        """The estimate where it is known of some pairs whether they match; both are bool `(N,)`.

        Those that are wrong count as flagged and those that are right never, at any threshold. The rate is that of the
        decoys, within what is possible.
        """
        known, pairs = Verified(self.correspondence[wrong], self.correspondence[right], len(wrong)), len(wrong)
        least, most = wrong.sum() / pairs, 1 - right.sum() / pairs
        rate, low, high = (float(np.clip(value, least, most)) for value in (self.rate, self.low, self.high))
        below = [int((self.correspondence < threshold).sum()) for threshold in self.thresholds]
        recalls = np.searchsorted(np.sort(self.decoys), self.thresholds) / len(self.decoys)
        each = zip(self.thresholds.tolist(), below, recalls.tolist(), strict=True)
        splits = [known.split(threshold, count, rate * pairs, recall) for threshold, count, recall in each]
        return replace(
            self,
            rate=rate,
            low=low,
            high=high,
            flagged=np.array([split.flagged for split in splits]),
            precision=np.array([split.precision for split in splits]),
            recall=np.array([split.recall for split in splits]),
            known=known,
        )

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

    The rate is that of a mixture of decoys and of distributions above them (`mixture`). The interval is from a
    bootstrap over pairs and decoys; its lower end supposes that matching pairs may come nearer to the decoys, its
    upper end that they are farther away. It begins at 0 where the estimate is doubtful.
    """
    bins, pairs = Bins.of(decoys), len(correspondence)
    f0, g = bins.count(decoys), bins.count(correspondence)
    rate = rate_of(bins, f0[None], g[None])[0]
    rng = np.random.default_rng(seed)
    again = (
        rng.multinomial(len(decoys), f0 / len(decoys), size=RESAMPLES),
        rng.multinomial(pairs, g / pairs, size=RESAMPLES),
    )
    low, high = np.quantile(rate_of(bins, *again, gap=NEAR), 0.025), np.quantile(rate_of(bins, *again, gap=FAR), 0.975)
    # a bootstrap never draws what was not seen, so the bound includes that of a binomial proportion
    high = max(high, rate, betaincinv(rate * pairs + 1, max(pairs - rate * pairs, 1), 0.975))
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
    values = np.quantile(correspondence, shares)
    return np.unique([*(float(f"{value:.3g}") for value in values), *_PLAIN, 1.0])


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
