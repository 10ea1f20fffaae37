"""From a config to a training, and from a run folder back to a matcher: the one place that knows both."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from crcl import losses
from crcl.checkpoint import Run, refuse_existing
from crcl.config import DEVICES, Config, differences, from_dict, load, to_dict
from crcl.data import noise
from crcl.data.batches import Batches, Standardize, Trusted
from crcl.data.files import open_array
from crcl.data.formats import read
from crcl.data.pairs import Pairs
from crcl.data.vocab import Tokens, Vocabulary
from crcl.errors import InputError
from crcl.ledger import Ledger
from crcl.matchers import MATCHERS, Ensemble, Matcher
from crcl.methods.base import Learner, Method
from crcl.methods.crcl import CRCL
from crcl.methods.mscn import MSCN
from crcl.methods.objectives import Objective
from crcl.metrics import Retrieval
from crcl.score import Scorer, evaluate
from crcl.train import Listener, Schedule, fit

FREE_TO_CHANGE = {"data.path", "data.features", "data.ids", "data.vocab", "noise.file", "mscn.trusted"} | {
    f"train.{key}" for key in ("device", "workers", "save_minutes")
}
"""Keys that say where and how to compute, not what, and so may differ when a run is resumed."""

_FIXED_REGIONS = ("saf", "sgr")
_TRUSTED = 0x7205  # sets the random numbers of the trusted pairs apart from others of the same seed

Builder = Callable[[Config, Callable[[], Learner], int], Method]
"""From a config, a function that makes a learner (a method of two networks calls it twice) and the number of pairs."""


def _crcl(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    ledger = Ledger(
        pairs,
        momentum=config.ledger.momentum,
        threshold=config.ledger.threshold,
        freeze_epochs=config.ledger.freeze_epochs,
        correction=config.ledger.correction,
    )
    return CRCL(
        make_learner(),
        ledger,
        tau=config.loss.tau,
        scale=config.loss.scale,
        probability=config.ledger.probability,
    )


def _objective(loss: Callable[[Config], Callable[..., torch.Tensor]], *, sum_first: bool = False) -> Builder:
    def build(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
        first = partial(losses.triplet, margin=config.loss.margin, negatives="sum") if sum_first else None
        return Objective(
            make_learner(),
            loss(config),
            pairs,
            tau=config.loss.tau,
            first_loss=first,
            first_epochs=1 if sum_first else 0,
        )

    return build


def _mscn(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    return MSCN(
        (make_learner(), make_learner()),
        pairs,
        margin=config.loss.margin,
        warmup=config.mscn.warmup,
        meta_learning_rate=config.mscn.meta_lr,
    )


METHODS: dict[str, Builder] = {
    "crcl": _crcl,
    "triplet": _objective(lambda c: partial(losses.triplet, margin=c.loss.margin, negatives="sum")),
    "triplet-hardest": _objective(lambda c: partial(losses.triplet, margin=c.loss.margin), sum_first=True),
    "infonce": _objective(lambda c: partial(losses.info_nce, tau=c.loss.tau)),
    "complementary": _objective(
        lambda c: partial(losses.contrastive_complementary, tau=c.loss.tau, kind=c.loss.kind, q=c.loss.q)
    ),
    "mscn": _mscn,
}


NETWORKS: dict[str, int] = {"mscn": 2}
"""Methods that train several networks, and how many; evaluation takes the mean of their similarities."""


@dataclass(frozen=True)
class TrainingData:
    """What a training reads: noisy train pairs with their truth (for measuring), dev pairs, words, features' scale."""

    train: Pairs
    clean: Pairs
    """The training pairs as they were read, before any noise: for what is known of them, never for training."""
    dev: Pairs
    vocabulary: Vocabulary
    tokens: Tokens
    dev_tokens: Tokens
    noise: np.ndarray | None
    standardize: Standardize | None
    trusted: np.ndarray | None
    """Rows of the training pairs that are known to match, where the user names some."""

    @property
    def fingerprint(self) -> str:
        """Of the training pairs as they were read, before any noise."""
        return self.clean.fingerprint()

    @property
    def held_out(self) -> np.ndarray:
        """Rows of trusted training pairs and, as in MSCN's experiments on COCO, of all pairs that show their images."""
        if self.trusted is None:
            return np.empty(0, dtype=np.int64)
        shown = np.isin(self.train.image_index, self.clean.image_index[self.trusted])
        return np.union1d(np.flatnonzero(shown), self.trusted)

    @property
    def sizes(self) -> dict[str, int]:
        _, regions, features = self.train.features.shape
        return {
            "pairs": len(self.train),
            "images": self.train.images,
            "regions": regions,
            "features": features,
            "vocabulary": len(self.vocabulary),
        }


def read_data(config: Config, run: Run | None = None) -> TrainingData:
    """Read the pairs; words, mismatches and scale come from the run where there is one, else they are made."""
    clean = read_split(config, "train")
    dev = read_split(config, "dev")
    if len(clean) < 2:
        raise InputError(f"{config.data.path}: {len(clean)} training pair; a pair is learnt from others, so give more")
    if clean.features.shape[1:] != dev.features.shape[1:]:
        raise InputError(
            f"features of train have shape {clean.features.shape[1:]} per image, those of dev {dev.features.shape[1:]}"
        )
    if run is not None:
        check_training_pairs(run, clean, config.data.path)
        index, vocabulary, standardize = run.noise(), run.vocabulary(), run.standardize()
        trusted = run.trusted()
    else:
        index, trusted = _noise_index(config, clean), _trusted_rows(config, clean)
        if config.data.vocab is not None:
            vocabulary = Vocabulary.load(config.data.vocab)
        else:
            vocabulary = Vocabulary.build([*clean.captions, *dev.captions], minimum=config.data.min_count)
        standardize = Standardize.measure(clean) if config.data.standardize else None
    train = clean if index is None else noise.apply(clean, index)
    data = TrainingData(
        train,
        clean,
        dev,
        vocabulary,
        vocabulary.encode(train.captions, max_words=config.data.max_words),
        vocabulary.encode(dev.captions, max_words=config.data.max_words),
        index,
        standardize,
        trusted,
    )
    if config.method == "mscn":
        _check_meta_data(config, data)
    return data


def read_split(config: Config, split: str) -> Pairs:
    """One split of the data that a config names."""
    return read(config.data.path, split, features=config.data.features, ids=config.data.ids)


def audited_pairs(run: Run, config: Config) -> Pairs:
    """The training pairs as the run saw them, with the truth where noise was injected."""
    clean = read_split(config, "train")
    check_training_pairs(run, clean, config.data.path)
    index = run.noise()
    return clean if index is None else noise.apply(clean, index)


def _noise_index(config: Config, pairs: Pairs) -> np.ndarray | None:
    if config.noise.file is not None:
        return noise.read_index(config.noise.file)
    if config.noise.rate > 0:
        return noise.mismatch(
            pairs.image_index, config.noise.rate, config.noise.seed, level=config.noise.level, images=pairs.images
        )
    return None


def _trusted_rows(config: Config, pairs: Pairs) -> np.ndarray | None:
    """The user's rows of pairs known to match, checked."""
    path = config.mscn.trusted
    if config.method != "mscn" or path is None:
        return None
    rows = open_array(Path(path), purpose="row numbers of training pairs known to match")
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise InputError(
            f"{path}: {rows.dtype} of shape {rows.shape}, expected row numbers, whole and in one dimension"
        )
    rows = np.unique(rows.astype(np.int64))
    if rows[0] < 0 or rows[-1] >= len(pairs):
        raise InputError(f"{path}: rows {rows[0]} to {rows[-1]}, but the training pairs are 0 to {len(pairs) - 1}")
    return rows


def _check_meta_data(config: Config, data: TrainingData) -> None:
    if data.train.images < 2:
        raise InputError(f"{config.data.path}: all training pairs show one image; mscn needs wrong images too")
    if len(data.train) - len(data.held_out) < 2:
        raise InputError(f"{config.mscn.trusted}: no pairs are left to train on without those of the trusted images")


def check_features(run: Run, pairs: Pairs) -> None:
    """Refuse images that this run's matcher cannot read."""
    size = pairs.features.shape[2]
    if size != run.sizes["features"]:
        raise InputError(
            f"{pairs.source}: {size} numbers per region, but {run.path} was trained on {run.sizes['features']}"
        )
    regions = pairs.features.shape[1]
    if run.config["matcher"]["name"] in _FIXED_REGIONS and regions != run.sizes["regions"]:
        raise InputError(
            f"{pairs.source}: {regions} regions per image, but {run.path} was trained on {run.sizes['regions']}, and "
            f"its matcher ({run.config['matcher']['name']}) knows no other number"
        )


def check_training_pairs(run: Run, pairs: Pairs, data: str) -> None:
    """Refuse pairs that are not the ones, in the order, that this run's beliefs are about."""
    check_features(run, pairs)
    regions = pairs.features.shape[1]
    if (len(pairs), regions) != (run.sizes["pairs"], run.sizes["regions"]):
        raise InputError(
            f"{data}: {len(pairs)} training pairs of {regions} regions, but {run.path} was trained on "
            f"{run.sizes['pairs']} pairs of {run.sizes['regions']}"
        )
    if run.fingerprint and pairs.fingerprint() != run.fingerprint:
        raise InputError(
            f"{data}: as many training pairs as {run.path} was trained on, but not the same captions and images in the "
            "same order: its beliefs would be put on other pairs"
        )


def resumed_config(path: str | Path, **asked: Any) -> Config:
    """The config of a run to go on with; what is asked for besides may not change what comes out.

    `asked` are the arguments of `config.load`.
    """
    run = Run.open(path)
    config = load(over=stored_config(run), **asked)
    refuse_changes(run, config)
    return config


def stored_config(run: Run) -> Config:
    """The config that a run was started with."""
    return from_dict(run.config, source=str(run.path / "config.json"))


def refuse_changes(run: Run, config: Config) -> None:
    """Stop before a run is continued in another way than it was begun."""
    changed = differences(stored_config(run), config)
    lines = [
        f"{key}: the run has {was!r}, now asked for {now!r}"
        for key, (was, now) in changed.items()
        if key not in FREE_TO_CHANGE
    ]
    if lines:
        raise InputError("\n".join([f"{run.path}: a run can only be continued as it was begun, but", *lines]))


def train(
    config: Config,
    path: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """Train as the config says, into a run folder; `say` is told what to know of the data."""
    if resume and overwrite:
        raise InputError("go on with the run (--resume) or replace it (--overwrite), not both")
    if resume and (Path(path) / "config.json").is_file():
        run = Run.open(path)
        refuse_changes(run, config)
        data = read_data(config, run)
    else:
        refuse_existing(path, overwrite=overwrite)
        data = read_data(config)
        run = Run.create(
            path,
            config=to_dict(config),
            sizes=data.sizes | {"networks": NETWORKS.get(config.method, 1)},
            fingerprint=data.fingerprint,
            vocabulary=data.vocabulary,
            noise=data.noise,
            trusted=data.trusted,
            standardize=data.standardize,
            overwrite=overwrite,
        )
    for line in _remarks(data, config):
        say(line)
    with run.locked():
        _fit(config, data, run, listeners)
    return run


def _remarks(data: TrainingData, config: Config) -> list[str]:
    """What happened to captions that one would not see otherwise."""
    cut, unknown = data.tokens.cut + data.dev_tokens.cut, data.tokens.unknown + data.dev_tokens.unknown
    lines = []
    if cut:
        lines.append(f"{cut} captions are longer than {config.data.max_words} words and were cut (data.max_words)")
    if unknown:
        lines.append(
            f"{unknown} captions have no word that is seen {config.data.min_count} times or more: nothing can be "
            "learnt from them (data.min_count)"
        )
    return lines


def _fit(config: Config, data: TrainingData, run: Run, listeners: Sequence[Listener]) -> None:
    device = choose_device(config.train.device)
    make_matcher = matcher_maker(config, data.sizes, word_weights=inverse_document_frequency(data), device=device)
    make_learner = partial(
        Learner,
        make_matcher,
        weight_decay=config.train.weight_decay,
        clip=config.train.clip,
        precision=config.train.precision,
    )
    method = METHODS[config.method](config, make_learner, len(data.train))
    make_batches = partial(
        Batches,
        vocabulary=len(data.vocabulary),
        mask_token=data.vocabulary.mask,
        batch_size=config.train.batch_size,
        seed=config.train.seed,
        augment=config.train.augment,
        dropped_regions=MATCHERS[config.matcher.name].dropped_regions,  # type: ignore[attr-defined]
        standardize=data.standardize,
        workers=config.train.workers,
        pin_memory=device.type == "cuda",
    )
    trusted = _trusted(config, data, make_batches) if config.method == "mscn" else None
    batches = make_batches(data.train.blind(), data.tokens, trusted=trusted)

    def validate(matcher: Matcher) -> Retrieval:
        scorer = Scorer(matcher, data.vocabulary, data.standardize)
        return evaluate([scorer], data.dev, tokens=data.dev_tokens)

    fit(
        method,
        batches,
        schedule(config),
        validate=validate,
        seed=config.train.seed,
        run=run,
        save_minutes=config.train.save_minutes,
        listeners=listeners,
    )


def _trusted(config: Config, data: TrainingData, make_batches: Callable[..., Batches]) -> Trusted:
    """Pairs known to match: rows of the training pairs that the user names, or else some of the dev split."""
    if data.trusted is not None:
        return Trusted(make_batches(data.clean.blind(), data.tokens), data.trusted, data.held_out)
    rng = np.random.default_rng([_TRUSTED, config.train.seed])
    count = math.ceil(config.mscn.trusted_share * len(data.dev))
    rows = np.sort(rng.permutation(len(data.dev))[:count])
    return Trusted(make_batches(data.dev.blind(), data.dev_tokens), rows, data.held_out)


def schedule(config: Config) -> Schedule:
    """Pieces and learning rates."""
    return Schedule(
        config.schedule_pieces(),
        learning_rate=config.train.lr,
        decay_after=config.train.lr_update,
        decay=config.train.lr_decay,
    )


def matcher_maker(
    config: Config,
    sizes: dict[str, int],
    *,
    word_weights: torch.Tensor | None = None,
    device: torch.device | None = None,
) -> Callable[[], nn.Module]:
    """A function that makes a fresh matcher."""
    options: dict[str, Any] = {
        "features": sizes["features"],
        "vocabulary": sizes["vocabulary"],
        "embedding": config.matcher.embedding,
        "word": config.matcher.word,
    }
    if config.matcher.name == "bow":
        options["word_weights"] = word_weights
    if config.matcher.name in _FIXED_REGIONS:
        options |= {"regions": sizes["regions"], "similarity": config.matcher.similarity}
    if config.method == "mscn":
        options["meta"] = config.mscn.hidden
    return lambda: MATCHERS[config.matcher.name](**options).to(device)


def inverse_document_frequency(data: TrainingData) -> torch.Tensor:
    """How rare each word is in the training captions. (vocabulary,)"""
    captions = np.repeat(np.arange(len(data.tokens)), data.tokens.lengths)
    seen = np.unique(captions * len(data.vocabulary) + data.tokens.flat) % len(data.vocabulary)
    documents = np.bincount(seen, minlength=len(data.vocabulary))
    weights = np.log((1 + len(data.tokens)) / (1 + documents)).astype(np.float32) + 1
    weights[documents == 0] = weights[documents > 0].mean()  # <mask> is in no caption, but in many augmented ones
    return torch.from_numpy(weights)


def open_scorer(path: str | Path, *, device: str = "auto") -> tuple[Run, Config, Scorer]:
    """The trained matcher of a run folder, ready to score."""
    run = Run.open(path)
    config = stored_config(run)
    vocabulary, weights = run.vocabulary(), run.load_matcher()
    try:
        with torch.device("meta"):  # no memory for sizes that only the config claims
            make = matcher_maker(config, run.sizes)
            module = make() if run.networks == 1 else Ensemble([make() for _ in range(run.networks)])
        module.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise InputError(f"{run.path}/matcher.safetensors does not fit its config.json: {error}") from error
    module.to(choose_device(device))
    return run, config, Scorer(cast(Matcher, module), vocabulary, run.standardize(), config.data.max_words)


def describe_noise(config: Config) -> str:
    """Which mismatches were injected."""
    noise = config.noise
    return noise.file or (f"{noise.rate:.0%} at {noise.level} level, seed {noise.seed}" if noise.rate else "none")


def epochs_done(run: Run, config: Config) -> tuple[int, int]:
    """How many epochs a run has behind it, and how many it was to have."""
    return len(run.metrics()), sum(config.schedule_pieces())


def conditions(run: Run, config: Config) -> str:
    """What a number of this run must be told with: method, matcher, noise, seed."""
    name = f"{run.path}: {config.method} on {config.matcher.name}"
    return f"{name}, seed {config.train.seed}, noise {describe_noise(config)}"


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(DEVICES, name):
        raise InputError(f"device {name!r}: must be auto, cpu, cuda, cuda:N or mps")
    device = torch.device(name)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[device.type]
    if not there or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"device {name}: not available here; use cpu or auto")
    return device
