"""Figures that compare methods."""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from crcl.plots.correspondence import draw_beliefs
from crcl.plots.style import BLUE, GREY, INK, STYLE, line_style, new_figure, plain_text, write_title

NAME_WIDTH = 32


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
    named = [textwrap.fill(plain_text(name), NAME_WIDTH) for name in names]
    lines = sum(max(name.count("\n") + 1, 1.6) for name in named)
    figure = new_figure(7.2, 1.1 + 0.2 * lines)
    axes = figure.add_subplot()
    style = {"ecolor": INK, "elinewidth": 1.0, "capsize": 3}
    places = np.arange(len(names))
    bars = axes.barh(places, values, height=0.66, color=_highlight_last(len(names)), xerr=spread, error_kw=style)
    axes.bar_label(bars, fmt="{:.1f}", padding=3, fontweight="bold")
    _name_ticks(axes.yaxis, named)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.margins(x=0.12)
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    write_title(figure, title)
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
    figure = new_figure(7.2, 4.6)
    axes = figure.add_subplot()
    places, values = 100 * np.asarray(rates, dtype=np.float64), np.asarray(values, dtype=np.float64)
    deviations = np.zeros_like(values) if spread is None else np.asarray(spread, dtype=np.float64)
    aside = np.linspace(-1, 1, len(names)) if spread is not None and len(names) > 1 else np.zeros(len(names))
    lines = [
        axes.errorbar(
            places + aside[number],  # deviations of several methods do not hide each other
            values[number],
            yerr=None if spread is None else deviations[number],
            **line_style(number),
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
        [plain_text(names[number]) for number in order],
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        handlelength=3.5,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    axes.set_xticks(places, [f"{place:g} %" for place in places])
    axes.set_xlabel("mismatched training pairs")
    axes.set_ylabel(label)
    write_title(figure, title)
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
    figure = new_figure(3.2 * max(len(names), 1), 3.4)
    panels = figure.subplots(1, max(len(names), 1), squeeze=False, sharey=True)[0]
    for number, (axes, name) in enumerate(zip(panels, names, strict=True)):
        shown = np.asarray(places[number], dtype=np.float64)
        deviations = None if spreads is None else np.asarray(spreads[number], dtype=np.float64)
        axes.errorbar(
            np.arange(len(shown)),
            np.asarray(values[number], dtype=np.float64),
            yerr=deviations,
            **line_style(number),
            linewidth=1.6,
            markersize=7,
            capsize=3,
        )
        axes.set_xticks(np.arange(len(shown)), [f"{value:g}" for value in shown])
        axes.set_xlabel(name)
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    panels[0].set_ylabel(label)
    write_title(figure, title)
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
    figure = new_figure(4.4 * max(len(values), 1), 4.0)
    panels = figure.subplots(1, max(len(values), 1), squeeze=False, sharey=True)[0]
    for axes, (direction, lines) in zip(panels, values.items(), strict=True):
        for number, line in enumerate(lines):
            scores = np.asarray(line, dtype=np.float64)
            places = np.arange(1, len(scores) + 1)
            axes.plot(places, scores, **line_style(number), linewidth=2.2 if number == 0 else 1.3, markersize=4.5)
        axes.set_xlabel("epoch")
        axes.set_title(plain_text(direction), parse_math=False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    panels[0].set_ylabel(label)
    legend = figure.legend(
        panels[0].lines, [plain_text(name) for name in names], loc="outside right center", handlelength=3.5
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    write_title(figure, title)
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
    shown: str | None = None,
    label: str = "test rSum",
    titles: tuple[str, str] = ("Retrieval", "Beliefs of the training pairs"),
) -> Figure:
    """Comparison of methods and beliefs side by side; the bar of the method whose beliefs are shown is highlighted.

    By default these are the beliefs of the last method.
    """
    figure = new_figure(9.6, 3.5)
    left, right = figure.subplots(1, 2, width_ratios=[1, 2])
    _comparison(left, names, values, highlighted=names[-1] if shown is None else shown, label=label, title=titles[0])
    draw_beliefs(right, correspondence, truth, threshold=threshold, auroc=auroc, title=titles[1])
    return figure


def _comparison(
    axes: Axes,
    names: Sequence[str],
    values: Sequence[float],
    *,
    highlighted: str,
    label: str,
    title: str,
) -> None:
    places = np.arange(len(names))
    bars = axes.bar(places, values, width=0.62, color=[BLUE if name == highlighted else GREY for name in names])
    axes.bar_label(bars, fmt="{:.1f}", padding=2, fontweight="bold")
    _name_ticks(axes.xaxis, [plain_text(name) for name in names])
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.margins(y=0.12)
    axes.set_ylabel(label)
    axes.set_title(plain_text(title), parse_math=False, pad=26)
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _name_ticks(axis: Axis, names: Sequence[str]) -> None:
    """Label the bars at 0, 1, ... with these names, without parsing them as formulas."""
    axis.set_ticks(range(len(names)), names)
    for tick in axis.get_ticklabels():
        tick.set_parse_math(False)
    axis.set_tick_params(length=0)


def _highlight_last(bars: int) -> list[str]:
    """Colours of bars, the last one highlighted."""
    return [GREY] * (bars - 1) + [BLUE]
