"""Every figure, as a function of plain arrays that returns a matplotlib Figure."""

import io
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from crcl.errors import InputError

BLUE, ORANGE, PURPLE, GREY, INK = "#0072B2", "#D55E00", "#CC79A7", "#8A8A8A", "#222222"
"""Okabe and Ito's blue, vermilion and purple, told apart by colour-blind readers, and two neutrals."""
LINES = (BLUE, ORANGE, "#009E73", PURPLE, "#000000", "#E69F00", "#56B4E9", GREY)
"""The colours of Okabe and Ito that show on white, and grey."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (9, 2)))
DPI = 150
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "text.usetex": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
}
BINS = 40
CAPTION_LINES, CAPTION_WIDTH = 4, 30
THUMBNAIL = 320
NAME_WIDTH = 32
TITLE_LETTERS = 11  # per inch

SheetRow = tuple[str | Path | Image.Image, str, float, bool | None]
"""Image (or its file), caption, correspondence, and whether the pair really matches, where known."""
Group = tuple[str, NDArray[np.float64], str, str]
"""Name, values, colour and hatching of a histogram."""


def save(figure: Figure, path: str | Path) -> None:
    """Write a PNG, or an SVG where the name ends so; the same figure gives the same bytes."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    kind, unsaid = ("svg", "Date") if path.suffix == ".svg" else ("png", "Software")
    with warnings.catch_warnings(), matplotlib.rc_context({"savefig.bbox": "standard", "svg.hashsalt": "crcl"}):
        # captions come in all scripts; a letter that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph")
        try:
            partial.unlink(missing_ok=True)  # what stands there may be a link to another's file
            figure.savefig(partial, format=kind, dpi=DPI, metadata={unsaid: None}, facecolor="white")
            partial.replace(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
        finally:
            partial.unlink(missing_ok=True)


def svg(figure: Figure, name: str) -> str:
    """The figure as an SVG element to put into a page; the same figure gives the same text.

    Words stay words. `name` is put before all ids, so that several figures can be in one page.
    """
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "savefig.bbox": "standard"}):
        about = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=about, transparent=True)
    element = text.getvalue()
    element = element[element.index("<svg") :]
    return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", element)


def align(figures: Sequence[Figure]) -> None:
    """Give the axes of figures of one axes and one size the same place, which all of them have room for."""
    for figure in figures:
        figure.draw_without_rendering()
    places = [figure.axes[0].get_position() for figure in figures]
    left, bottom = max(place.x0 for place in places), max(place.y0 for place in places)
    right, top = min(place.x1 for place in places), min(place.y1 for place in places)
    for figure in figures:
        figure.set_layout_engine("none")
        figure.axes[0].set_position((left, bottom, right - left, top - bottom))


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

    `decoys` (D,) are the correspondences of known mismatches, drawn as an outline; with `expected` as that of so many.
    """
    figure = _figure(*size)
    axes = figure.add_subplot()
    outline = None if decoys is None else np.asarray(decoys, dtype=np.float64)
    weight = 1.0 if expected is None or outline is None or not len(outline) else expected / len(outline)
    _beliefs(axes, correspondence, truth, threshold=threshold, auroc=auroc, title=title, decoys=outline, weight=weight)
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
    figure = _figure(*size)
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
    axes.set_xlabel("threshold: pairs believed in by less are flagged")
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=8, borderaxespad=0.4, borderpad=0)
    return figure


@matplotlib.rc_context(STYLE)
def comparison(
    names: Sequence[str],
    values: Sequence[float],
    *,
    spread: Sequence[float] | None = None,
    label: str = "test rSum",
    title: str = "Retrieval",
) -> Figure:
    """One bar per method with its value, the last one on top and set off. `spread` draws deviations.

    Names are written in lines beside the bars, however long they are.
    """
    named = [textwrap.fill(_plain(name), NAME_WIDTH) for name in names]
    lines = sum(max(name.count("\n") + 1, 1.6) for name in named)
    figure = _figure(7.2, 1.1 + 0.2 * lines)
    axes = figure.add_subplot()
    style = {"ecolor": INK, "elinewidth": 1.0, "capsize": 3}
    places = np.arange(len(names))
    bars = axes.barh(places, values, height=0.66, color=_set_off(len(names)), xerr=spread, error_kw=style)
    axes.bar_label(bars, fmt="{:.1f}", padding=3, fontweight="bold")
    _name_ticks(axes.yaxis, named)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.margins(x=0.12)
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    _head(figure, title)
    return figure


@matplotlib.rc_context(STYLE)
def robustness(
    rates: ArrayLike,
    names: Sequence[str],
    values: ArrayLike,
    *,
    spread: ArrayLike | None = None,
    label: str = "test rSum",
    title: str = "Retrieval under mismatches",
) -> Figure:
    """One line per method over the rates of mismatched pairs; the first one is set off.

    `values` are (methods, rates), NaN where there is none; `spread`, of the same shape, draws deviations. Lines differ
    in marker and dashes as in colour, and are named in the order in which they end.
    """
    figure = _figure(7.2, 4.6)
    axes = figure.add_subplot()
    places, values = 100 * np.asarray(rates, dtype=np.float64), np.asarray(values, dtype=np.float64)
    deviations = np.zeros_like(values) if spread is None else np.asarray(spread, dtype=np.float64)
    aside = np.linspace(-1, 1, len(names)) if spread is not None and len(names) > 1 else np.zeros(len(names))
    lines = [
        axes.errorbar(
            places + aside[number],  # deviations of several methods do not hide each other
            values[number],
            yerr=None if spread is None else deviations[number],
            **_line(number),
            linewidth=1.3 if number else 2.4,
            markersize=6.5 if number else 8,
            elinewidth=0.9,
            capsize=2,
            zorder=3 if number == 0 else 2,
        )
        for number in range(len(names))
    ]
    order = np.argsort(-np.nan_to_num(values[:, -1], nan=-np.inf), kind="stable")
    legend = axes.legend(
        [lines[number] for number in order],
        [_plain(names[number]) for number in order],
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        handlelength=3.5,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    axes.set_xticks(places, [f"{place:g} %" for place in places])
    axes.set_xlabel("mismatched training pairs")
    axes.set_ylabel(label)
    _head(figure, title)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
    return figure


@matplotlib.rc_context(STYLE)
def sweeps(
    names: Sequence[str],
    places: Sequence[ArrayLike],
    values: Sequence[ArrayLike],
    *,
    spreads: Sequence[ArrayLike] | None = None,
    label: str = "test rSum",
    title: str = "Parameters",
) -> Figure:
    """One panel per parameter: a score against its values, which stand at equal distances. NaN: not measured."""
    figure = _figure(3.2 * max(len(names), 1), 3.4)
    panels = figure.subplots(1, max(len(names), 1), squeeze=False, sharey=True)[0]
    for number, (axes, name) in enumerate(zip(panels, names, strict=True)):
        shown = np.asarray(places[number], dtype=np.float64)
        deviations = None if spreads is None else np.asarray(spreads[number], dtype=np.float64)
        axes.errorbar(
            np.arange(len(shown)),
            np.asarray(values[number], dtype=np.float64),
            yerr=deviations,
            **_line(number),
            linewidth=1.6,
            markersize=7,
            capsize=3,
        )
        axes.set_xticks(np.arange(len(shown)), [f"{value:g}" for value in shown])
        axes.set_xlabel(name)
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    panels[0].set_ylabel(label)
    _head(figure, title)
    return figure


@matplotlib.rc_context(STYLE)
def epochs(
    names: Sequence[str],
    values: Mapping[str, Sequence[ArrayLike]],
    *,
    label: str = "dev R@1",
    title: str = "Retrieval over the epochs",
) -> Figure:
    """One panel per direction, one line per method: `values[direction][method]` are its scores by epoch."""
    figure = _figure(4.4 * max(len(values), 1), 4.0)
    panels = figure.subplots(1, max(len(values), 1), squeeze=False, sharey=True)[0]
    for axes, (direction, lines) in zip(panels, values.items(), strict=True):
        for number, line in enumerate(lines):
            scores = np.asarray(line, dtype=np.float64)
            places = np.arange(1, len(scores) + 1)
            axes.plot(places, scores, **_line(number), linewidth=2.2 if number == 0 else 1.3, markersize=4.5)
        axes.set_xlabel("epoch")
        axes.set_title(_plain(direction), parse_math=False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    panels[0].set_ylabel(label)
    legend = figure.legend(
        panels[0].lines, [_plain(name) for name in names], loc="outside right center", handlelength=3.5
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    _head(figure, title)
    return figure


@matplotlib.rc_context(STYLE)
def bound(q: ArrayLike, lower: ArrayLike, upper: ArrayLike, *, title: str = "C and C' against q") -> Figure:
    """The bounds of Eq. 7 (C, from below) and of the supplement (C', from above) against q."""
    figure = _figure(5.6, 3.6)
    axes = figure.add_subplot()
    for number, (name, values) in enumerate((("C' of the noisy risk", upper), ("C of Eq. 7", lower))):
        style = {**_line(number), "marker": ""}
        axes.plot(np.asarray(q), np.asarray(values), **style, linewidth=2, label=name)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xlabel("q")
    axes.set_ylabel("bound")
    axes.set_title(_plain(title), parse_math=False)
    axes.legend(handlelength=3.5)
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
    figure = _figure(4.2 * columns, 2.9 * lines + 0.3)
    for number, ((name, values), truth) in enumerate(zip(panels, truths, strict=True)):
        axes = figure.add_subplot(lines, columns, number + 1)
        shown, matches = np.asarray(values, dtype=np.float64), np.asarray(truth, dtype=bool)
        edges = np.histogram_bin_edges(shown, BINS, None if ranges is None else ranges[number])
        counts = _histograms(axes, edges, _matched_and_not(shown, matches))
        margin = 0.01 * (edges[-1] - edges[0])
        axes.set_xlim(edges[0] - margin, edges[-1] + margin)
        _scale(axes, counts)
        axes.set_title(_plain(name), parse_math=False)
        axes.legend(fontsize=8)
    _head(figure, title)
    return figure


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
    figure = _figure(6.4, 5.6)
    places = np.arange(1, len(np.asarray(loss)) + 1)
    panels = figure.subplots(3, 1, sharex=True, height_ratios=[2, 2, 1])
    named = zip(panels, (loss, rsum, learning_rate), ("loss", "dev rSum", "learning rate"), strict=True)
    for number, (axes, values, name) in enumerate(named):
        axes.plot(places, np.asarray(values, dtype=np.float64), **_line(number), linewidth=1.6, markersize=4)
        axes.set_ylabel(name)
        _piece_starts(axes, pieces)
    if best is not None:
        panels[1].plot(best + 1, np.asarray(rsum)[best], "*", color=INK, markersize=13, label="best, kept")
        panels[1].legend(loc="lower right")
    panels[2].set_yscale("log")
    panels[2].set_xlabel("epoch")
    panels[2].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_title(_plain(title), parse_math=False)
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
    figure = _figure(6.4, 1.4 + 0.24 * len(shown))
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
    axes.set_title(_plain(title), parse_math=False)
    return figure


@matplotlib.rc_context(STYLE)
def ranks(i2t: ArrayLike, t2i: ArrayLike, *, title: str = "Ranks") -> Figure:
    """Share of queries that have a right answer among the first K, in both directions; ranks count from 0."""
    figure = _figure(5.6, 3.8)
    axes = figure.add_subplot()
    for number, (name, found) in enumerate((("image to text", i2t), ("text to image", t2i))):
        ordered = np.sort(np.asarray(found)) + 1
        share = 100 * np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
        style = {**_line(number), "marker": ""}
        axes.step(ordered, share, where="post", **style, linewidth=1.8, label=name)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.set_ylim(0, 101)
    axes.set_xlabel("K")
    axes.set_ylabel("queries answered among the first K, %")
    axes.grid(color="#E4E4E4", linewidth=0.7)
    axes.set_title(_plain(title), parse_math=False)
    axes.legend(loc="lower right", handlelength=3.5)
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
    figure = _figure(6.4, 3.8)
    axes = figure.add_subplot()
    below = f"below {threshold:g}"
    named = (("AUROC", auroc), (f"precision {below}", precision), (f"recall {below}", recall))
    for number, (name, values) in enumerate(named):
        scores = np.asarray(values, dtype=np.float64)
        axes.plot(np.arange(1, len(scores) + 1), scores, **_line(number), linewidth=1.6, markersize=5, label=name)
    _piece_starts(axes, pieces)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(_plain(title), parse_math=False)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), handlelength=3.5)
    return figure


@matplotlib.rc_context(STYLE)
def overview(
    names: Sequence[str],
    values: Sequence[float],
    correspondence: ArrayLike,
    truth: ArrayLike | None,
    *,
    threshold: float | None = None,
    auroc: float | None = None,
    label: str = "test rSum",
    titles: tuple[str, str] = ("Retrieval", "Beliefs of the training pairs"),
) -> Figure:
    """Comparison of methods and beliefs side by side."""
    figure = _figure(9.6, 3.5)
    left, right = figure.subplots(1, 2, width_ratios=[1, 2])
    _comparison(left, names, values, label=label, title=titles[0])
    _beliefs(right, correspondence, truth, threshold=threshold, auroc=auroc, title=titles[1])
    return figure


@matplotlib.rc_context(STYLE)
def sheet(rows: Sequence[SheetRow], *, columns: int = 4, title: str = "The worst pairs") -> Figure:
    """A contact sheet: each pair as its image, correspondence, truth where known, and caption."""
    lines = max(1, -(-len(rows) // columns))
    head, tile, side = 0.5, 2.95, 2.15  # inches
    height = head + lines * tile
    figure = Figure(figsize=(columns * side, height))
    FigureCanvasAgg(figure)
    figure.text(
        0.12 / (columns * side), 1 - 0.27 / height, _plain(title), size=12, weight="bold", va="center", parse_math=False
    )
    if not rows:
        figure.text(0.5, 0.5, "no pairs", ha="center", color=GREY)
    for number, row in enumerate(rows):
        line, column = divmod(number, columns)
        top, left = height - head - line * tile, column * side
        box = np.array([columns * side, height] * 2)
        picture = figure.add_axes(tuple(np.array([left + 0.12, top - 1.91, side - 0.24, 1.91]) / box))
        words = figure.add_axes(tuple(np.array([left + 0.12, top - tile + 0.08, side - 0.16, tile - 2.06]) / box))
        _tile(picture, words, row)
    return figure


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _head(figure: Figure, title: str) -> None:
    """The title of a whole figure, in lines as wide as it."""
    wide = int(TITLE_LETTERS * figure.get_figwidth())
    lines = [textwrap.fill(_plain(line), wide) for line in title.split("\n")]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", weight="bold", size=10, parse_math=False)


def _line(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of a line: told apart in grey too."""
    return {
        "color": LINES[number % len(LINES)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def _begins(pieces: NDArray[Any], epoch: int) -> bool:
    return epoch == 0 or bool(pieces[epoch] != pieces[epoch - 1])


def _piece_starts(axes: Axes, pieces: ArrayLike) -> None:
    """A thin line before the first epoch of each further piece."""
    numbers = np.asarray(pieces)
    for epoch in range(1, len(numbers)):
        if _begins(numbers, epoch):
            axes.axvline(epoch + 0.5, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))


def _matched_and_not(values: NDArray[np.float64], matches: NDArray[np.bool_]) -> list[Group]:
    return [("matched", values[matches], BLUE, ""), ("mismatched", values[~matches], ORANGE, "////")]


def _histograms(axes: Axes, edges: NDArray[np.float64], groups: Sequence[Group]) -> NDArray[np.int64]:
    """Draw each group, told apart by colour and hatching; gives all counts."""
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


def _beliefs(
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
    heading = _plain(title) + ("" if auroc is None else f"  ·  AUROC {auroc:.3f}")
    if heading:
        axes.set_title(heading, parse_math=False, pad=26)
    # between the title and the bars, which may be high anywhere
    columns = 3 if decoys is None else 2
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, fontsize=8, borderaxespad=0.4, borderpad=0)


def _filled(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Counts without those of empty bins: no outline along zero."""
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


def _name_ticks(axis: Axis, names: Sequence[str]) -> None:
    """Names of bars, which stand at 0, 1, ..., as they are written."""
    axis.set_ticks(range(len(names)), names)
    for tick in axis.get_ticklabels():
        tick.set_parse_math(False)
    axis.set_tick_params(length=0)


def _set_off(bars: int) -> list[str]:
    """Colours of bars, of which the last one counts."""
    return [GREY] * (bars - 1) + [BLUE]


def _comparison(
    axes: Axes,
    names: Sequence[str],
    values: Sequence[float],
    *,
    label: str,
    title: str,
) -> None:
    places = np.arange(len(names))
    bars = axes.bar(places, values, width=0.62, color=_set_off(len(names)))
    axes.bar_label(bars, fmt="{:.1f}", padding=2, fontweight="bold")
    _name_ticks(axes.xaxis, [_plain(name) for name in names])
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.margins(y=0.12)
    axes.set_ylabel(label)
    axes.set_title(_plain(title), parse_math=False, pad=26)
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _tile(picture: Axes, words: Axes, row: SheetRow) -> None:
    image, caption, correspondence, truth = row
    pixels = _thumbnail(image)
    if pixels is None:
        picture.set_facecolor("#DDDDDD")
        picture.text(0.5, 0.5, "unreadable", ha="center", va="center", color=GREY, transform=picture.transAxes)
    else:
        picture.imshow(pixels)
        picture.set_anchor("SW")
    picture.set(xticks=[], yticks=[])
    picture.spines[:].set(visible=True, color="#CCCCCC")
    words.axis("off")
    known = {None: ("", INK), True: ("   ✓ matched", BLUE), False: ("   ✗ mismatched", ORANGE)}
    verdict, colour = known[truth if truth is None else bool(truth)]
    words.text(0, 1, f"{correspondence:.3f}{verdict}", va="top", weight="bold", color=colour, size=8.5)
    words.text(0, 0.76, _wrapped(caption), va="top", size=8, linespacing=1.25, parse_math=False, clip_on=True)


def _thumbnail(image: str | Path | Image.Image) -> NDArray[np.uint8] | None:
    """The image as RGB pixels, small; None where it cannot be read."""
    try:
        if isinstance(image, Image.Image):
            small = image.convert("RGB")
        else:
            with Image.open(image) as file:
                file.draft("RGB", (THUMBNAIL, THUMBNAIL))
                small = file.convert("RGB")
        small.thumbnail((THUMBNAIL, THUMBNAIL))
    except Exception:  # decoders of broken files fail in every way there is, and one bad file must not cost the sheet
        return None
    return np.asarray(small)


def _plain(text: str) -> str:
    """Without line breaks and control characters, which fonts do not draw."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def _wrapped(caption: str) -> str:
    # what lies far beyond the tile is never shown, so it need not be wrapped either
    text = _plain(caption[: 20 * CAPTION_LINES * CAPTION_WIDTH])
    return "\n".join(textwrap.wrap(text, CAPTION_WIDTH, max_lines=CAPTION_LINES, placeholder=" …"))
