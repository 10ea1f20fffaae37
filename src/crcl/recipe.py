"""From a config to a training, and from a run folder back to a matcher: the one place that knows both."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from crcl import losses
from crcl.checkpoint import Learnt, Run, refuse_existing
from crcl.config import DEVICES, DIVIDING, Config, differences, from_dict, load, to_dict
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
from crcl.methods.bicro import BiCro
from crcl.methods.crcl import CRCL
from crcl.methods.decl import DECL
from crcl.methods.mscn import MSCN
from crcl.methods.ncr import NCR
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

BELIEVING = ("crcl",)
"""Methods that learn from beliefs, and so can begin with those of another run: their builders take a `start`."""

Builder = Callable[..., Method]
"""From a config, a function that makes a learner (a method of two networks calls it twice) and the number of pairs."""


def _crcl(
    config: Config, make_learner: Callable[[], Learner], pairs: int, *, start: np.ndarray | None = None
) -> Method:
    ledger = Ledger(
        pairs,
        momentum=config.ledger.momentum,
        threshold=config.ledger.threshold,
        freeze_epochs=config.ledger.freeze_epochs,
        correction=config.ledger.correction,
        start=start,
    )
    return CRCL(
        make_learner(),
        ledger,
        tau=config.loss.tau,
        scale=config.loss.scale,
        terms=config.loss.terms,
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


def _complementary(config: Config) -> Callable[..., torch.Tensor]:
    tau, kind, q = config.loss.tau, config.loss.kind, config.loss.q
    if kind == "robust":
        return partial(losses.robust_complementary, tau=tau, q=q)
    return partial(losses.contrastive_complementary, tau=tau, kind=kind, q=q)


def _decl(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    return DECL(
        make_learner(),
        pairs,
        warmup=config.decl.warmup,
        tau=config.decl.evidence_tau,
        divergence=config.decl.divergence,
        hinge=config.decl.hinge,
        margin=config.loss.margin,
        most=config.decl.most_negatives,
        least=config.decl.least_negatives,
        shrink=config.decl.shrink,
    )


def _ncr(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    return NCR(
        make_learner,
        pairs,
        epochs=config.train.pieces[-1],
        warmup=config.division.warmup,
        margin=config.loss.margin,
        curve=config.loss.curve,
        threshold=config.division.threshold,
    )


def _bicro(config: Config, make_learner: Callable[[], Learner], pairs: int) -> Method:
    return BiCro(
        make_learner,
        pairs,
        epochs=config.train.pieces[-1],
        warmup=config.division.warmup,
        margin=config.loss.margin,
        curve=config.loss.curve,
        threshold=config.division.threshold,
        kept=config.division.kept,
        cut=config.division.cut,
    )


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
    "complementary": _objective(_complementary),
    "decl": _decl,
    "ncr": _ncr,
    "bicro": _bicro,
    "mscn": _mscn,
}


NETWORKS: dict[str, int] = {"ncr": 2, "bicro": 2, "mscn": 2}
"""Methods that train several networks, and how many; evaluation takes the mean of their similarities."""


def methods_of(networks: int, *, meta: bool = False) -> list[str]:
    """The methods that train so many networks, those with a meta-network each or those without."""
    return [name for name in METHODS if NETWORKS.get(name, 1) == networks and (name == "mscn") == meta]


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


def read_data(config: Config, run: Run | None = None, *, start: Run | None = None) -> TrainingData:
    """Read the pairs; words, mismatches and scale come from the run where there is one, else they are made.

    Words and scale of a new run come from the run that it starts from, if any.
    """
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
        if start is not None:
            check_features(start, clean)
            vocabulary = start.vocabulary()
        elif config.data.vocab is not None:
            vocabulary = Vocabulary.load(config.data.vocab)
        else:
            vocabulary = Vocabulary.build([*clean.captions, *dev.captions], minimum=config.data.min_count)
        if start is not None:
            standardize = start.standardize()
        else:
            standardize = Standardize.measure(clean) if config.data.standardize else None
    train = _with_noise(clean, index)
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
    return _with_noise(clean, run.noise())


def _with_noise(pairs: Pairs, index: np.ndarray | None) -> Pairs:
    return pairs if index is None else noise.apply(pairs, index)


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


def asked_config(**asked: Any) -> Config:
    """The config of a new run; one that starts from another run has its matcher, unless it is asked for another.

    `asked` are the arguments of `config.load`.
    """
    config = load(**asked)
    if config.train.start is None:
        return config
    stored = stored_config(Run.open(config.train.start))
    same = load(
        base={
            "matcher": to_dict(stored)["matcher"],
            "data.standardize": stored.data.standardize,
            "mscn.hidden": stored.mscn.hidden,
        }
    )
    return load(over=same, **asked)


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
    if run.imported:
        raise InputError(
            f"{run.path}: imported from {run.imported}; there is no training to go on with. "
            f"Train it further into a new folder: `crcl train DATA -o NEW --start {run.path}`"
        )
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
        origin = None if config.train.start is None else open_start(config, config.train.start)
        data = read_data(config, start=origin)
        start = None if origin is None else Learnt(origin.load_matcher(), _first_beliefs(config, origin, data, say))
        run = Run.create(
            path,
            config=to_dict(config),
            sizes=data.sizes | {"networks": NETWORKS.get(config.method, 1)},
            fingerprint=data.fingerprint,
            vocabulary=data.vocabulary,
            noise=data.noise,
            trusted=data.trusted,
            standardize=data.standardize,
            start=start,
            overwrite=overwrite,
        )
    for line in _remarks(data, config):
        say(line)
    with run.locked():
        _fit(config, data, run, listeners)
    return run


def open_start(config: Config, path: str) -> Run:
    """The run to begin from, if its matcher is the one that is to be trained."""
    run, stored, _ = open_scorer(path, device="cpu")  # weights that do not fit their config are noticed here
    networks, meta = NETWORKS.get(config.method, 1), stored.method == "mscn"
    kept = {"data.standardize", "mscn.hidden"} if meta else {"data.standardize"}
    lines = [
        f"{key}: the run has {was!r}, now asked for {now!r}"
        for key, (was, now) in differences(stored, config).items()
        if key.startswith("matcher.") or key in kept
    ]
    fitting = methods_of(run.networks, meta=meta)
    if run.networks != networks:
        lines.append(
            f"method: the run has {run.networks} networks, {config.method} trains {networks}; "
            f"methods that train {run.networks}: {', '.join(fitting) or 'there is none'}"
        )
    elif config.method not in fitting:
        lines.append(
            f"method: the run's networks have {'a' if meta else 'no'} meta-network, those of {config.method} "
            f"have {'none' if meta else 'one'}; methods that go on with the run: {', '.join(fitting)}"
        )
    if config.data.vocab is not None:
        lines.append(f"data.vocab: the words are the run's, now asked for {config.data.vocab!r}; leave it out")
    if lines:
        raise InputError("\n".join([f"{run.path}: a training that starts from it keeps what it is, but", *lines]))
    return run


def _first_beliefs(config: Config, start: Run, data: TrainingData, say: Callable[[str], None]) -> np.ndarray | None:
    """What the run to begin from believes of these very pairs; None: the training begins by believing in all."""
    if config.method not in BELIEVING:
        return None
    if not start.has_beliefs:
        say(f"{start.path} holds no beliefs: all pairs are believed in at first")
        return None
    same = start.fingerprint == data.fingerprint
    judged = _with_noise(data.clean, start.noise()) if same else None
    if judged is None or (judged.image_index != data.train.image_index).any():
        say(
            f"the beliefs of {start.path} are about other pairs{', with other mismatches' if same else ''}: "
            "all pairs are believed in at first"
        )
        return None
    return start.load_ledger()


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
    method, batches = prepare(config, data, start=run.load_start())

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


def prepare(config: Config, data: TrainingData, *, start: Learnt | None = None) -> tuple[Method, Batches]:
    """What `fit` trains, and on what; the method's networks are made when its first piece begins."""
    device = choose_device(config.train.device)
    make_matcher = matcher_maker(config, data.sizes, word_weights=inverse_document_frequency(data), device=device)
    begin = cycle(_beginnings(make_matcher, start, NETWORKS.get(config.method, 1)))

    def make_learner() -> Learner:
        return Learner(
            next(begin),
            weight_decay=config.train.weight_decay,
            clip=config.train.clip,
            precision=config.train.precision,
        )

    options = {} if start is None or start.beliefs is None else {"start": start.beliefs}
    method = METHODS[config.method](config, make_learner, len(data.train), **options)
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
    return method, make_batches(data.train.blind(), data.tokens, trusted=trusted)


def _trusted(config: Config, data: TrainingData, make_batches: Callable[..., Batches]) -> Trusted:
    """Pairs known to match: rows of the training pairs that the user names, or else some of the dev split."""
    if data.trusted is not None:
        return Trusted(make_batches(data.clean.blind(), data.tokens), data.trusted, data.held_out)
    rng = np.random.default_rng([_TRUSTED, config.train.seed])
    count = math.ceil(config.mscn.trusted_share * len(data.dev))
    rows = np.sort(rng.permutation(len(data.dev))[:count])
    return Trusted(make_batches(data.dev.blind(), data.dev_tokens), rows, data.held_out)


def _beginnings(
    make_matcher: Callable[[], nn.Module], start: Learnt | None, networks: int
) -> Iterator[Callable[[], nn.Module]]:
    """For each network of a method, what makes it at the beginning of a piece: fresh, or with the start's weights."""

    def with_weights(weights: dict[str, torch.Tensor]) -> nn.Module:
        module = make_matcher()
        module.load_state_dict(weights)
        return module

    for number in range(networks):
        prefix = "" if networks == 1 else f"members.{number}."
        if start is None:
            yield make_matcher
        else:
            own = {name.removeprefix(prefix): w for name, w in start.weights.items() if name.startswith(prefix)}
            yield partial(with_weights, own)


def schedule(config: Config) -> Schedule:
    """Pieces and learning rates."""
    warmups = dict.fromkeys(DIVIDING, config.division.warmup) | {"mscn": config.mscn.warmup}
    return Schedule(
        config.schedule_pieces(),
        learning_rate=config.train.lr,
        decay_after=config.train.lr_update,
        decay=config.train.lr_decay,
        warmup=warmups.get(config.method, 0),
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
        options |= {"regions": sizes["regions"], "similarity": config.matcher.similarity, "memory": config.train.memory}
    if config.matcher.name == "scan":
        options |= {"direction": config.matcher.direction, "pooling": config.matcher.pooling}
        options |= {"smooth": config.matcher.smooth or None, "sharp": config.matcher.sharp or None}
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


def open_scorer(path: str | Path, *, device: str = "auto", memory: float | None = None) -> tuple[Run, Config, Scorer]:
    """The trained matcher of a run folder, ready to score; `memory` in GiB instead of what the run was trained with."""
    run = Run.open(path)
    config = stored_config(run)
    if memory is not None:
        config = from_dict(
            to_dict(config) | {"train": to_dict(config)["train"] | {"memory": memory}}, source="--memory"
        )
    vocabulary = run.vocabulary()
    matcher = restored_matcher(config, run.sizes, run.load_matcher(), f"{run.path}/matcher.safetensors")
    matcher.to(choose_device(device))
    scorer = Scorer(
        cast(Matcher, matcher),
        vocabulary,
        run.standardize(),
        config.data.max_words,
        memory=config.train.memory,
    )
    return run, config, scorer


def restored_matcher(config: Config, sizes: dict[str, int], weights: dict[str, torch.Tensor], source: str) -> nn.Module:
    """The matcher, of one network or several, that these weights are of."""
    networks = sizes["networks"]
    try:
        if networks > len(weights):
            raise RuntimeError(f"{networks} networks, but {len(weights)} tensors")
        with torch.device("meta"):  # no memory for sizes that only the config claims
            make = matcher_maker(config, sizes)
            module = make() if networks == 1 else Ensemble([make() for _ in range(networks)])
        # copies: a weight that is mapped from its file lies where the file has it, which changes how it is rounded
        module.load_state_dict({name: weight.clone() for name, weight in weights.items()}, assign=True)
    except RuntimeError as error:
        raise InputError(f"{source} does not fit its config.json: {error}") from error
    return module


def describe_noise(config: Config, *, imported: bool = False) -> str:
    """Which mismatches were injected; an imported run knows of none but those of its file."""
    noise = config.noise
    if imported and noise.file is None:
        return "not known"
    return noise.file or (f"{noise.rate:.0%} at {noise.level} level, seed {noise.seed}" if noise.rate else "none")


def epochs_done(run: Run, config: Config) -> tuple[int, int]:
    """How many epochs a run has behind it, and how many it was to have; nothing is left to do in an imported one."""
    planned = sum(config.schedule_pieces())
    return planned if run.imported else len(run.metrics()), planned


def conditions(run: Run, config: Config) -> str:
    """What a number of this run must be told with: method, matcher, noise, and the seed or where it comes from."""
    name = f"{run.path}: {config.method} on {config.matcher.name}"
    origin = f"imported from {run.imported}" if run.imported else f"seed {config.train.seed}"
    start = f", started from {config.train.start}" if config.train.start else ""
    return f"{name}, {origin}{start}, noise {describe_noise(config, imported=bool(run.imported))}"


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
