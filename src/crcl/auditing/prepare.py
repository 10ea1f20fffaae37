"""Training a run to audit: features where the data has none, then a training with decoys."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crcl.config import Config, given
from crcl.data.decoys import SHARE
from crcl.data.files import SHOWN
from crcl.data.pairs import Pairs
from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.files import Files
from crcl.errors import InputError
from crcl.features.choice import choose_extractor
from crcl.features.extract import Extracted, extract
from crcl.features.provenance import ABOUT
from crcl.matchers import MATCHERS
from crcl.methods import METHODS
from crcl.progress import SILENT, Progress
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.runs.restore import choose_device
from crcl.storage import write_bytes
from crcl.training import session

FEW = 4000
"""With fewer pairs than this, an audit fits the linear model alone."""
MANY = 150_000
"""With more pairs than this, an audit trains by the preset's method: comparing all captions with all images is slow."""
_SUITED = {True: "embeddings", False: "cpu"}
"""Presets for data with vectors of captions, and for other data."""
_SCHEDULE = ("train.pieces", "train.lr_update", "ledger.freeze_epochs")


@dataclass(frozen=True)
class Preparation:
    """How to train for an audit."""

    model: str | None = None
    """Vision model for the images; without one the built-in pixel grid."""
    decoys: float = SHARE
    """Known mismatches to add, as a share of the pairs."""
    preset: str | None = None
    """The preset of the training; by default chosen by the kind and the number of the pairs."""
    seed: int = 0
    device: str = "auto"
    memory: float | None = None
    settings: tuple[str, ...] = ()
    """`key=value` settings of the training."""
    overwrite: bool = False
    """Train again in place of an earlier audit, instead of resuming it."""

    def base(self) -> dict[str, Any]:
        """These options as settings of a config."""
        given = {"train.seed": self.seed, "train.device": self.device, "train.memory": self.memory}
        given["data.decoys"] = self.decoys
        return {key: value for key, value in given.items() if value is not None}


def prepare(pairs: Pairs, folder: Path, how: Preparation, *, progress: Progress = SILENT) -> tuple[Run, Pairs]:
    """Make features if needed and train, all in `folder`; an interrupted call is resumed.

    Returns:
        The run in `folder/run`, and the pairs with their features.
    """
    choose_device(how.device)
    pairs = pairs.without_empty() if pairs.is_table else pairs
    plan_training(pairs, how)  # wrong settings are refused before long work
    path = folder / "run"
    resumes = (path / "config.json").is_file() and not how.overwrite
    if resumes:
        _refuse_other(pairs, path)
    for note in pairs.notes:
        progress.note(note)
    _report_empty(pairs.check(), progress)
    pairs = pairs.save(folder / "data")
    with _explain_existing(path, exists=resumes):
        pairs = with_features(pairs, folder / "features", how, settled=resumes, progress=progress)
    config = plan_training(pairs, how, pairs=len(pairs.split("train")))
    with _explain_existing(path, exists=path.exists() and not how.overwrite):
        run = session.train(
            config, path, pairs=pairs, resume=not how.overwrite, overwrite=how.overwrite, progress=progress
        )
    return run, pairs


def with_features(pairs: Pairs, folder: Path, how: Preparation, *, settled: bool, progress: Progress) -> Pairs:
    """The pairs with features of their images; makes them in `folder` if there are none or a model is given."""
    if pairs.has_features and how.model is None:
        if pairs.is_table and pairs.location is not None and pairs.location.features is None:
            progress.note(f"using the features beside {pairs.name}; name a vision model to make others")
        return pairs
    extractor = choose_extractor(how.model, device=how.device, progress=progress)
    made = extract(
        pairs.wanted_images(), extractor, folder, overwrite=how.overwrite, settled=settled, progress=progress
    )
    report_skipped(made, folder, progress)
    if isinstance(pairs.pictures, Files) and pairs.pictures.folder is not None:
        _record_image_folder(folder / ABOUT, pairs.pictures.folder)
    return pairs.with_features(folder / "features.npy", folder / "ids.txt")


def finds_images(pairs: Pairs) -> bool:
    """Whether image files of the pairs exist, so that features can be made."""
    for wanted in pairs.wanted_images()[:SHOWN] if pairs.pictures is not None else ():
        with suppress(UnusableError):
            wanted.read()
            return True
    return False


def report_skipped(made: Extracted, folder: Path, progress: Progress) -> None:
    """Report images that could not be used, and where the reasons are."""
    if made.skipped:
        progress.note(
            f"{len(made.skipped):,} images were skipped, so training leaves their pairs out; see "
            f"{folder / 'skipped.csv'} for the reasons"
        )


def _report_empty(rows: np.ndarray, progress: Progress) -> None:
    if len(rows):
        shown = ", ".join(str(row + 1) for row in rows[:SHOWN]) + (", ..." if len(rows) > SHOWN else "")
        progress.note(f"{len(rows):,} rows without an image or a caption are left out and not judged: {shown}")


def _refuse_other(pairs: Pairs, run: Path) -> None:
    """Refuse to resume in a folder that holds the audit of other data."""
    there = stored_config(Run.open(run)).data.path
    if pairs.location is not None and Path(there).resolve() != Path(pairs.location.path).resolve():
        raise InputError(
            f"holds the audit of other data, {there}",
            where=run,
            hint="name another {folder}, or pass {overwrite} to replace it",
        )


@contextmanager
def _explain_existing(run: Path, *, exists: bool) -> Iterator[None]:
    """Add what to do to errors about an earlier audit that cannot be resumed."""
    try:
        yield
    except InputError as error:
        if not exists:
            raise
        ways = InputError(
            "exists already",
            where=run,
            hint="audit this run as it is, pass {overwrite} to train again, or another {folder} to keep both",
        )
        raise InputError.several([error, ways]) from error


def plan_training(data: Pairs, how: Preparation, *, pairs: int | None = None) -> Config:
    """The config of the training, suited to so many training pairs unless a preset is given."""
    where, vectors = data.location, data.has_text_features
    base = how.base() | ({} if where is None else where.absolute().settings())
    if how.preset is None:
        base |= suited(given(how.settings), pairs=pairs, vectors=vectors)
    return session.new_config(preset=how.preset or _SUITED[vectors], base=base, settings=how.settings)


def suited(settings: Mapping[str, Any], *, pairs: int | None, vectors: bool) -> dict[str, Any]:
    """Method, matcher and schedule for so many pairs, as far as the given settings leave them open.

    Args:
        settings: The given settings, by key.
        pairs: The number of training pairs, if known.
        vectors: Whether captions have vectors.
    """
    few, many = pairs is not None and pairs < FEW, pairs is not None and pairs > MANY
    method = next(name for name, record in METHODS.items() if record.fits_closed_form)
    chosen: dict[str, Any] = {} if many else {"method": method}
    if few and settings.get("method", method) == method:
        chosen["matcher.name"] = next(
            name for name, record in MATCHERS.items() if record.closed_form and record.reads_vectors == vectors
        )
    if many and not set(settings) & set(_SCHEDULE):  # enough steps in fewer epochs
        pieces = [2, 5] if vectors else [3, 3, 10]
        chosen |= {"ledger.freeze_epochs": 1, "train.pieces": pieces, "train.lr_update": round(0.75 * pieces[-1])}
    return chosen


def _record_image_folder(about: Path, images: Path) -> None:
    """Record the folder of the images beside their features, for later reports."""
    known = json.loads(about.read_text("utf-8")) | {"folder": str(images.absolute())}
    write_bytes(about, (json.dumps(known, indent=1) + "\n").encode(), advice="make room and try again")


def recorded_image_folder(features: str | None) -> Path | None:
    """The folder of the images that features were made from, if it is recorded and still exists."""
    if features is None:
        return None
    try:
        folder = Path(json.loads(Path(features).with_name(ABOUT).read_text("utf-8"))["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder if folder.is_dir() else None
