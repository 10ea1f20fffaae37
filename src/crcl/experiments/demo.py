"""The built-in demonstration: drawn scenes, 40 % of the training pairs mismatched, plain training, CRCL and relink."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crcl import plots
from crcl.auditing.findings import THRESHOLD, Findings, find, write_table
from crcl.config import load
from crcl.data import scenes
from crcl.data.pairs import Pairs
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.features.extractor import describe_extractor
from crcl.features.grid import PixelGrid
from crcl.metrics import Detection, Retrieval
from crcl.progress import SILENT, Progress
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.opening import open_scorer
from crcl.training.inputs import audited_pairs, open_pairs
from crcl.training.session import train

METHODS = {"infonce": "plain (InfoNCE)", "crcl": "CRCL", "relink": "relink"}
SETTINGS: dict[str, dict[str, Any]] = {
    "relink": {
        "train.pieces": [33],  # as many epochs as CRCL trains in all its pieces
        "train.lr_update": 25,
    }
}
"""Settings of single methods besides those of the preset."""
SHOWN = "crcl"
"""The method whose beliefs are drawn, and whose suspects are listed."""
RATE = 0.4
SHEET = 12  # worst pairs shown with their images
LEFT_BEHIND = {
    "suspects.csv": "every training pair, worst first",
    "beliefs.png": "retrieval of the methods, CRCL's beliefs of matched and mismatched pairs",
    "worst.png": "the worst pairs with their images",
}


@dataclass(frozen=True)
class Outcome:
    """The scores of one method on the scenes."""

    name: str
    retrieval: Retrieval
    detection: Detection | None
    findings: Findings


def demo(
    folder: str | Path,
    *,
    images: int = 2000,
    seed: int = 0,
    settings: tuple[str, ...] = (),
    progress: Progress = SILENT,
) -> list[Outcome]:
    """Draw scenes, mismatch 40 % of the pairs, train plainly, by CRCL and by relink, and compare.

    Data, runs and pictures are left in the folder; what it holds already is used again.

    Args:
        folder: Folder to work in.
        images: Training images to draw.
        seed: Seed of scenes, mismatches, weights and batches.
        settings: Settings of all trainings, as `key=value`.
        progress: Receives messages and the progress of trainings.
    """
    load(preset="demo", settings=settings)  # wrong settings are refused before anything is drawn
    folder = Path(folder)
    data = folder / "data"
    if not data.exists():
        _draw_scenes(data, images, seed, progress)
    elif (there := Pairs.of(data).split("train").images) != images:
        what = f"{there} training images are drawn there, not {images}"
        raise InputError(what, where=data, hint="give another folder")
    outcomes = [
        _outcome(method, name, data, folder, seed=seed, settings=settings, progress=progress)
        for method, name in METHODS.items()
    ]
    shown = outcomes[list(METHODS).index(SHOWN)]
    write_table(shown.findings.table(), folder / "suspects.csv")
    _draw(outcomes, shown, folder, data / "images")
    return outcomes


def _draw_scenes(data: Path, images: int, seed: int, progress: Progress) -> None:
    held_out, extractor = max(images // 10, 2), PixelGrid()
    with progress.task("drawing scenes") as advance:
        scenes.write(
            data,
            describe=extractor.prepare,
            about=describe_extractor(extractor),
            train=images,
            dev=held_out,
            test=held_out,
            seed=seed,
            progress=advance,
        )


def _outcome(
    method: str,
    name: str,
    data: Path,
    folder: Path,
    *,
    seed: int,
    settings: tuple[str, ...],
    progress: Progress,
) -> Outcome:
    base = {
        **SETTINGS.get(method, {}),
        "method": method,
        "data.path": str(data.absolute()),
        "noise.rate": RATE,
        "noise.seed": seed,
        "train.seed": seed,
    }
    config = load(preset="demo", base=base, settings=settings)
    progress.status(f"training {name}")
    opened = open_pairs(config)
    run = train(config, folder / method, pairs=opened, resume=True, progress=progress)
    _, _, scorer = open_scorer(run.path)
    pairs = audited_pairs(run, config, opened)
    threshold = config.own_threshold()
    found = find(
        pairs,
        run.load_ledger(),
        scorer.pair_similarities(pairs),
        threshold=THRESHOLD if threshold is None else threshold,
    )
    return Outcome(name, evaluate([scorer], opened.split("test")), found.detection(), found)


def _draw(outcomes: list[Outcome], shown: Outcome, folder: Path, images: Path) -> None:
    pairs: Split = shown.findings.pairs
    beliefs = shown.findings.correspondence
    auroc = shown.detection.auroc if shown.detection else None
    plots.save(
        plots.overview(
            [outcome.name for outcome in outcomes],
            [outcome.retrieval.rsum for outcome in outcomes],
            beliefs,
            pairs.truth,
            threshold=shown.findings.threshold,
            auroc=auroc,
            shown=shown.name,
            titles=("Retrieval", f"Beliefs of {shown.name} in the training pairs"),
        ),
        folder / "beliefs.png",
    )
    truth = pairs.truth if pairs.truth is not None else np.ones(len(pairs), dtype=bool)
    rows = [
        (images / pairs.image_ids[pairs.image_index[row]], pairs.captions[row], float(beliefs[row]), bool(truth[row]))
        for row in shown.findings.rows[:SHEET]
    ]
    plots.save(plots.sheet(rows, title=f"The worst pairs, as {shown.name} believes"), folder / "worst.png")
