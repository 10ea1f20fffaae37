"""The training that goes before an audit of somebody's own data: features where there are none, then CRCL."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from crcl.auditing import plan as pipeline
from crcl.cli.preparing import extractor, note_skipped
from crcl.cli.screen import note, shown
from crcl.data.files import SHOWN
from crcl.data.pairs import Pairs
from crcl.errors import InputError
from crcl.features.extract import extract
from crcl.runs.restore import choose_device
from crcl.training import inputs, session


def train_first(
    source: Path,
    folder: Path,
    asked: dict[str, Any],
    *,
    preset: str | None,
    settings: list[str],
    model: str | None,
    images: Path | None,
    anew: bool,
) -> Pairs:
    """From data to a run in FOLDER/run; what is there is gone on with, if it is of the same data. Gives the data."""
    run = folder / "run"
    choose_device(asked["train.device"])
    first = pipeline.check(source, preset=preset, asked=asked, settings=settings)
    there = (run / "config.json").is_file()
    if not anew:
        pipeline.refuse_other(source, run)
    pairs = inputs.open_pairs(first, images=images)
    _note_empty(pairs.check())
    if not pairs.has_features or model is not None:
        wanted = pairs.wanted_images()
        how = extractor(model, device=asked["train.device"])
        with _ways_out(run, there=there and not anew):
            made = extract(wanted, how, folder / "features", overwrite=anew, settled=there and not anew, progress=shown)
        note_skipped(made, folder / "features")
        if images is not None:
            pipeline.remember_images(folder / "features" / "about.json", images)
        files = {"features": folder / "features" / "features.npy", "ids": folder / "features" / "ids.txt"}
        pairs = pairs.with_features(**files)
    elif pairs.is_table and asked["data.features"] is None:
        note(f"features are there already, beside {source}; --model makes others")
    chosen = pipeline.plan(pairs, preset=preset, asked=asked, settings=settings)
    with _ways_out(run, there=run.exists() and not anew):
        session.train(chosen, run, pairs=pairs, resume=not anew, overwrite=anew, progress=shown)
    return pairs


@contextmanager
def _ways_out(run: Path, *, there: bool) -> Iterator[None]:
    """What can be done where a run that is there cannot be gone on with."""
    try:
        yield
    except InputError as error:
        if not there:
            raise
        ways = InputError("is there already", where=run, hint="{overwrite} trains anew, another {folder} keeps both")
        raise InputError.several([error, ways]) from error


def _note_empty(rows: np.ndarray) -> None:
    if len(rows):
        shown = ", ".join(str(row + 1) for row in rows[:SHOWN]) + (", ..." if len(rows) > SHOWN else "")
        note(f"{len(rows):,} rows without an image or a caption are left out, and not judged: {shown}")
