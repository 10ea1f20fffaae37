"""Vectors divided into cells around centres (k-means of package faiss), so that a search looks into some of them."""

from importlib.util import find_spec
from typing import Any

import numpy as np

from crcl.errors import InputError

EXTRA = "pip install 'crcl[search]'"
CELLS = 2048
"""Cells of an index of a million images; their number grows with the square root of that of the images."""
_PER_CELL, _ROUNDS = 64, 6  # vectors per cell that k-means reads, and its rounds


def installed() -> bool:
    """Whether the package that searches is there."""
    try:
        return find_spec("faiss") is not None
    except ValueError:  # it was marked as missing
        return False


def library(purpose: str) -> Any:
    """Import `faiss`, an optional dependency, for a purpose that the message begins with if it is missing."""
    try:
        import faiss
    except ImportError as error:
        raise InputError(f"{purpose} needs the package faiss", hint=EXTRA) from error
    return faiss


def cell_count(vectors: int) -> int:
    """How many cells so many vectors are divided into."""
    return max(round(CELLS * (vectors / 1e6) ** 0.5), 1)


def find_centres(index: Any, vectors: np.ndarray, *, seed: int = 0) -> None:
    """Train an IVF index of faiss on a sample of the vectors `(rows, D)`; the same seed gives the same centres."""
    index.cp.seed, index.cp.niter = seed % 2**31, _ROUNDS
    index.cp.min_points_per_centroid = 1
    read = np.sort(np.random.default_rng(seed).permutation(len(vectors))[: _PER_CELL * index.nlist])
    index.train(np.asarray(vectors[read], dtype=np.float32))
