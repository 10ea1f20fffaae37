"""Correspondences of pairs, and how well a threshold on them finds the mismatches."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from crcl.plots.style import BLUE, INK, ORANGE, PURPLE, STYLE, new_figure, plain_text, write_title

BINS = 40

Group = tuple[str, NDArray[np.float64], str, str]
"""Name, values, colour and hatching of a histogram."""


@matplotlib.rc_context(STYLE)
def beliefs(
    correspondence: ArrayLike,
    truth: ArrayLike | None = None,
    *,
    threshold: float | None = None,
    auroc: float | None = None,
    decoys: ArrayLike | None = None,
    expected: float | None = None,
    title: str = "Beliefs of the training pairs",
    size: tuple[float, float] = (6.0, 3.6),
) -> Figure:
    """Histograms of the correspondences (N,) of matched and of mismatched pairs; of all where truth is unknown.

    `decoys` (D,) are the correspondences of known mismatches, drawn as an outline, scaled to `expected` pairs if given.
    """
    figure = new_figure(*size)
    axes = figure.add_subplot()
    outline = None if decoys is None else np.asarray(decoys, dtype=np.float64)
    weight = 1.0 if expected is None or outline is None or not len(outline) else expected / len(outline)
    draw_beliefs(
        axes, correspondence, truth, threshold=threshold, auroc=auroc, title=title, decoys=outline, weight=weight
    )
    return figure


@matplotlib.rc_context(STYLE)
def precision_recall(
    thresholds: ArrayLike,
    precision: ArrayLike,
    recall: ArrayLike,
    *,
    true_precision: ArrayLike | None = None,
    true_recall: ArrayLike | None = None,
    threshold: float | None = None,
    label: str = "estimated",
    size: tuple[float, float] = (6.0, 3.6),
) -> Figure:
    """Precision and recall of what is flagged against the threshold, (T,) each; thin lines are the true ones."""
    figure = new_figure(*size)
    axes = figure.add_subplot()
    lines: list[tuple[str, ArrayLike | None, str, Any, float]] = [
        (f"precision, {label}", precision, BLUE, "-", 2.0),
        (f"recall, {label}", recall, ORANGE, (0, (5, 2)), 2.0),
        ("precision, true", true_precision, BLUE, (0, (1, 1)), 1.2),
        ("recall, true", true_recall, ORANGE, (0, (5, 1.5, 1, 1.5)), 1.0),
    ]
    for name, values, colour, dash, width in lines:
        if values is not None:
            share = 100 * np.asarray(values, dtype=np.float64)
            axes.plot(thresholds, share, color=colour, linestyle=dash, linewidth=width, label=name)
    if threshold is not None:
        _mark_threshold(axes, threshold)
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-2, 102)
    axes.set_yticks(range(0, 101, 25), [f"{share} %" for share in range(0, 101, 25)])
    axes.set_xlabel("threshold (pairs below it are flagged)")
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=8, borderaxespad=0.4, borderpad=0)
    return figure


@matplotlib.rc_context(STYLE)
def tradeoff(
    kept: ArrayLike,
    wrong: ArrayLike,
    *,
    true_wrong: ArrayLike | None = None,
    at: tuple[float, float] | None = None,
    threshold: float | None = None,
    size: tuple[float, float] = (6.0, 3.6),
) -> Figure:
    """The share of wrong pairs among the kept against the share that is kept, (T,) each; a thin line is the true one.

    `at` is the point of the chosen threshold, which is marked.
    """
    figure = new_figure(*size)
    axes = figure.add_subplot()
    share, estimated = 100 * np.asarray(kept, dtype=np.float64), 100 * np.asarray(wrong, dtype=np.float64)
    axes.plot(share, estimated, color=ORANGE, linewidth=2.0, label="wrong, estimated")
    highest = estimated.max(initial=1.0)
    if true_wrong is not None:
        true = 100 * np.asarray(true_wrong, dtype=np.float64)
        axes.plot(share, true, color=ORANGE, linestyle=(0, (1, 1)), linewidth=1.2, label="wrong, true")
        highest = max(highest, true.max(initial=1.0))
    if at is not None:
        label = "chosen" if threshold is None else f"threshold {threshold:.3g}"
        axes.plot(100 * at[0], 100 * at[1], "o", color=INK, markersize=7, label=label)
        axes.axvline(100 * at[0], color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(-1, 101)
    axes.set_ylim(0, 1.08 * highest)
    axes.xaxis.set_major_formatter("{x:g} %")
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("share of the pairs that is kept")
    axes.set_ylabel("wrong among the kept")
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=8, borderaxespad=0.4, borderpad=0)
    return figure


@matplotlib.rc_context(STYLE)
def distributions(
    panels: Sequence[tuple[str, ArrayLike]],
    truths: Sequence[ArrayLike],
    *,
    ranges: Sequence[tuple[float, float]] | None = None,
    columns: int = 2,
    title: str = "",
) -> Figure:
    """Histograms of values (N,) of matched and mismatched pairs, a panel for each, in rows of `columns`.

    `ranges` has the ends of each panel's axis, so that panels of one kind can be compared; else they are the values'.
    """
    lines = max(1, -(-len(panels) // columns))
    figure = new_figure(4.2 * columns, 2.9 * lines + 0.3)
    for number, ((name, values), truth) in enumerate(zip(panels, truths, strict=True)):
        axes = figure.add_subplot(lines, columns, number + 1)
        shown, matches = np.asarray(values, dtype=np.float64), np.asarray(truth, dtype=bool)
        edges = np.histogram_bin_edges(shown, BINS, None if ranges is None else ranges[number])
        counts = _histograms(axes, edges, _matched_and_not(shown, matches))
        margin = 0.01 * (edges[-1] - edges[0])
        axes.set_xlim(edges[0] - margin, edges[-1] + margin)
        _scale(axes, counts)
        axes.set_title(plain_text(name), parse_math=False)
        axes.legend(fontsize=8)
    write_title(figure, title)
    return figure


def draw_beliefs(
    axes: Axes,
    correspondence: ArrayLike,
    truth: ArrayLike | None,
    *,
    threshold: float | None,
    auroc: float | None,
    title: str,
    decoys: NDArray[np.float64] | None = None,
    weight: float = 1.0,
) -> None:
    values = np.clip(np.asarray(correspondence, dtype=np.float64), 0, 1)
    edges = np.linspace(0, 1, BINS + 1)
    groups: list[Group] = [("pairs", values, BLUE, "")]
    if truth is not None:
        groups = _matched_and_not(values, np.asarray(truth, dtype=bool))
    counts = _histograms(axes, edges, groups)
    if decoys is not None:
        count = weight * np.histogram(np.clip(decoys, 0, 1), edges)[0]
        label = f"decoys ({len(decoys):,}{'' if weight == 1 else ', scaled'})"
        axes.stairs(_filled(count), edges, color=PURPLE, linewidth=1.8, label=label)
    axes.set_xlim(-0.01, 1.01)
    axes.set_xlabel("correspondence (0 suspect, 1 match)")
    _scale(axes, counts)
    if threshold is not None:
        _mark_threshold(axes, threshold)
    heading = plain_text(title) + ("" if auroc is None else f"  ·  AUROC {auroc:.3f}")
    if heading:
        axes.set_title(heading, parse_math=False, pad=26)
    # between the title and the bars, which may be high anywhere
    columns = 3 if decoys is None else 2
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, fontsize=8, borderaxespad=0.4, borderpad=0)


def _matched_and_not(values: NDArray[np.float64], matches: NDArray[np.bool_]) -> list[Group]:
    return [("matched", values[matches], BLUE, ""), ("mismatched", values[~matches], ORANGE, "////")]


def _histograms(axes: Axes, edges: NDArray[np.float64], groups: Sequence[Group]) -> NDArray[np.int64]:
    """Draw each group with its colour and hatching; returns all counts."""
    counts = []
    for name, group, colour, hatch in groups:
        count, _ = np.histogram(group, edges)
        counts.append(count)
        label = f"{name} ({len(group):,})"
        axes.stairs(count, edges, fill=True, facecolor=colour, alpha=0.35, label=None if hatch else label)
        if hatch:  # on its own: within one shape SVG makes lines and area equally transparent, and the lines vanish
            axes.stairs(count, edges, fill=True, facecolor="none", hatch=hatch, edgecolor=colour, label=label)
        axes.stairs(_filled(count), edges, color=colour, linewidth=1.2)
    axes.set_ylabel("pairs")
    return np.concatenate(counts)


def _filled(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Counts with NaN for empty bins, so that no outline runs along zero."""
    return np.where(counts > 0, counts, np.nan)


def _mark_threshold(axes: Axes, threshold: float) -> None:
    axes.axvline(threshold, color=INK, linewidth=1, linestyle=(0, (4, 3)), label=f"threshold {threshold:.3g}")


def _scale(axes: Axes, counts: NDArray[Any]) -> None:
    """A logarithmic axis of counts where a few bins hold nearly all of the pairs."""
    filled = counts[counts > 0]
    if len(filled) and filled.max() > 30 * np.median(filled):
        axes.set_yscale("log")
        axes.set_ylim(0.7, 2 * filled.max())
        axes.set_ylabel("pairs (log scale)")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
