"""Correspondences in a run folder: the latest (`.npz`), and those after each epoch (`beliefs.f16`)."""

import os
from pathlib import Path

import numpy as np

from crcl.runs.files import damaged, read_npz
from crcl.storage import could_not_save, write_arrays

JUDGED = "judged.npz"
"""Beliefs that a method came to where verdicts fix some of them: those of all pairs, as if there were no verdicts."""


def write_beliefs(path: Path, beliefs: np.ndarray, pairs: int) -> None:
    """Write the beliefs in the first `pairs` pairs, and in the decoys that follow them, if any."""
    if len(beliefs) > pairs:
        write_arrays(path, correspondence=beliefs[:pairs], decoys=beliefs[pairs:])
    else:
        write_arrays(path, correspondence=beliefs)


def read_beliefs(path: Path, *, pairs: int, decoys: int) -> tuple[np.ndarray, np.ndarray]:
    """The beliefs in the pairs (pairs,) and in the decoys (decoys,)."""
    names = ("correspondence", "decoys") if decoys else ("correspondence",)
    found = read_npz(path, *names)
    beliefs, of_decoys = found["correspondence"], found.get("decoys", np.empty(0, dtype=np.float32))
    for what, count, read in (("pairs", pairs, beliefs), ("decoys", decoys, of_decoys)):
        if read.dtype != np.float32 or read.shape != (count,) or not np.isfinite(read).all():
            raise damaged(path, f"not a belief for each of {count} {what}")
        if not ((read >= 0) & (read <= 1)).all():
            raise damaged(path, f"beliefs in {what} that are not from 0 to 1")
    return beliefs, of_decoys


def write_partners(path: Path, images: np.ndarray, beliefs: np.ndarray, pairs: int) -> None:
    """Write other images `(N, K)` for the first `pairs` captions, and the beliefs in these."""
    write_arrays(path, images=images[:pairs].astype(np.int64), beliefs=beliefs[:pairs].astype(np.float32))


def read_partners(path: Path, *, pairs: int, images: int) -> tuple[np.ndarray, np.ndarray]:
    """Other images for each caption, (pairs, K) int64, and the beliefs in these, (pairs, K) float32."""
    found = read_npz(path, "images", "beliefs")
    others, beliefs = found["images"], found["beliefs"]
    fits = others.dtype == np.int64 and beliefs.dtype == np.float32 and others.shape == beliefs.shape
    if not fits or others.ndim != 2 or len(others) != pairs:
        raise damaged(path, f"not images and beliefs for each of {pairs} captions")
    if not ((others >= 0) & (others < images)).all() or not ((beliefs >= 0) & (beliefs <= 1)).all():
        raise damaged(path, f"not rows of {images} images, or no beliefs from 0 to 1")
    return others, beliefs


def read_scores(path: Path, *, pairs: int) -> dict[str, np.ndarray]:
    """Scores of the pairs, followed by those of the decoys, by name. (pairs,) float32 each"""
    found = read_npz(path)
    if any(score.shape != (pairs,) or score.dtype != np.float32 for score in found.values()):
        raise damaged(path, f"not scores of {pairs} pairs and decoys")
    return found


def write_epoch(path: Path, epoch: int, correspondence: np.ndarray) -> None:
    """Write the beliefs after an epoch and truncate the file behind them; a repeated epoch gives the same file."""
    place = 2 * len(correspondence) * epoch
    try:
        with path.open("r+b" if path.is_file() else "w+b") as file:
            if file.seek(0, os.SEEK_END) < place:
                raise damaged(path, f"not the beliefs of {epoch} epochs")
            file.seek(place)
            file.write(correspondence.astype("<f2").tobytes())
            file.truncate()
    except OSError as error:
        raise could_not_save(path, error) from error


def read_epochs(path: Path, *, epochs: int, pairs: int) -> np.ndarray:
    """The beliefs after each epoch, (epochs, pairs) float32."""
    found = np.fromfile(path, dtype="<f2", count=epochs * pairs) if path.is_file() else np.empty(0, "<f2")
    if len(found) < epochs * pairs:
        raise damaged(path, f"not the beliefs of {epochs} epochs")
    return found.astype(np.float32).reshape(epochs, pairs)
