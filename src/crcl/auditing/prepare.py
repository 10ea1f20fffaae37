"""Training a run to audit: features where the data has none, then a training with decoys."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crcl import distributed
from crcl.auditing.making import Models, wants_vectors, with_features
from crcl.auditing.scores.of_run import score_run
from crcl.auditing.thresholds import read_correspondences
from crcl.config import Config, given, keys_of
from crcl.data.decoys import KINDS, SHARE
from crcl.data.files import SHOWN
from crcl.data.pairs import Pairs
from crcl.errors import InputError
from crcl.features.sentences import LongCaptions
from crcl.matchers import MATCHERS
from crcl.methods import METHODS
from crcl.progress import SILENT, Progress
from crcl.retrieval.model import Model
from crcl.retrieval.opening import scoring_dtype
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.runs.restore import choose_device
from crcl.training import session
from crcl.training.verdicts import check_given

FEW = 4000
"""With fewer pairs than this, an audit fits the linear model alone."""
MANY = 150_000
"""With more pairs than this, an audit fits the linear model alone on vectors, if images can be searched; else it trains
by the preset's method, since comparing all captions with all images is slow."""
KINDS_FROM = 2000
"""From so many pairs on, an audit adds decoys of all kinds. A pair that a decoy is made of is not learnt from, which
matters where there are few."""
_SUITED = {True: "embeddings", False: "cpu"}
"""Presets for data with vectors of captions, and for other data."""
_SCHEDULE = ("train.pieces", "train.lr_update", "ledger.freeze_epochs")


@dataclass(frozen=True)
class Preparation:
    """How to train for an audit."""

    model: str | None = None
    """Model for the images, and for the captions if it has a text side; without one the built-in pixel grid."""
    text_model: str | None = None
    """Model for vectors of the captions, if it is another one."""
    long_captions: LongCaptions = "cut"
    """What becomes of captions that are longer than a model of vectors reads."""
    decoys: float = SHARE
    """Known mismatches to add, as a share of the pairs."""
    decoy_kinds: list[str] | None = None
    """Kinds of them; None: those of the settings."""
    verdicts: str | None = None
    """A run folder or a file of verdicts, which the training keeps to."""
    preset: str | None = None
    """The preset of the training; by default chosen by the kind and the number of the pairs."""
    seed: int = 0
    device: str = "auto"
    memory: float | None = None
    dtype: str | None = None
    """Number type of matrix products in training and scoring; None: the setting, and float32."""
    settings: tuple[str, ...] = ()
    """`key=value` settings of the training."""
    quick: bool = False
    """Fit the linear model alone, whatever the preset and the settings say about networks and their training."""
    overwrite: bool = False
    """Train again in place of an earlier audit, instead of resuming it."""

    @property
    def models(self) -> Models:
        """The models that features are made by."""
        return Models(self.model, self.text_model, self.long_captions)

    def matcher(self) -> str | None:
        """The matcher that was chosen, by name or with a preset; None if the data decides."""
        named = given(self.settings).get("matcher.name")
        if self.preset is None:
            return None if named is None else str(named)
        return session.new_config(preset=self.preset, base=self.base(), settings=self.settings).matcher.name

    def base(self) -> dict[str, Any]:
        """These options as settings of a config."""
        given = {"train.seed": self.seed, "train.device": self.device, "train.memory": self.memory}
        given |= {"train.precision": self.dtype}
        given |= {"data.decoys": self.decoys, "data.decoy_kinds": self.decoy_kinds, "data.verdicts": self.verdicts}
        return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True)
class Prepared:
    """What was trained for an audit."""

    run: Run
    pairs: Pairs
    """The pairs with their features."""
    quick: Run | None = None
    """The linear model that was fitted before a network was trained, on the same pairs and decoys."""


def prepare(pairs: Pairs, folder: Path, how: Preparation, *, progress: Progress = SILENT) -> Prepared:
    """Make features if needed and train, all in `folder`; an interrupted call is resumed.

    Several processes share the work.

    The run is in `folder/run`, and what was fitted without a network, if more is trained, in `folder/quick`.
    """
    choose_device(how.device)
    scoring_dtype(how.dtype)
    pairs = pairs.without_empty() if pairs.is_table else pairs
    vectors = wants_vectors(pairs, how.models, how.matcher(), progress)
    planned = plan_training(pairs, how, vectors=vectors)  # wrong settings are refused before long work
    path = folder / ("quick" if how.quick else "run")
    resumes = (path / "config.json").is_file() and not how.overwrite
    looked = (folder / "quick").exists()
    if resumes:
        _refuse_other(pairs, path)
    else:
        check_given(planned)
    distributed.meet()  # none writes before all have looked
    for note in pairs.notes:
        progress.note(note)
    _report_empty(pairs.check(), progress)
    with distributed.first_process_first():
        pairs = pairs.save(folder / "data", overwrite=how.overwrite)
    with _explain_existing(path, exists=resumes):
        pairs = with_features(
            pairs,
            folder / "features",
            how.models,
            vectors=vectors,
            device=how.device,
            settled=resumes,
            overwrite=how.overwrite,
            progress=progress,
        )
    count = len(pairs.split("train"))
    config = plan_training(pairs, how, vectors=vectors, pairs=count)
    if how.preset is None and pairs.has_text_features and not how.quick:
        _report_slower(given(how.settings), count, config.method, progress)
    quick = None
    if _looks_first(config, count) and not (resumes and not looked):
        quick = _quick_look(pairs, folder / "quick", how, vectors=vectors, count=count, progress=progress)
    with _explain_existing(path, exists=path.exists() and not how.overwrite):
        run = session.train(
            config, path, pairs=pairs, resume=not how.overwrite, overwrite=how.overwrite, progress=progress
        )
    return Prepared(run, pairs, quick)


def _looks_first(config: Config, pairs: int) -> bool:
    """Whether a linear model is fitted before this training: where decoys can tell what the training adds."""
    closed = MATCHERS[config.matcher.name].closed_form
    return not closed and config.data.decoys > 0 and METHODS[_closed_form()].able(pairs)


def _quick_look(pairs: Pairs, path: Path, how: Preparation, *, vectors: bool, count: int, progress: Progress) -> Run:
    """Fit the linear model, score the pairs, and tell what that finds before anything longer begins."""
    config = plan_training(pairs, replace(how, quick=True), vectors=vectors, pairs=count)
    exists = (path / "config.json").is_file()
    with _explain_existing(path, exists=exists and not how.overwrite):
        run = session.train(
            config, path, pairs=pairs, resume=not how.overwrite, overwrite=how.overwrite, progress=progress
        )
    score_run(Model.open(run.path, device=how.device, memory=how.memory, dtype=how.dtype), pairs, progress=progress)
    found = read_correspondences(run)
    if found.estimate is None:
        progress.note(f"quick look: {found.unsure or 'no estimate'}; a network is trained now")
    else:
        rate, low, high = (100 * value for value in (found.estimate.rate, found.estimate.low, found.estimate.high))
        progress.note(
            f"quick look: an estimated {rate:.1f} % ({low:.1f}–{high:.1f}) of {len(found.estimate.correspondence):,} "
            "pairs are mismatched; a network is trained now"
        )
    return run


def _report_empty(rows: np.ndarray, progress: Progress) -> None:
    if len(rows):
        shown = ", ".join(str(row + 1) for row in rows[:SHOWN]) + (", ..." if len(rows) > SHOWN else "")
        told = f"{len(rows):,} rows without an image or a caption are left out and not judged"
        progress.note(f"{told}: {shown} (the first is 1)")


def _report_slower(settings: Mapping[str, Any], pairs: int, method: str, progress: Progress) -> None:
    """Report that a package is missing with which so many pairs of vectors would be judged sooner."""
    if pairs > MANY and not {"method", "matcher.name"} & set(settings) and not METHODS[_closed_form()].able(pairs):
        progress.note(
            f"{pairs:,} pairs are trained by {method}; {_closed_form()} takes less time and finds the images that "
            "captions belong to, but needs the package faiss: pip install 'crcl[search]'"
        )


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


def plan_training(data: Pairs, how: Preparation, *, pairs: int | None = None, vectors: bool | None = None) -> Config:
    """The config of the training, suited to so many training pairs unless a preset is given.

    Args:
        data: The pairs.
        how: How to train.
        pairs: The number of training pairs, if known.
        vectors: Whether captions are read as vectors; by default if they have any.
    """
    where, vectors = data.location, data.has_text_features if vectors is None else vectors
    base = how.base() | ({} if where is None else where.absolute().settings())
    if vectors and how.text_model is not None and not how.models.aligned:
        base["matcher.aligned"] = False  # the cosine of vectors of two models means nothing
    if how.decoy_kinds is None and pairs is not None and pairs >= KINDS_FROM:
        base["data.decoy_kinds"] = list(KINDS)
    if how.quick:
        base |= {"method": _closed_form(), "matcher.name": _linear_matcher(vectors=vectors)}
        return session.new_config(preset=_SUITED[vectors], base=base, settings=_of_linear_model(how.settings))
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
    method = _closed_form()
    linear = few or (many and vectors and METHODS[method].able(pairs or 0))
    chosen: dict[str, Any] = {} if many and not linear else {"method": method}
    if linear and settings.get("method", method) == method:
        chosen["matcher.name"] = _linear_matcher(vectors=vectors)
    if many and not set(settings) & set(_SCHEDULE):  # enough steps in fewer epochs
        pieces = [2, 5] if vectors else [3, 3, 10]
        chosen |= {"ledger.freeze_epochs": 1, "train.pieces": pieces, "train.lr_update": round(0.75 * pieces[-1])}
    return chosen


def _of_linear_model(settings: Sequence[str]) -> tuple[str, ...]:
    """The settings that say something about a linear model: of the data, its noise, the seed, and its own method."""
    sections = {"data", "noise", *METHODS[_closed_form()].sections}
    keys = [keys_of([setting]) for setting in settings]
    return tuple(
        setting
        for setting, named in zip(settings, keys, strict=True)
        if all(key.partition(".")[0] in sections or key == "train.seed" for key in named)
    )


def _linear_matcher(*, vectors: bool) -> str:
    return next(name for name, record in MATCHERS.items() if record.closed_form and record.reads_vectors == vectors)


def _closed_form() -> str:
    """The method that fits linear models."""
    return next(name for name, record in METHODS.items() if record.fits_closed_form)
