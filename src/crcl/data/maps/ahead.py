"""Reading ahead: asking the system for rows of a mapped file before they are used."""

import mmap

import numpy as np

_ASKED = 2**17  # bytes that are asked for at once: systems cut off longer requests


def ask_for(array: np.ndarray, rows: np.ndarray) -> None:
    """Ask the system to read rows of a memory map in the background; does nothing for an array in memory.

    Rows that lie next to each other are asked for together, wherever they are in `rows`.
    """
    mapped = getattr(array, "_mmap", None)
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_WILLNEED") or not array.flags.c_contiguous:
        return
    size = array[:1].nbytes
    base = array.ctypes.data - np.frombuffer(mapped, dtype=np.uint8).ctypes.data
    for first, last in _runs(np.unique(rows)):
        begin, end = base + first * size, base + (last + 1) * size
        for place in range(begin - begin % mmap.PAGESIZE, end, _ASKED):
            mapped.madvise(mmap.MADV_WILLNEED, place, min(_ASKED, end - place))


def _runs(rows: np.ndarray) -> list[tuple[int, int]]:
    """The first and the last of each run of consecutive rows; `rows` are sorted."""
    if not len(rows):
        return []
    ends = np.flatnonzero(np.diff(rows) > 1)
    firsts, lasts = rows[np.append(0, ends + 1)], rows[np.append(ends, len(rows) - 1)]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
