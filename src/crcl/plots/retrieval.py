"""Figure of the ranks of the right answers in retrieval."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from crcl.plots.style import STYLE, line_style, new_figure, plain_text


@matplotlib.rc_context(STYLE)
def ranks(i2t: ArrayLike, t2i: ArrayLike, *, title: str = "Ranks") -> Figure:
    """Share of queries that have a right answer among the first K, in both directions; ranks count from 0."""
    figure = new_figure(5.6, 3.8)
    axes = figure.add_subplot()
    for number, (name, found) in enumerate((("image to text", i2t), ("text to image", t2i))):
        ordered = np.sort(np.asarray(found)) + 1
        share = 100 * np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
        style = {**line_style(number), "marker": ""}
        axes.step(ordered, share, where="post", **style, linewidth=1.8, label=name)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.set_ylim(0, 101)
    axes.set_xlabel("K")
    axes.set_ylabel("queries answered among the first K, %")
    axes.grid(color="#E4E4E4", linewidth=0.7)
    axes.set_title(plain_text(title), parse_math=False)
    axes.legend(loc="lower right", handlelength=3.5)
    return figure
