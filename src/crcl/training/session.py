"""Trains a run folder from a config: a new one, a resumed one, or one that starts from the matcher of another run."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl import distributed
from crcl.config import Config, differences, file_keys, load, to_dict
from crcl.data.pairs import Pairs
from crcl.errors import InputError, Interrupted
from crcl.features.provenance import read_about
from crcl.matchers import MATCHERS, Ensemble, Matcher
from crcl.matchers.clip import Pretrained
from crcl.matchers.kernels.products import imitated, product_type
from crcl.methods import methods_of
from crcl.metrics import Retrieval
from crcl.progress import SILENT, Progress
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.opening import open_scorer
from crcl.retrieval.scoring import Scorer
from crcl.retrieval.shares import choose_shares
from crcl.runs.describe import networks_of, stored_config
from crcl.runs.folder import Learnt, Run
from crcl.runs.overwriting import refuse_existing
from crcl.runs.restore import choose_device
from crcl.training.build import prepare, schedule
from crcl.training.checks import require_memory
from crcl.training.inputs import read_data, with_noise
from crcl.training.loop import fit
from crcl.training.notes import data_notes
from crcl.training.training_data import TrainingData
from crcl.training.verdicts import carry_over, report_newer


def changeable_keys() -> set[str]:
    """Keys that do not affect the result, e.g. paths and the device, and so may differ when a run is resumed."""
    data = {f"data.{key}" for key in ("path", "image_column", "caption_column", "skip_empty", "layout")}
    return data | {f"train.{key}" for key in ("device", "memory", "workers", "save_minutes")} | set(file_keys())


def new_config(**given: Any) -> Config:
    """The config of a new run. If it starts from another run, the settings of the matcher default to that run's.

    `given` are the arguments of `config.load`.
    """
    config = load(**given)
    if config.train.start is None:
        return config
    stored = stored_config(Run.open(config.train.start))
    hidden = stored.record.meta
    same = load(
        base={
            "matcher": to_dict(stored)["matcher"],
            "data.standardize": stored.data.standardize,
            **({} if hidden is None else {hidden: stored.get(hidden)}),
        }
    )
    return load(over=same, **given)


def resumed_config(path: str | Path, **given: Any) -> Config:
    """The config of a run to resume; refuses given settings that would change the result.

    `given` are the arguments of `config.load`.
    """
    run = Run.open(path)
    config = load(over=stored_config(run), **given)
    refuse_changes(run, config)
    return config


def refuse_changes(run: Run, config: Config) -> None:
    """Refuse to resume a run with settings that would change its result."""
    if run.imported:
        raise InputError(
            f"imported from {run.imported}, so there is no training to resume",
            where=run.path,
            hint="train it further into a new folder: {train()} with {start}",
        )
    changed, allowed = differences(stored_config(run), config), changeable_keys()
    problems = [_differs(key, was, now) for key, (was, now) in changed.items() if key not in allowed]
    if problems:
        raise InputError.several(
            problems, what="a run can only be resumed with the settings it has, but", where=run.path
        )


def _differs(key: str, was: Any, now: Any) -> InputError:
    return InputError(f"the run has {was!r}, now given {now!r}", where=key)


def train(
    config: Config,
    path: str | Path,
    *,
    pairs: Pairs | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Run:
    """Train a run folder as the config says; `pairs` is the data that the config names, if it is already open."""
    if resume and overwrite:
        raise InputError("resume the run or replace it, not both", hint="{resume} or {overwrite}")
    choose_device(config.train.device)  # refuses a missing device before the folder is created
    alone = config.record.fits_closed_form and MATCHERS[config.matcher.name].closed_form
    with distributed.processes(), distributed.first_process_first() if alone else nullcontext():  # there are no batches
        return _train(config, path, pairs=pairs, resume=resume, overwrite=overwrite, progress=progress)


def _train(
    config: Config, path: str | Path, *, pairs: Pairs | None, resume: bool, overwrite: bool, progress: Progress
) -> Run:
    with distributed.first_process_first():
        _refuse_undivided(config)
        run, data = _open(
            config,
            path,
            pairs=pairs,
            resume=resume or not distributed.is_first(),
            overwrite=overwrite,
            progress=progress,
        )
    device = choose_device(config.train.device)
    for line in [*data_notes(data, config), imitated(device, product_type(device, config.train.precision))]:
        if line:
            progress.note(line)
    try:
        with run.locked() if distributed.is_first() else nullcontext():
            _fit(config, data, run, progress)
            distributed.wait_for_first()
    except KeyboardInterrupt:  # outside of a training step, or the second one within it: the run can be resumed
        raise Interrupted from None
    return run


def _refuse_undivided(config: Config) -> None:
    if distributed.together() > 1 and config.record.undivided:
        raise InputError(
            f"several processes cannot share a training by {config.method}: {config.record.undivided}",
            where="method",
            hint="train it in one process, without torchrun",
        )


def _open(
    config: Config, path: str | Path, *, pairs: Pairs | None, resume: bool, overwrite: bool, progress: Progress
) -> tuple[Run, TrainingData]:
    """The run folder, created or opened to resume it, and its data."""
    if resume and (Path(path) / "config.json").is_file():
        run = Run.open(path)
        refuse_changes(run, config)
        data = read_data(config, run, pairs=pairs)
        report_newer(config, data.known, data.clean, with_noise(data.clean, data.noise), progress)
    else:
        refuse_existing(path, overwrite=overwrite)
        origin = None if config.train.start is None else open_starting_run(config, config.train.start)
        published = open_published(config) if origin is None else None
        data = read_data(config, pairs=pairs, start=origin, published=published)
        require_memory(config, data.sizes, data.model)
        start = None if published is None else Learnt(published.weights)
        if origin is not None:
            start = Learnt(_network_weights(origin), _first_beliefs(config, origin, data, progress))
        run = Run.create(
            path,
            config=to_dict(config),
            sizes=data.sizes | {"networks": len(config.members())},
            fingerprint=data.fingerprint,
            features=data.clean.features_digest(),
            made=read_about(data.clean.source, config.data.text_features),
            vocabulary=data.vocabulary,
            model=data.model,
            noise=data.noise,
            trusted=data.trusted,
            decoys=data.drawn,
            known=None if data.known is None else data.known.to_json(),
            standardize=data.standardize,
            start=start,
            overwrite=overwrite,
        )
        if data.given is not None:
            carry_over(data.given, run)
    return run, data


def open_published(config: Config) -> Pretrained | None:
    """Load the published model that the matcher starts from; None for matchers that start from fresh weights."""
    name = config.matcher.name
    load_published = MATCHERS[name].published
    if load_published is None:
        if config.matcher.model is not None:
            pretrained = [record.name for record in MATCHERS.values() if record.pretrained]
            raise InputError(
                f"matcher {name} starts from fresh weights",
                where="matcher.model",
                hint=f"give {{matcher}} {' or '.join(pretrained)}, or leave it out",
            )
        return None
    if config.matcher.model is None:
        raise InputError(
            f"matcher {name} starts from a published model", hint="give the setting matcher.model=FOLDER (or hub name)"
        )
    found: Pretrained = load_published(config.matcher.model)
    return found


def open_starting_run(config: Config, path: str) -> Run:
    """Open the run to start from; refuses one with another matcher than the config's."""
    run, stored, _ = open_scorer(path, device="cpu")  # also checks that the weights fit the run's config
    there, networks, hidden = networks_of(run, stored), config.record.networks, stored.record.meta
    meta, kept = hidden is not None, {"data.standardize", hidden}
    problems = [
        _differs(key, was, now)
        for key, (was, now) in differences(stored, config).items()
        if key.startswith("matcher.") or key in kept
    ]
    fitting = methods_of(there, meta=meta)
    if there != networks:
        problems.append(
            InputError(
                f"the run has {there} networks, {config.method} trains {networks}",
                where="method",
                hint=f"methods that train {there}: {', '.join(fitting) or 'there is none'}",
            )
        )
    elif config.method not in fitting:
        problems.append(
            InputError(
                f"the run's networks have {'a' if meta else 'no'} meta-network, those of {config.method} have "
                f"{'none' if meta else 'one'}",
                where="method",
                hint=f"methods that can start from the run: {', '.join(fitting)}",
            )
        )
    if config.data.vocab is not None:
        given = f"the vocabulary is the run's, now given {config.data.vocab!r}"
        problems.append(InputError(given, where="data.vocab", hint="leave it out"))
    if problems:
        raise InputError.several(problems, what="a training that starts from it keeps its matcher, but", where=run.path)
    return run


def _network_weights(run: Run) -> dict[str, Tensor]:
    """The weights of a run's networks, without those of a matcher that its method fitted besides."""
    networks, weights = networks_of(run, stored_config(run)), run.load_matcher()
    if networks == run.networks:
        return weights
    own = tuple(f"members.{number}." for number in range(networks))
    kept = {name: value for name, value in weights.items() if name.startswith(own)}
    return {name.removeprefix(own[0]) if networks == 1 else name: value for name, value in kept.items()}


def _first_beliefs(config: Config, start: Run, data: TrainingData, progress: Progress) -> np.ndarray | None:
    """The correspondences of the run to start from, if it has the same pairs and decoys; None: all start at 1."""
    if not config.record.starts_from_beliefs:
        return None
    if not start.has_beliefs:
        progress.note(f"{start.path} has no correspondences: those of all pairs start at 1")
        return None
    was, now = start.drawn_decoys(), data.drawn
    if (was is None) != (now is None) or (was is not None and not was.equals(now)):
        progress.note(
            f"{start.path} has other decoys or none, but decoys must start as pairs do: all correspondences start at 1"
        )
        return None
    same = start.fingerprint == data.fingerprint
    judged = with_noise(data.clean, start.noise()) if same else None
    if judged is None or (judged.image_index != data.train.image_index[: len(judged)]).any():
        progress.note(
            f"the correspondences of {start.path} are of other pairs{', with other mismatches' if same else ''}: "
            "all start at 1"
        )
        return None
    return np.concatenate([start.load_ledger(), start.load_decoy_ledger()])


def _fit(config: Config, data: TrainingData, run: Run, progress: Progress) -> None:
    method, batches = prepare(config, data, start=run.load_start())

    def validate(matcher: Matcher) -> Retrieval:
        dtype = torch.bfloat16 if config.train.precision == "bfloat16" else torch.float32
        scorer = Scorer(matcher, data.vocabulary, data.standardize, memory=config.train.memory, dtype=dtype)
        if isinstance(matcher, Ensemble) and matcher.shares is not None:
            return choose_shares(matcher, scorer, data.dev, data.dev_tokens)
        return evaluate([scorer], data.dev, tokens=data.dev_tokens)

    progress.training_started(run.path.name, config.schedule_pieces(), config.record.networks)
    fit(
        method,
        batches,
        schedule(config),
        validate=validate,
        seed=config.train.seed,
        decoys=0 if data.decoys is None else len(data.decoys),
        run=run,
        save_minutes=config.train.save_minutes,
        progress=progress,
    )
