"""Search in some cells of very many vectors: 8-bit codes find candidates, which the memory map scores again.

How many cells a search looks into and how many candidates it scores again is chosen by recall, measured with queries of
the kind that will come: captions for an index of images. Text queries are strangers to an index of images, so that a
setting chosen with images as queries would miss many.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crcl.data.cells import cell_count, find_centres, library
from crcl.progress import Advance
from crcl.retrieval.index.exact import in_order, nearest

PURPOSE = "search with a chosen recall"
K = 10
"""Recall is measured of the first ten."""
QUERIES = 400
"""Half of them choose the setting, the others measure its recall."""
_AGAIN = (16, 64, 256)  # candidates that may be scored again, for ten hits
_STEP = 2**0.5
_TIMED = 40
_BLOCK = 2**16


@dataclass(frozen=True)
class Found:
    """The setting of a search in cells, and what was measured of it."""

    rows: int
    """Vectors in the cells."""
    trained: int
    """Vectors when the centres were chosen."""
    cells: int
    probe: int
    """Cells that a search looks into."""
    again: int
    """Candidates that are scored again for ten hits; more for more."""
    asked: float
    """The recall that was asked for."""
    recall: float
    """Share of the ten best that a search finds, measured on other queries than those that chose the candidates."""
    queries: int
    """How many measured it."""
    bytes: int = 0

    def is_sound(self) -> bool:
        """Whether all of these are numbers that can be; they are read from a file."""
        counts = (self.rows, self.trained, self.cells, self.probe, self.again, self.queries)
        shares = (self.asked, self.recall)
        return (
            all(type(count) is int and count > 0 for count in counts)
            and all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares)
            and type(self.bytes) is int
        )


class Cells:
    """Vectors as 8-bit codes in cells."""

    def __init__(self, index: Any, found: Found | None = None) -> None:
        self.index = index
        self.found = found

    @classmethod
    def build(cls, vectors: np.ndarray, *, seed: int = 0) -> "Cells":
        """Choose centres for vectors `(rows, D)`; `add` then fills the cells."""
        faiss = library(PURPOSE)
        count, size = vectors.shape
        centres = faiss.IndexFlatIP(size)
        index = faiss.IndexIVFScalarQuantizer(
            centres,
            size,
            cell_count(count),
            faiss.ScalarQuantizer.QT_8bit,
            faiss.METRIC_INNER_PRODUCT,
            False,
        )
        index.own_fields = False
        made = cls(index)
        made._centres = centres  # the index does not keep it alive
        find_centres(index, vectors, seed=seed)
        return made

    _centres: Any = None

    @classmethod
    def open(cls, path: Path, found: Found, size: int, *, whole: bool = False) -> "Cells":
        """Read cells from a file; as a memory map, unless `whole`, which more can be added to. Raises ValueError."""
        faiss = library(PURPOSE)
        try:
            index = faiss.read_index(str(path), 0 if whole else faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError as error:
            raise ValueError("not an index of faiss") from error
        if not isinstance(index, faiss.IndexIVF) or (index.d, index.ntotal, index.nlist) != (
            size,
            found.rows,
            found.cells,
        ):
            raise ValueError("an index of other vectors")
        return cls(index, found)

    def add(self, vectors: np.ndarray, advance: Advance | None = None) -> None:
        """Add the vectors that are not in the cells yet, those behind the first `ntotal`."""
        first = self.index.ntotal
        for start in range(first, len(vectors), _BLOCK):
            self.index.add(np.asarray(vectors[start : start + _BLOCK], dtype=np.float32))
            if advance is not None:
                advance(min(start + _BLOCK, len(vectors)) - first, len(vectors) - first)

    def save(self, path: Path) -> None:
        """Write the cells to a file."""
        library(PURPOSE).write_index(self.index, str(path))

    def search(
        self, stored: np.ndarray, queries: np.ndarray, k: int, *, probe: int | None = None, again: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `nearest`, by the setting that was found; where the cells hold fewer than k, all vectors are compared."""
        if self.found is not None:
            probe, again = probe or self.found.probe, again or self.found.again
        assert probe is not None
        assert again is not None
        count = max(again, -(-k * again // K))
        if count > len(stored) // 4:
            return nearest(stored, queries, k)
        rows = self.candidates(queries, count, probe)
        lacking = (rows[:, :k] < 0).any(1)
        scores, found = _best_of(stored, queries, rows, k)
        if lacking.any():
            scores[lacking], found[lacking] = nearest(stored, queries[lacking], k)
        return scores, found

    def candidates(self, queries: np.ndarray, count: int, probe: int) -> np.ndarray:
        """Rows of candidates by the codes, best first; -1 where there are fewer. (queries, count)"""
        faiss = library(PURPOSE)
        given = faiss.SearchParametersIVF(nprobe=probe)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        return np.asarray(self.index.search(queries, count, params=given)[1])


def _best_of(stored: np.ndarray, queries: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The best k of each query's candidates by the stored vectors; -1 and -inf where there are fewer."""
    scores = np.full(rows.shape, -np.inf, dtype=np.float32)
    for number, (query, some) in enumerate(zip(queries, rows, strict=True)):
        there = some >= 0
        scores[number, there] = stored[np.sort(some[there])].astype(np.float32)[_places(some[there])] @ query
    scores, rows = in_order(scores, rows)
    return scores[:, :k].copy(), rows[:, :k].copy()


def _places(rows: np.ndarray) -> np.ndarray:
    """Where each row is once they are sorted; a memory map is read in order."""
    places = np.empty(len(rows), dtype=np.int64)
    places[np.argsort(rows)] = np.arange(len(rows))
    return places


def choose(cells: Cells, stored: np.ndarray, queries: np.ndarray, *, recall: float, trained: int) -> Cells:
    """The cells with the cheapest setting that surely reaches a recall on half of the queries.

    Its recall is measured on the other half; if it is too low there, more cells are taken. Where no setting reaches the
    recall, the best one is taken, and its recall says so.
    """
    wanted = nearest(stored, queries, K)[1]
    choosing, measuring = np.arange(0, len(queries), 2), np.arange(1, len(queries), 2)
    options = _cheapest_by_candidates(cells, stored, queries[choosing], wanted[choosing], recall)
    timed = [_seconds(cells, stored, queries[choosing[:_TIMED]], probe, again) for probe, again in options]
    probe, again = options[int(np.argmin(timed))]
    measured = measuring if len(measuring) else choosing
    for more in [probe, *(step for step in _probes(int(cells.index.nlist)) if step > probe)]:
        probe = more
        reached = recall_of(cells.search(stored, queries[measured], K, probe=probe, again=again)[1], wanted[measured])
        if reached >= recall:
            break
    found = Found(
        rows=len(stored),
        trained=trained,
        cells=int(cells.index.nlist),
        probe=probe,
        again=again,
        asked=recall,
        recall=reached,
        queries=len(measured),
    )
    made = Cells(cells.index, found)
    made._centres = cells._centres
    return made


def recall_of(rows: np.ndarray, wanted: np.ndarray) -> float:
    """Share of the wanted rows that were found. (queries, k), (queries, k)"""
    return float(_recalls(rows, wanted).mean())


def _recalls(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Share of the wanted rows that were found, by query."""
    return np.array([np.isin(right, some).mean() for some, right in zip(rows, wanted, strict=True)])


def _sure_recall(rows: np.ndarray, wanted: np.ndarray) -> float:
    """The recall less two standard errors: other queries will hardly have a lower one."""
    each = _recalls(rows, wanted)
    return float(each.mean() - 2 * each.std() / len(each) ** 0.5)


def _cheapest_by_candidates(
    cells: Cells, stored: np.ndarray, queries: np.ndarray, wanted: np.ndarray, recall: float
) -> list[tuple[int, int]]:
    """For each number of candidates the fewest cells that reach the recall; the best setting, if none does."""
    options: dict[int, int] = {}
    best: tuple[float, int, int] = (-1.0, 1, _AGAIN[-1])
    for probe in _probes(int(cells.index.nlist)):
        rows = cells.candidates(queries, min(_AGAIN[-1], len(stored)), probe)
        for again in _AGAIN:
            if again in options:
                continue
            reached = _sure_recall(_best_of(stored, queries, rows[:, :again], K)[1], wanted)
            best = max(best, (reached, probe, again))
            if reached >= recall:
                options[again] = probe
        if len(options) == len(_AGAIN) or _no_better(options, probe):
            break
    return [(probe, again) for again, probe in options.items()] or [best[1:]]


def _no_better(options: dict[int, int], probe: int) -> bool:
    """Whether fewer candidates need so many more cells that they cannot be cheaper."""
    return bool(options) and probe > 4 * min(options.values())


def _probes(cells: int) -> Sequence[int]:
    steps = range(int(np.ceil(np.log(cells) / np.log(_STEP))) + 1)
    return sorted({min(round(_STEP**step), cells) for step in steps})


def _seconds(cells: Cells, stored: np.ndarray, queries: np.ndarray, probe: int, again: int) -> float:
    """Median time of one query by itself."""
    taken = []
    for query in queries:
        began = time.perf_counter()
        cells.search(stored, query[None], K, probe=probe, again=again)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def found_json(found: Found) -> dict[str, Any]:
    """What was found as plain values."""
    return asdict(found)
