"""The charts of the report: correspondences, precision and recall, and how clean the kept pairs are."""

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from crcl import plots
from crcl.auditing.estimate import Estimate
from crcl.auditing.findings import Findings
from crcl.auditing.scores.interval import percent
from crcl.auditing.summary import true_curves

FEW = 20
"""Shares of fewer pairs or decoys than this are not drawn: they would be chance."""
CHART = (4.6, 2.9)
"""Size of a chart in inches; its text stays legible on a phone."""


@dataclass(frozen=True)
class Chart:
    """A figure with its heading and a sentence."""

    title: str
    text: str
    svg: Markup


def charts(audit: Findings, estimate: Estimate | None) -> list[Chart]:
    """The charts that the audit has numbers for."""
    if not audit.has_correspondence:
        return []
    text = "How many pairs have which correspondence."
    if estimate is not None:
        text += " The outline shows the decoys, scaled to the estimated number of mismatches."
    figures = [("Correspondence", text, _correspondence(audit, estimate), "correspondence")]
    curves = precision_recall(audit, estimate)
    if curves is not None:
        text = "A higher threshold flags more pairs: more of the mismatches, but also more pairs that match."
        figures.append(("Precision and recall", text, curves, "precision"))
    if estimate is not None:
        share, wrong = estimate.kept_at(audit.threshold)
        text = "The fewer pairs are kept, the fewer of them are wrong."
        if share > 0:
            text += (
                f" At this threshold {percent(share, 1)} are kept, of which an estimated {percent(wrong, 1)} are wrong."
            )
        figures.append(("What cleaning keeps", text, tradeoff(audit, estimate), "tradeoff"))
    plots.align([figure for _, _, figure, _ in figures])
    return [Chart(title, text, Markup(plots.svg(figure, name))) for title, text, figure, name in figures]


def _correspondence(audit: Findings, estimate: Estimate | None) -> Figure:
    """Histograms of the correspondences of the pairs, and of the decoys, where there are any."""
    decoys, expected = (None, None) if estimate is None else (estimate.decoys, estimate.rate * len(audit.pairs))
    return plots.beliefs(
        audit.correspondence,
        audit.pairs.truth,
        threshold=audit.threshold,
        decoys=decoys,
        expected=expected,
        title="",
        size=CHART,
    )


def precision_recall(audit: Findings, estimate: Estimate | None) -> Figure | None:
    """Precision and recall against the threshold, estimated and true; None where neither is known."""
    truth = audit.pairs.truth
    thresholds = np.linspace(0, 1, 201) if estimate is None else estimate.thresholds
    true = None if truth is None else true_curves(audit.correspondence, truth, thresholds)
    if estimate is not None:
        precision, recall, label = estimate.precision, estimate.recall, "estimated"
    elif true is not None:
        precision, recall, label, true = *true, "true", None
    else:
        return None
    flagged = np.searchsorted(np.sort(audit.correspondence), thresholds.astype(audit.correspondence.dtype))
    few = flagged < FEW if estimate is None else (flagged < FEW) | (recall * len(estimate.decoys) < FEW)
    precision = np.where(few, np.nan, precision)
    true_precision, true_recall = (None, None) if true is None else (np.where(flagged < FEW, np.nan, true[0]), true[1])
    return plots.precision_recall(
        thresholds,
        precision,
        recall,
        true_precision=true_precision,
        true_recall=true_recall,
        threshold=audit.threshold,
        label=label,
        size=CHART,
    )


def tradeoff(audit: Findings, estimate: Estimate) -> Figure:
    """The share of wrong pairs among the kept, against the share that is kept."""
    kept = estimate.kept()
    some = kept.share * len(estimate.correspondence) >= FEW
    true_wrong = None
    if audit.pairs.truth is not None:
        wrong = np.sort(audit.correspondence[~audit.pairs.truth])
        at = kept.thresholds[some].astype(wrong.dtype)
        left = len(audit.pairs) - np.searchsorted(np.sort(audit.correspondence), at)
        true_wrong = (len(wrong) - np.searchsorted(wrong, at)) / np.maximum(left, 1)
    share, wrong_share = estimate.kept_at(audit.threshold)
    return plots.tradeoff(
        kept.share[some],
        kept.wrong[some],
        true_wrong=true_wrong,
        at=(share, wrong_share) if share > 0 else None,
        threshold=audit.threshold,
        size=CHART,
    )
