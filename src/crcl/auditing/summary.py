"""What an audit found, in sentences, and the numbers in them."""

from typing import Any

import numpy as np

from crcl.auditing.estimate import Estimate
from crcl.auditing.findings import Findings
from crcl.auditing.scores.interval import Interval, bounds, percent, told
from crcl.auditing.scores.resampling import precision_interval

LOW_MEAN = 0.2
"""Mean correspondence below which a fixed threshold says little."""
WIDE, GAIN = 0.25, 0.75
"""A wider interval of the precision should be narrowed, if so much of it or less would be left."""
ENOUGH_DECOYS, MOST_DECOYS, LEARNT_FROM = 2000, 0.33, 750
"""More decoys than so many are not needed, nor a larger share of them; from how many pairs on more of them help."""


def summary(audit: Findings, estimate: Estimate | None = None, *, unsure: str = "") -> list[str]:
    """What an audit found: how many pairs are flagged, what the decoys estimate, and the truth where it is known.

    Args:
        audit: The pairs with their correspondences and the threshold.
        estimate: The estimate by decoys, if there is one.
        unsure: Why the decoys allow no estimate, where they do not.
    """
    pairs, flagged, at = len(audit.pairs), len(audit.suspects), f"{audit.threshold:g}"
    if not audit.has_correspondence:
        return [f"The run has no correspondences: its {pairs:,} pairs are ordered by similarity, and none is flagged."]
    if estimate is not None:
        precision = precision_at(estimate, audit.threshold)
        recall = recall_at(estimate, audit.threshold)
        an, most = ("At most an", "at most ") if estimate.doubtful else ("An", "")
        rate = rate_of(estimate)
        sure = f"estimated precision {'' if precision is not None and precision.vague else most}{told(precision)}, "
        sure += f"recall {told(recall)}"
        found = [
            f"{an} estimated {percent(rate, 1)} ({bounds(rate, 1)}) of {pairs:,} pairs are mismatched. At threshold "
            + (f"{at}, {flagged:,} are flagged: {sure}." if flagged else f"{at}, none is flagged.")
        ]
    elif unsure and not audit.threshold:
        found = [
            f"None of the {pairs:,} pairs is flagged: {unsure}. The pairs are ordered by correspondence; choose a "
            "threshold by looking at the pairs around it."
        ]
    else:
        found = [f"At threshold {at}, {flagged:,} of {pairs:,} pairs ({percent(flagged / pairs, 1)}) are flagged."]
    truth = true_numbers(audit)
    if truth is not None:
        wrong, right, seen = (percent(value, 1) for value in truth)
        found.append(
            f"The truth is known from injected noise: {wrong} are mismatched; precision is {right}, recall {seen}."
        )
    return found


def caveats(audit: Findings, estimate: Estimate | None = None) -> list[str]:
    """Reasons to trust the threshold less than the order of the pairs."""
    if not audit.has_correspondence or estimate is not None:
        return []
    mean = audit.correspondence.mean()
    if mean >= LOW_MEAN:
        return []
    return [
        f"The mean correspondence is {mean:.3f}, which is low: with few pairs, few epochs or many captions that say "
        "the same, correspondences stay low. Trust the order of the pairs more than the threshold, and choose one by "
        "looking at the pairs around it."
    ]


def more_decoys(estimate: Estimate, threshold: float) -> float | None:
    """The share of decoys that would narrow the interval of the precision; None where it is narrow, or would stay wide.

    That is as with so many decoys like these, pairs being the same. Decoys are wrong captions in the training too:
    among few pairs this loses what their number gains (measured on drawn scenes).
    """
    pairs, count = len(estimate.correspondence), len(estimate.decoys)
    share = min(MOST_DECOYS, round(ENOUGH_DECOYS / pairs, 2))
    now, number = precision_at(estimate, threshold), int(share * pairs)
    if now is None or estimate.known is not None or pairs < LEARNT_FROM or number < 1.5 * count:
        return None
    low, high = precision_interval(estimate.correspondence, estimate.decoys, threshold, number=number)
    width = now.high - now.low
    return share if width > WIDE and high - low < GAIN * width else None


def about_decoys(estimate: Estimate | None, threshold: float) -> list[str]:
    """That more decoys would narrow the interval of the precision, where they would; names of parameters in braces."""
    share = None if estimate is None else more_decoys(estimate, threshold)
    told = "More decoys would narrow the interval of the precision: audit again with a share of"
    return [] if share is None else [f"{told} {share:g} ({{decoys}})."]


def unread(made: dict[str, Any]) -> list[str]:
    """How many captions were cut, in a sentence; `made` is what a run knows of its features."""
    text = made.get("text")
    cut, captions, reads = (text.get(name) if isinstance(text, dict) else 0 for name in ("cut", "captions", "reads"))
    if not (type(cut) is int and type(captions) is int and 0 < cut <= captions):
        return []
    return [
        f"{cut:,} of {captions:,} captions ({percent(cut / captions, 1)}) are longer than the {reads} tokens that the "
        "text model reads: what comes after was not judged."
    ]


def rate_of(estimate: Estimate) -> Interval:
    """The estimated share of mismatched pairs with its interval."""
    return Interval(estimate.rate, estimate.low, estimate.high)


def precision_at(estimate: Estimate, threshold: float) -> Interval | None:
    """The estimated precision at a threshold with its interval; None where nothing is flagged."""
    interval = estimate.precision_interval(threshold)
    if interval is None:
        return None
    value = estimate.at(threshold).precision
    return Interval(value, float(np.fmin(interval[0], value)), float(np.fmax(interval[1], value)))


def recall_at(estimate: Estimate, threshold: float) -> Interval:
    """The estimated recall at a threshold with its interval."""
    return Interval(estimate.at(threshold).recall, *estimate.recall_interval(threshold))


def true_numbers(audit: Findings) -> tuple[float, float, float] | None:
    """Share of mismatched pairs, precision and recall at the threshold; None where the truth is not known."""
    truth = audit.pairs.truth
    if truth is None or not audit.has_correspondence:
        return None
    precision, recall = true_curves(audit.correspondence, truth, np.array([audit.threshold]))
    return float(1 - truth.mean()), float(precision[0]), float(recall[0])


def true_curves(correspondence: np.ndarray, truth: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall at each threshold, (T,) each; NaN where no pair is flagged or none is mismatched."""
    at = thresholds.astype(correspondence.dtype)
    flagged = np.searchsorted(np.sort(correspondence), at).astype(np.float64)
    found = np.searchsorted(np.sort(correspondence[~truth]), at).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return found / flagged, found / (~truth).sum()
