"""Short descriptions of data and of run folders."""

from pathlib import Path
from typing import Any

import numpy as np

from crcl.config import Config, from_dict
from crcl.data.pairs import Pairs
from crcl.data.sources import layout_of
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.matchers import MATCHERS
from crcl.progress import Progress
from crcl.runs.folder import Run

Fact = tuple[str, str]


def describe(path: str | Path | Pairs) -> list[Fact]:
    """Facts about a run folder or about data, in the order to show them."""
    if isinstance(path, Pairs):
        return describe_pairs(path)
    path = Path(path)
    if (path / "config.json").is_file():
        return describe_run(Run.open(path))
    if path.is_dir() and layout_of(path) is None:
        raise InputError(
            "neither a run folder nor data (a folder with {split}_ims.npy files or of embeddings, or a table)",
            where=path,
        )
    return describe_pairs(Pairs.of(path))


def describe_pairs(pairs: Pairs) -> list[Fact]:
    """Facts about data: counts and shapes of each split."""
    facts: list[Fact] = [("data", pairs.name)]
    for name in pairs.splits:
        facts += [(name, line) for line in describe_split(pairs.split(name))]
    return facts


def describe_split(pairs: Split) -> list[str]:
    """Counts and shapes of one split."""
    _, regions, size = pairs.features.shape
    per_image = np.bincount(pairs.image_index, minlength=pairs.images)
    low, high = int(per_image.min()), int(per_image.max())
    each = str(low) if low == high else f"{low} to {high}"
    words = np.array([len(caption.split()) for caption in pairs.captions])
    texts = pairs.text_features
    vectors = [] if texts is None else [f"vectors of captions of {texts.shape[1]} numbers, {texts.dtype}"]
    return [
        f"{len(pairs):,} pairs, {pairs.images:,} images, {each} captions per image",
        f"features {regions} regions x {size} numbers, {pairs.features.dtype}",
        f"captions of {words.min()} to {words.max()} words, {words.mean():.1f} on average",
        *vectors,
    ]


def describe_run(run: Run) -> list[Fact]:
    """Config, sizes and progress of a run."""
    config, sizes = stored_config(run), run.sizes
    pieces = config.schedule_pieces()
    records = run.metrics()
    facts: list[Fact] = [
        ("run", str(run.path)),
        ("method", f"{config.method} on {config.matcher.name}, {_describe_matcher(run, config)}"),
        ("data", f"{config.data.path}: {sizes['pairs']:,} pairs, {sizes['images']:,} images"),
        ("noise", describe_noise(config, imported=bool(run.imported))),
    ]
    if run.imported:
        facts.append(("imported", f"from {run.imported}"))
    else:
        facts.append(("schedule", f"pieces {list(pieces)}, seed {config.train.seed}"))
        facts.append(("progress", f"{len(records)} of {sum(pieces)} epochs"))
    if config.train.start:
        facts.append(("started from", config.train.start))
    if records:
        facts.append(("best epoch", _describe_best(records)))
    if records or run.imported:
        facts.append(("beliefs", _describe_beliefs(run, config.own_threshold())))
    return facts


def _describe_matcher(run: Run, config: Config) -> str:
    if run.model() is not None:
        return f"started from {config.matcher.model}"
    if MATCHERS[config.matcher.name].closed_form:
        return f"{config.get('matcher.linear')} dimensions"
    beside = companion_of(run, config)
    return f"embedding {config.matcher.embedding}{'' if beside is None else f', scored together with {beside}'}"


def _describe_best(records: list[dict[str, Any]]) -> str:
    newest = [record for record in records if record["piece"] == records[-1]["piece"]]
    best = max(newest, key=lambda record: float(record["dev"]["rsum"]))
    return f"{best['epoch'] + 1} of piece {best['piece'] + 1}, dev rSum {best['dev']['rsum']:.1f}"


def _describe_beliefs(run: Run, threshold: float | None) -> str:
    if not run.has_beliefs:
        return "none"
    beliefs = run.load_ledger()
    below = "" if threshold is None else f", {np.mean(beliefs < threshold):.1%} of the pairs below {threshold:g}"
    return f"mean {beliefs.mean():.3f}{below}"


def companion_of(run: Run, config: Config) -> str | None:
    """The matcher that the run's method fitted beside its networks, and that is scored together with them, if any."""
    networks, members = config.record.networks, config.members()
    return members[-1] if run.networks == len(members) > networks else None


def networks_of(run: Run, config: Config) -> int:
    """How many networks were trained; a matcher that the method fitted besides does not count."""
    return run.networks - (companion_of(run, config) is not None)


def stored_config(run: Run) -> Config:
    """The config that a run was started with."""
    return from_dict(run.config, source=str(run.path / "config.json"))


def describe_noise(config: Config, *, imported: bool = False) -> str:
    """The injected noise in words; for an imported run it is only known if a noise file was given."""
    noise = config.noise
    if imported and noise.file is None:
        return "not known"
    return noise.file or (f"{noise.rate:.0%} at {noise.level} level, seed {noise.seed}" if noise.rate else "none")


def epochs_done(run: Run, config: Config) -> tuple[int, int]:
    """The finished and the planned epochs of a run; an imported run counts as finished."""
    planned = sum(config.schedule_pieces())
    return planned if run.imported else len(run.metrics()), planned


def conditions(run: Run, config: Config) -> str:
    """The conditions to state with any score of a run: method, matcher, noise, and seed or origin."""
    name = f"{run.path}: {config.method} on {config.matcher.name}"
    origin = f"imported from {run.imported}" if run.imported else f"seed {config.train.seed}"
    start = f", started from {config.train.start}" if config.train.start else ""
    noise = describe_noise(config, imported=bool(run.imported))
    return f"{name}, {origin}{start}, {'no noise injected' if noise == 'none' else f'noise {noise}'}"


def report_finished(run: Run, config: Config, progress: Progress) -> None:
    """Report a run that has nothing left to train when it is resumed."""
    done, planned = epochs_done(run, config)
    if done >= planned:
        progress.note(f"finished already: {done} of {planned} epochs; nothing is left to train")


def report_unfinished(run: Run, config: Config, progress: Progress) -> None:
    """Report that a run is incomplete; it is used nevertheless."""
    done, planned = epochs_done(run, config)
    if done < planned:
        progress.note(
            f"{run.path} stopped after {done} of {planned} epochs; resume it with the call or command that started it"
        )
