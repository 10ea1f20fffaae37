"""Dividing the vectors of an index into cells: when that is done, and when it is done again."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from crcl.data.cells import EXTRA, installed, library
from crcl.errors import InputError
from crcl.progress import Progress
from crcl.retrieval.index.cells import PURPOSE, QUERIES, Cells, Found, choose, found_json
from crcl.retrieval.index.folder import About, Index, What, cells_file
from crcl.storage import replacing

MOST_EXACT = 1_000_000
"""More vectors are divided into cells, if nothing else was asked for."""
FEWEST = 1000
"""Fewer are never divided."""
USUAL = 0.95
"""The recall of an index of more than a million, if nothing else was asked for."""
_GROWN = 2  # cells are made anew when the index has grown by this factor


def check_recall(recall: float | None) -> None:
    """Refuse a recall that is none, or that needs a package which is missing."""
    if recall is None:
        return
    if not 0 < recall <= 1:
        raise InputError(f"{recall:g}: expected a share of more than 0 and at most 1", where="recall")
    if recall < 1:
        library(PURPOSE)


def update_cells(path: Path, about: About, recall: float | None, progress: Progress) -> About:
    """Divide the vectors of an index into cells where a recall is asked for; returns its facts with what was found.

    Args:
        path: The index folder, with all its vectors.
        about: Its facts, with cells of fewer vectors or with none.
        recall: The recall; None for that of the index so far.
        progress: Receives messages and progress.
    """
    index = Index(path, about)
    cells = {}
    for what in get_args(What):
        found, rows = index.found(what), len(index.vectors(what))
        asked = recall if recall is not None else found.asked if found is not None else _usual(rows, what, progress)
        if asked < 1 and rows >= FEWEST:
            unchanged = found is not None and (found.rows, found.asked) == (rows, asked)
            made = found if unchanged and found is not None else _divide(index, what, found, asked, progress)
            cells[what] = found_json(made)
    return replace(about, cells=cells)


def remove_old_cells(path: Path, about: About) -> None:
    """Remove files of cells that the index no longer uses."""
    used = {cells_file(what, about.cells[what]["rows"]) for what in get_args(What) if what in about.cells}
    for file in path.glob("*.cells"):
        if file.name not in used:
            with suppress(OSError):
                file.unlink()


def _usual(rows: int, what: What, progress: Progress) -> float:
    if rows <= MOST_EXACT:
        return 1.0
    if not installed():
        progress.note(f"every search compares {rows:,} {what}; `{EXTRA}` makes it many times as fast")
        return 1.0
    return USUAL


def _divide(index: Index, what: What, old: Found | None, asked: float, progress: Progress) -> Found:
    """Write the cells of images or captions, and choose their setting."""
    stored = index.vectors(what)
    trained, cells = len(stored), None
    if old is not None and trained < _GROWN * old.trained:
        with suppress(ValueError):  # damaged: made anew
            cells = Cells.open(index.path / cells_file(what, old.rows), old, index.about.size, whole=True)
            trained = old.trained
    cells = cells or Cells.build(stored)
    with progress.task(f"cells of {what}") as advance:
        cells.add(stored, advance)
    file = index.path / cells_file(what, len(stored))
    with replacing(file) as temporary:
        cells.save(temporary)
    chosen = choose(cells, stored, _queries(index, what), recall=asked, trained=trained)
    assert chosen.found is not None
    return replace(chosen.found, bytes=file.stat().st_size)


def _queries(index: Index, what: What) -> np.ndarray:
    """Captions as queries of images, and images as queries of captions, spread over all of them. (queries, size)"""
    others = index.vectors("captions" if what == "images" else "images")
    if not len(others):
        raise InputError(f"recall of {what} is measured by searching for the other kind, and there is none")
    chosen = np.unique(np.linspace(0, len(others) - 1, min(QUERIES, len(others))).astype(np.int64))
    return np.asarray(others[chosen], dtype=np.float32)
