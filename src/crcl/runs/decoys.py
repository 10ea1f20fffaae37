"""Decoys in a run folder: captions and images, and kinds and exchanged texts where not all of them are random."""

from pathlib import Path

import numpy as np

from crcl.data.decoys import KINDS, Decoys
from crcl.runs.files import damaged, read_json, read_npy
from crcl.storage import write_array, write_json

DRAWN, OTHER, VECTORS = "decoys.npy", "decoy_kinds.json", "decoy_vectors.npy"


def write_decoys(folder: Path, decoys: Decoys) -> None:
    """Write decoys to a run folder."""
    write_array(folder / DRAWN, decoys.drawn)
    if (decoys.kinds != "random").any():
        write_json(folder / OTHER, {"kinds": decoys.kinds.tolist(), "texts": list(decoys.texts)})
    if decoys.vectors is not None:
        write_array(folder / VECTORS, decoys.vectors)


def read_decoys(folder: Path, *, pairs: int, images: int) -> Decoys | None:
    """The decoys of a run folder; None where there are none."""
    path = folder / DRAWN
    if not path.is_file():
        return None
    drawn = read_npy(path)
    if drawn.dtype != np.int64 or drawn.shape[1:] != (2,) or not ((drawn >= 0) & (drawn < (pairs, images))).all():
        raise damaged(path, "not captions and images of the run's")
    if not (folder / OTHER).is_file():
        return Decoys.random(drawn)
    kinds, texts = _read_kinds(folder / OTHER, len(drawn))
    vectors = _read_vectors(folder / VECTORS, len(texts)) if (folder / VECTORS).is_file() else None
    return Decoys(drawn, kinds, texts, vectors)


def _read_kinds(path: Path, count: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The kind of each decoy, and the texts of those with an exchanged word."""
    found = read_json(path)
    kinds, texts = (found.get(name) if isinstance(found, dict) else None for name in ("kinds", "texts"))
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in KINDS for kind in kinds):
        raise damaged(path, f"not a kind for each of {count} decoys")
    if kinds != sorted(kinds, key=KINDS.index):
        raise damaged(path, "decoys are not in the order of their kinds")
    swapped = kinds.count("swap")
    if not isinstance(texts, list) or len(texts) != swapped or not all(isinstance(text, str) for text in texts):
        raise damaged(path, f"not a text for each of {swapped} decoys with an exchanged word")
    return np.array(kinds), tuple(texts)


def _read_vectors(path: Path, count: int) -> np.ndarray:
    vectors = read_npy(path)
    if vectors.dtype != np.float16 or vectors.ndim != 2 or len(vectors) != count or not np.isfinite(vectors).all():
        raise damaged(path, f"not a vector for each of {count} decoys with an exchanged word")
    return vectors
