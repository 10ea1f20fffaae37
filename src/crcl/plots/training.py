"""Figures of a training by epoch."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from crcl.plots.style import BLUE, GREY, INK, STYLE, line_style, new_figure, plain_text


@matplotlib.rc_context(STYLE)
def curves(
    loss: ArrayLike,
    rsum: ArrayLike,
    learning_rate: ArrayLike,
    *,
    pieces: ArrayLike,
    best: int | None = None,
    title: str = "Training",
) -> Figure:
    """Loss, dev rSum and learning rate by epoch; `pieces` has the piece of each epoch, `best` is the epoch kept."""
    figure = new_figure(6.4, 5.6)
    places = np.arange(1, len(np.asarray(loss)) + 1)
    panels = figure.subplots(3, 1, sharex=True, height_ratios=[2, 2, 1])
    named = zip(panels, (loss, rsum, learning_rate), ("loss", "dev rSum", "learning rate"), strict=True)
    for number, (axes, values, name) in enumerate(named):
        axes.plot(places, np.asarray(values, dtype=np.float64), **line_style(number), linewidth=1.6, markersize=4)
        axes.set_ylabel(name)
        _piece_starts(axes, pieces)
    if best is not None:
        panels[1].plot(best + 1, np.asarray(rsum)[best], "*", color=INK, markersize=13, label="best, kept")
        panels[1].legend(loc="lower right")
    panels[2].set_yscale("log")
    panels[2].set_xlabel("epoch")
    panels[2].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_title(plain_text(title), parse_math=False)
    return figure


@matplotlib.rc_context(STYLE)
def ridge(
    counts: ArrayLike, *, pieces: ArrayLike, title: str = "Beliefs by epoch", most: int = 24, height: float = 1.7
) -> Figure:
    """One hill per epoch of how many pairs are believed how much, the first epoch on top; counts are (epochs, bins).

    At most so many epochs are shown, at equal distances, the last one always. A hill is as high as the square root of
    the share of pairs, so that a few pairs are seen beside many.
    """
    numbers = np.asarray(counts, dtype=np.float64)
    shown = np.unique(np.linspace(0, len(numbers) - 1, min(most, len(numbers))).round().astype(int))
    figure = new_figure(6.4, 1.4 + 0.24 * len(shown))
    axes = figure.add_subplot()
    heights = np.sqrt(numbers / np.maximum(numbers.sum(1, keepdims=True), 1))
    middles = (np.arange(numbers.shape[1]) + 0.5) / numbers.shape[1]
    for place, epoch in enumerate(shown):
        base = float(len(shown) - 1 - place)
        top = base + height * heights[epoch]
        axes.fill_between(middles, base, top, facecolor=BLUE, alpha=0.55, edgecolor="white", linewidth=0, zorder=place)
        axes.plot(middles, top, color=INK, linewidth=0.9, zorder=place)
    starts = np.asarray(pieces)
    names = [f"{epoch + 1}" + (f"  (piece {starts[epoch] + 1})" if _begins(starts, epoch) else "") for epoch in shown]
    axes.set_yticks(np.arange(len(shown))[::-1], names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(0, 1)
    axes.set_ylabel("epoch")
    axes.set_xlabel("correspondence (0 suspect, 1 match)")
    axes.set_title(plain_text(title), parse_math=False)
    return figure


@matplotlib.rc_context(STYLE)
def detected(
    auroc: ArrayLike,
    precision: ArrayLike,
    recall: ArrayLike,
    *,
    pieces: ArrayLike,
    threshold: float,
    title: str = "Mismatches detected by epoch",
) -> Figure:
    """How well low beliefs find the injected mismatches after each epoch; precision and recall below a threshold."""
    figure = new_figure(6.4, 3.8)
    axes = figure.add_subplot()
    below = f"below {threshold:g}"
    named = (("AUROC", auroc), (f"precision {below}", precision), (f"recall {below}", recall))
    for number, (name, values) in enumerate(named):
        scores = np.asarray(values, dtype=np.float64)
        axes.plot(np.arange(1, len(scores) + 1), scores, **line_style(number), linewidth=1.6, markersize=5, label=name)
    _piece_starts(axes, pieces)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(plain_text(title), parse_math=False)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), handlelength=3.5)
    return figure


def _begins(pieces: NDArray[Any], epoch: int) -> bool:
    return epoch == 0 or bool(pieces[epoch] != pieces[epoch - 1])


def _piece_starts(axes: Axes, pieces: ArrayLike) -> None:
    """A thin line before the first epoch of each further piece."""
    numbers = np.asarray(pieces)
    for epoch in range(1, len(numbers)):
        if _begins(numbers, epoch):
            axes.axvline(epoch + 0.5, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
