"""Short descriptions of data and of run folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from crcl.config import Config, from_dict
from crcl.data.pairs import Pairs
from crcl.data.rows.splits import rows_of, whole_rows
from crcl.data.sources import LAYOUTS, layout_of
from crcl.data.split import Split
from crcl.matchers import MATCHERS
from crcl.matchers.ensemble import SHARES
from crcl.progress import Progress
from crcl.runs.files import read_weight
from crcl.runs.folder import LEARNT, Run

Fact = tuple[str, str]


def describe(path: str | Path | Pairs) -> list[Fact]:
    """Facts about a run folder or about data, in the order to show them."""
    if isinstance(path, Pairs):
        return describe_pairs(path)
    path = Path(path)
    if (path / "config.json").is_file():
        return describe_run(Run.open(path))
    return describe_pairs(Pairs.of(path))


def describe_pairs(pairs: Pairs) -> list[Fact]:
    """Facts about data: its layout, counts and shapes of each split, and what was left out."""
    facts: list[Fact] = [("data", pairs.name)]
    location = pairs.location
    layout = None if location is None else layout_of(location.path, location.layout)
    if layout is not None:
        facts.append(("layout", f"{layout}: {LAYOUTS[layout].title}"))
    for name in pairs.splits:
        lines = describe_split(pairs.split(name)) if pairs.has_features else _describe_rows(pairs, name)
        facts += [(name, line) for line in lines]
    if not pairs.has_features:
        facts.append(("features", "none yet; an audit makes them"))
    return facts + [("left out", note) for note in pairs.notes]


def describe_split(pairs: Split) -> list[str]:
    """Counts and shapes of one split."""
    _, regions, size = pairs.features.shape
    texts = pairs.text_features
    vectors = [] if texts is None else [f"vectors of captions of {texts.shape[1]} numbers, {texts.dtype}"]
    counts, words = _count(pairs.captions, np.bincount(pairs.image_index, minlength=pairs.images))
    return [counts, f"features {regions} regions x {size} numbers, {pairs.features.dtype}", words, *vectors]


def _describe_rows(pairs: Pairs, split: str) -> list[str]:
    """Counts of one split without features; rows that lack an image or a caption do not count."""
    rows = pairs.source.rows()
    assert rows is not None
    whole = rows.take(whole_rows(rows))
    chosen = whole.take(rows_of(pairs.name, whole, split))
    images = pc.value_counts(chosen["image"]).field("counts").to_numpy()
    return list(_count(chosen["caption"].to_pylist(), images))


def _count(captions: Sequence[str], per_image: np.ndarray) -> tuple[str, str]:
    """How many pairs and images there are, and how long captions are."""
    low, high = int(per_image.min()), int(per_image.max())
    each = str(low) if low == high else f"{low} to {high}"
    words = np.array([len(caption.split()) for caption in captions])
    return (
        f"{len(captions):,} pairs, {len(per_image):,} images, {each} captions per image",
        f"captions of {words.min()} to {words.max()} words, {words.mean():.1f} on average",
    )


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
    beside, shares = companion_of(run, config), shares_of(run)
    together = "" if beside is None else f", scored together with {beside}"
    counted = "" if shares is None else f" (shares {' and '.join(f'{share:g}' for share in shares)})"
    return f"embedding {config.matcher.embedding}{together}{counted}"


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


def shares_of(run: Run) -> list[float] | None:
    """How much the similarities of each part of the matcher count; None if all count the same, or none is saved."""
    path = run.path / LEARNT[0]
    found = read_weight(path, SHARES) if path.is_file() else None
    return None if found is None else [round(float(share), 3) for share in found.flatten().tolist()]


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
