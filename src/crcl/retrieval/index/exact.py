"""Exact search: inner products with all vectors of a memory map, block by block."""

import numpy as np
import torch

_BLOCK = 2**19  # numbers that are converted to float32 at a time: 2 MB, which a core keeps in its cache
_SCORES = 2**23  # scores that are held until the best of them are taken: 32 MB


def nearest(vectors: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k vectors with the largest inner products for each query, best first.

    Args:
        vectors: (rows, D) float16 or float32, may be a memory map.
        queries: (queries, D) float32.
        k: How many; fewer are returned where there are fewer vectors.

    Returns:
        Scores (queries, k) float32 and rows (queries, k) int64; of equal scores the earlier row comes first.
    """
    wanted = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32))
    count, k = len(vectors), min(k, len(vectors))
    step = max(_BLOCK // vectors.shape[1], 1)
    held = max(_SCORES // max(len(wanted), 1) // step, 1) * step
    block = torch.empty(min(step, count), vectors.shape[1])
    best = torch.empty(len(wanted), 0)
    rows = torch.empty(len(wanted), 0, dtype=torch.int64)
    for start in range(0, count, held):
        scores = torch.empty(len(wanted), min(held, count - start))
        for first in range(0, scores.shape[1], step):
            # a copy, since torch warns of arrays that cannot be written to
            some = torch.from_numpy(np.array(vectors[start + first : start + min(first + step, held)]))
            block[: len(some)] = some
            scores[:, first : first + len(some)] = wanted @ block[: len(some)].T
        top, place = scores.topk(min(k, scores.shape[1]), dim=1)
        best, rows = torch.cat([best, top], 1), torch.cat([rows, place + start], 1)
        if best.shape[1] > k:
            best, kept = best.topk(k, dim=1)
            rows = rows.gather(1, kept)
    return in_order(best.numpy(), rows.numpy())


def in_order(scores: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows of each query with the largest score first, and of equal ones the earlier row. (queries, k)"""
    order = np.lexsort((rows, -scores), axis=1)
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
