"""Figures of a run: how it learnt, how its beliefs sharpened, how it ranks, and how well it found the mismatches."""

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from crcl import metrics, plots
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.metrics import detection
from crcl.runs.folder import Run

NEEDED = {"learning_rate", "best", "beliefs"}
"""Optional entries of an epoch's record that the figures need."""


def history(run: Run) -> Iterator[tuple[str, Figure]]:
    """Curves of loss and scores, and a ridge plot of correspondences by epoch."""
    records = run.metrics()
    if not records:
        whence = "imported" if run.imported else "not trained for a whole epoch yet"
        raise InputError(f"{whence}: there are no epochs to draw", where=run.path)
    if not all(record.keys() >= NEEDED for record in records):
        what = f"damaged (a line lacks some of {', '.join(sorted(NEEDED))})"
        raise InputError(what, where=run.path / "metrics.jsonl")
    pieces = [record["piece"] for record in records]
    kept = [number for number, record in enumerate(records) if record["piece"] == pieces[-1] and record["best"]]
    yield (
        "curves",
        plots.curves(
            [record["loss"] for record in records],
            [record["dev"]["rsum"] for record in records],
            [record["learning_rate"] for record in records],
            pieces=pieces,
            best=kept[-1] if kept else None,
            title=_title(run),
        ),
    )
    yield "ridge", plots.ridge([record["beliefs"] for record in records], pieces=pieces)


def detected(run: Run, truth: np.ndarray, *, threshold: float) -> Figure | None:
    """Detection scores of the correspondences after each epoch; None if no pair is mismatched."""
    found = [detection(line, truth, threshold=threshold) for line in run.kept_beliefs()]
    scores = [score for score in found if score is not None]
    if not scores:
        return None
    auroc, precision, recall = ([getattr(score, name) for score in scores] for name in ("auroc", "precision", "recall"))
    pieces = [record["piece"] for record in run.metrics()]
    return plots.detected(auroc, precision, recall, pieces=pieces, threshold=threshold)


def ranks(sims: np.ndarray, pairs: Split, split: str) -> Figure:
    """Ranks of the correct answers on a split."""
    return plots.ranks(*metrics.ranks(sims, pairs.image_index), title=f"Ranks on {split}, {pairs.images:,} images")


def _title(run: Run) -> str:
    config = run.config
    return f"{config['method']} on {config['matcher']['name']}, seed {config['train']['seed']}"
