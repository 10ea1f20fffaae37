"""What the functions of the front door share: opening runs and data, choosing who receives progress."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crcl.config import Config
from crcl.data.pairs import Pairs
from crcl.data.sources import layout_of
from crcl.progress import SILENT, Progress
from crcl.retrieval.model import Model
from crcl.runs.folder import Run
from crcl.terminal import Terminal
from crcl.training.inputs import data_of

AnyRun = Run | Model | str | Path
"""A run, opened or as a path."""
Settings = Mapping[str, Any] | Sequence[str] | None
"""Settings of a training: a mapping of dotted keys, or `key=value` texts; `crcl info` lists all keys."""
Shown = bool | Progress
"""True shows progress on the terminal, False shows none; a `Progress` of your own receives it."""


def receiver(shown: Shown) -> Progress:
    """Who receives progress and messages."""
    return shown if isinstance(shown, Progress) else Terminal() if shown else SILENT


def pairs_of(data: Any, *, images: Path | None = None) -> Pairs:
    """Pairs as they are, or read from anything that `crcl.read` takes."""
    if isinstance(data, Pairs):
        return data if images is None else data.with_images(images)
    return Pairs.of(data, images=images)


def is_run(data: Any) -> bool:
    """Whether this is a run, and not data: data is recognised by its layout, anything else on disk must be a run."""
    if isinstance(data, Run | Model):
        return True
    return isinstance(data, str | Path) and layout_of(data) is None and Path(data).exists()


def path_of(run: AnyRun) -> Path:
    """The folder of a run."""
    return run.run.path if isinstance(run, Model) else run.path if isinstance(run, Run) else Path(run)


def open_model(run: AnyRun, *, device: str, memory: float | None) -> Model:
    """The matcher of a run; one that is loaded already is used as it is."""
    return run if isinstance(run, Model) else Model.open(path_of(run), device=device, memory=memory)


def run_data(config: Config, data: Any, *, images: Path | None = None) -> Pairs:
    """The data of a run: as its config says, or as given because it has moved."""
    return pairs_of(data, images=images) if data is not None else data_of(config, images=images)
