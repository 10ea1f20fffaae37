"""What an audit of somebody's own data does besides: features where there are none, how to train, where images are."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crcl.auditing.report.thumbnails import FindImage, images_below
from crcl.config import Config
from crcl.data.pairs import Pairs
from crcl.data.sources import layout_of
from crcl.errors import InputError
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.storage import write_bytes
from crcl.training import session

_SUITED = {True: "embeddings", False: "cpu"}
"""Presets for data with vectors of captions, and for others."""
_SCHEDULE = ("train.pieces", "train.lr_update", "ledger.freeze_epochs")
_STEPS = 400  # of the frozen epochs, in which every pair is believed
_MOST_FROZEN = 10
_SMALL = 4000  # pairs below which batches are small, for more steps


def is_data(path: Path) -> bool:
    """Whether this looks like data to be trained on, and not like a run folder."""
    return layout_of(path) is not None


def check(data: Path, *, preset: str | None, asked: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """Refuse, before long work, settings that no training could have; gives those that say where the data is."""
    vectors = asked.get("data.text_features") is not None or layout_of(data) == "embeddings"
    return session.new_config(preset=preset or _SUITED[vectors], base=_base(data, asked), settings=settings)


def refuse_other(data: Path, run: Path) -> None:
    """Refuse to go on in a folder that holds the audit of other data."""
    if (run / "config.json").is_file():
        there = stored_config(Run.open(run)).data.path
        if Path(there).resolve() != data.resolve():
            raise InputError(
                f"{run}: of other data, {there}; name another folder by --folder, or replace it by --overwrite"
            )


def plan(pairs: Pairs, *, preset: str | None, asked: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """How to train for an audit: as suits kind and number of the pairs, unless a preset is asked for.

    Pieces and frozen epochs belong together: who sets one of them has the preset's others.
    """
    vectors, where = pairs.has_text_features, pairs.location
    located = {} if where is None else where.absolute().settings()
    base = located | {key: value for key, value in asked.items() if value is not None and key not in located}
    suited: dict[str, Any] = {}
    if preset is None and not any(setting.partition("=")[0].strip() in _SCHEDULE for setting in settings):
        suited = schedule_for(len(pairs.split("train")), vectors=vectors)
    return session.new_config(preset=preset or _SUITED[vectors], base=base | suited, settings=settings)


def _base(data: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: str(value.absolute()) if isinstance(value, Path) else value for key, value in asked.items()}
    return {"data.path": str(data.absolute())} | {key: value for key, value in given.items() if value is not None}


def schedule_for(pairs: int, *, vectors: bool) -> dict[str, Any]:
    """Batch size, frozen epochs and pieces for so many pairs.

    What is believed first comes from the end of the frozen epochs. These must be steps enough to have learnt something,
    and too few to know the wrong pairs by heart: some hundreds, however many pairs there are.
    """
    size = 256 if vectors and pairs >= 8 * _SMALL else 128 if pairs >= _SMALL else 32
    steps = max(pairs // size, 1)
    frozen = min(max(round(_STEPS / steps), 1), _MOST_FROZEN)
    last = 3 * frozen + (2 if vectors else 7)
    return {
        "train.batch_size": size,
        "ledger.freeze_epochs": frozen,
        "train.pieces": [frozen + 2, frozen + 2, last] if not vectors else [frozen + 1, last],
        "train.lr_update": max(round(0.75 * last), 1),
    }


def remember_images(about: Path, images: Path) -> None:
    """Add the folder of the images to what is known of their features."""
    known = json.loads(about.read_text("utf-8")) | {"folder": str(images.absolute())}
    write_bytes(about, (json.dumps(known, indent=1) + "\n").encode(), advice="make room and try again")


def image_finder(pairs: Pairs, images: Path | None) -> FindImage | None:
    """Where a report finds image files: in the folder given, in that of the features, or next to the table."""
    features = None if pairs.location is None else pairs.location.features
    folder = images or _remembered_images(features) or pairs.image_folder
    return None if folder is None else images_below(folder)


def _remembered_images(features: str | None) -> Path | None:
    """The folder of the images that features were made from, if it is known and still there."""
    if features is None:
        return None
    try:
        folder = Path(json.loads(Path(features).with_name("about.json").read_text("utf-8"))["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder if folder.is_dir() else None
