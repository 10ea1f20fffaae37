"""Helpers of the public functions: open runs and data, convert settings, choose who receives progress."""

import json
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from crcl.config import Config
from crcl.data.pairs import Pairs
from crcl.data.sources import layout_of
from crcl.errors import InputError
from crcl.progress import SILENT, Progress
from crcl.retrieval.model import Model
from crcl.runs.folder import Run
from crcl.terminal import Terminal, is_follower
from crcl.training.inputs import moved_data, open_run_data

AnyRun = Run | Model | str | Path
"""A run, opened or as a path; the folder of an audit stands for the run in it."""
Settings = Mapping[str, Any] | Sequence[str] | None
"""Settings of a training: a mapping of dotted keys, or `key=value` texts; `crcl.info()` lists all keys."""
Shown = bool | Progress
"""True shows progress on the terminal, False shows none; a `Progress` of your own receives it."""
CANDIDATES = 100
"""How many candidates a second run ranks again, if nothing else is said."""
_WITHIN = ("run", "quick")  # runs in the folder of an audit; where there are both, the first one is meant


def receiver(shown: Shown) -> Progress:
    """The object that receives progress and messages; of several processes, the first one shows them."""
    if is_follower():
        return SILENT
    return shown if isinstance(shown, Progress) else Terminal() if shown else SILENT


def pairs_of(data: Any, *, images: Path | None = None) -> Pairs:
    """The pairs themselves, or read from anything that `crcl.read` takes."""
    if isinstance(data, Pairs):
        return data if images is None else data.with_images(images)
    return Pairs.of(data, images=images)


def is_run(data: Any) -> bool:
    """Whether this is a run rather than data: an existing path that has no layout of data must be a run."""
    if isinstance(data, Run | Model):
        return True
    return isinstance(data, str | Path) and bool(str(data)) and layout_of(data) is None and Path(data).exists()


def path_of(run: AnyRun) -> Path:
    """The folder of a run; of the folder of an audit, that of the run in it."""
    if isinstance(run, Run | Model):
        return run.run.path if isinstance(run, Model) else run.path
    folder = Path(run)
    if (folder / "config.json").exists():
        return folder
    return next((folder / name for name in _WITHIN if (folder / name / "config.json").exists()), folder)


def verdicts_path(verdicts: AnyRun | None) -> str | None:
    """The run folder or the file of verdicts as a setting of a training."""
    return None if verdicts is None else str(path_of(verdicts).absolute())


def open_model(
    run: AnyRun, *, device: str, memory: float | None, dtype: str | None = None, progress: Progress = SILENT
) -> Model:
    """The matcher of a run; a loaded one is returned as it is."""
    if isinstance(run, Model):
        return run
    model = Model.open(path_of(run), device=device, memory=memory, dtype=dtype)
    if note := model.scorer.slower:
        progress.note(note)
    return model


def how_many_candidates(candidates: int | None, rerank: Any) -> int:
    """How many candidates the second run ranks again; refuses a number of them without a second run."""
    if candidates is None:
        return CANDIDATES
    if not rerank:
        raise InputError("there is no second run to rank them again", where="candidates", hint="name it as {rerank}")
    check_whole(candidates, "candidates")
    return candidates


def check_whole(number: Any, name: str) -> None:
    """Refuse a value of the parameter `name` that is no whole number."""
    if isinstance(number, bool) or not isinstance(number, Integral):  # numpy has integers of its own
        raise InputError(f"{number!r}: expected a whole number", where=name)


def run_data(config: Config, data: Any, *, images: Path | None = None) -> Pairs:
    """The data of a run as its config says, or as given if it has moved; a path is read with the run's columns."""
    if data is None:
        return open_run_data(config, images=images)
    return moved_data(config, data, images=images) if isinstance(data, str | Path) else pairs_of(data, images=images)


def as_settings(settings: Settings) -> tuple[str, ...]:
    """Settings as `key=value` texts."""
    if settings is None:
        return ()
    if isinstance(settings, Mapping):
        return tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())
    return (settings,) if isinstance(settings, str) else tuple(settings)


def as_names(names: str | Sequence[str] | None) -> list[str] | None:
    """Names from a list, or from a text in which commas separate them."""
    if names is None:
        return None
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
