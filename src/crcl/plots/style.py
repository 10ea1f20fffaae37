"""What all figures share: colours, lines, titles, and saving."""

import io
import re
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from crcl.errors import InputError
from crcl.storage import replacing

BLUE, ORANGE, PURPLE, GREY, INK = "#0072B2", "#D55E00", "#CC79A7", "#8A8A8A", "#222222"
"""Okabe and Ito's blue, vermilion and purple, which colour-blind readers can tell apart, and two neutrals."""
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
TITLE_LETTERS = 11  # per inch


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, or as SVG if the path ends in .svg; the same figure gives the same bytes."""
    path = Path(path)
    kind, unsaid = ("svg", "Date") if path.suffix == ".svg" else ("png", "Software")
    with warnings.catch_warnings(), matplotlib.rc_context({"savefig.bbox": "standard", "svg.hashsalt": "crcl"}):
        # captions come in all scripts; a letter that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph")
        try:
            with replacing(path) as temporary:
                figure.savefig(temporary, format=kind, dpi=DPI, metadata={unsaid: None}, facecolor="white")
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror or error})", where=path) from error


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
    """Give the axes of several figures of the same size the same position."""
    for figure in figures:
        figure.draw_without_rendering()
    places = [figure.axes[0].get_position() for figure in figures]
    left, bottom = max(place.x0 for place in places), max(place.y0 for place in places)
    right, top = min(place.x1 for place in places), min(place.y1 for place in places)
    for figure in figures:
        figure.set_layout_engine("none")
        figure.axes[0].set_position((left, bottom, right - left, top - bottom))


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_title(figure: Figure, title: str) -> None:
    """The title of a whole figure, in lines as wide as it."""
    wide = int(TITLE_LETTERS * figure.get_figwidth())
    lines = [textwrap.fill(plain_text(line), wide) for line in title.split("\n")]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", weight="bold", size=10, parse_math=False)


def line_style(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of a line, so that lines differ in grey too."""
    return {
        "color": LINES[number % len(LINES)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def plain_text(text: str) -> str:
    """The text without line breaks and control characters, which fonts do not draw."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
