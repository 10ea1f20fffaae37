"""A contact sheet of pairs with their images."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from crcl.plots.style import BLUE, GREY, INK, ORANGE, STYLE, plain_text

CAPTION_LINES, CAPTION_WIDTH = 4, 30
THUMBNAIL = 320

SheetRow = tuple[str | Path | Image.Image, str, float, bool | None]
"""Image (or its file), caption, correspondence, and whether the pair really matches, where known."""


@matplotlib.rc_context(STYLE)
def sheet(rows: Sequence[SheetRow], *, columns: int = 4, title: str = "The worst pairs") -> Figure:
    """A contact sheet: each pair as its image, correspondence, truth where known, and caption."""
    lines = max(1, -(-len(rows) // columns))
    head, tile, side = 0.5, 2.95, 2.15  # inches
    height = head + lines * tile
    figure = Figure(figsize=(columns * side, height))
    FigureCanvasAgg(figure)
    figure.text(
        0.12 / (columns * side),
        1 - 0.27 / height,
        plain_text(title),
        size=12,
        weight="bold",
        va="center",
        parse_math=False,
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


def _wrapped(caption: str) -> str:
    # what lies far beyond the tile is never shown, so it need not be wrapped either
    text = plain_text(caption[: 20 * CAPTION_LINES * CAPTION_WIDTH])
    return "\n".join(textwrap.wrap(text, CAPTION_WIDTH, max_lines=CAPTION_LINES, placeholder=" …"))
