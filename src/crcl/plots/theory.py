"""The bounds of the paper's theorems."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from crcl.plots.style import GREY, STYLE, line_style, new_figure, plain_text


@matplotlib.rc_context(STYLE)
def bound(q: ArrayLike, lower: ArrayLike, upper: ArrayLike, *, title: str = "C and C' against q") -> Figure:
    """The bounds of Eq. 7 (C, from below) and of the supplement (C', from above) against q."""
    figure = new_figure(5.6, 3.6)
    axes = figure.add_subplot()
    for number, (name, values) in enumerate((("C' of the noisy risk", upper), ("C of Eq. 7", lower))):
        style = {**line_style(number), "marker": ""}
        axes.plot(np.asarray(q), np.asarray(values), **style, linewidth=2, label=name)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xlabel("q")
    axes.set_ylabel("bound")
    axes.set_title(plain_text(title), parse_math=False)
    axes.legend(handlelength=3.5)
    return figure
