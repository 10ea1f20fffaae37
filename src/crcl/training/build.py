"""Builds the method, its batches and its schedule from a config and its data."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import torch
from torch import nn

from crcl.config import Config
from crcl.data.batches import Batches
from crcl.data.order import Shuffle
from crcl.data.text.frequencies import inverse_document_frequency
from crcl.data.text.vocabulary import Tokens
from crcl.matchers import MATCHERS
from crcl.methods.base import Learner, Method, Plan
from crcl.runs.folder import Learnt
from crcl.runs.restore import choose_device, matcher_maker
from crcl.training.loop import Schedule
from crcl.training.training_data import TrainingData
from crcl.training.trusted import trusted_pairs


def prepare(config: Config, data: TrainingData, *, start: Learnt | None = None) -> tuple[Method, Batches]:
    """The method and the batches for `fit`; the method creates its networks when its first piece starts."""
    device = choose_device(config.train.device)
    maker = partial(
        matcher_maker, config, data.sizes, word_weights=_word_weights(data), model=data.model, device=device
    )
    members = config.members()
    makers = cycle(_matcher_makers(maker(), start, config.record.networks))

    def make_learner() -> Learner:
        return Learner(
            next(makers),
            weight_decay=config.train.weight_decay,
            clip=config.train.clip,
            precision=config.train.precision,
            chunk=config.train.chunk,
        )

    plan = Plan(
        epochs=config.train.pieces[-1],
        matcher=MATCHERS[config.matcher.name],
        batch_size=config.train.batch_size,
        beliefs=None if start is None else start.beliefs,
        originals=None if data.decoys is None else data.decoys[:, 0],
        fixed=data.fixed,
        make_companion=maker(name=members[-1]) if len(members) > config.record.networks else None,
    )
    method = config.record.build(make_learner=make_learner, pairs=len(data.train), plan=plan, **config.of_method())
    make_batches = partial(
        Batches,
        vocabulary=len(data.vocabulary),
        mask_token=data.vocabulary.mask,
        batch_size=config.train.batch_size,
        seed=config.train.seed,
        augment=config.train.augment,
        dropped_regions=MATCHERS[config.matcher.name].dropped_regions,
        standardize=data.standardize,
        workers=config.train.workers,
        pin_memory=device.type == "cuda",
        shuffle=Shuffle(config.train.shuffle_block, config.train.shuffle_mixed),
    )
    trusted = trusted_pairs(config, data, make_batches)
    return method, make_batches(data.train.blind(), data.tokens, trusted=trusted)


def _word_weights(data: TrainingData) -> torch.Tensor | None:
    """Inverse document frequency of each word in the training captions; None if captions are vectors."""
    if not isinstance(data.tokens, Tokens):
        return None
    return torch.from_numpy(inverse_document_frequency(data.tokens, len(data.vocabulary)))


def _matcher_makers(
    make_matcher: Callable[[], nn.Module], start: Learnt | None, networks: int
) -> Iterator[Callable[[], nn.Module]]:
    """For each network of a method, the function that creates it: with fresh weights, or with those of `start`.

    If `start` has the weights of a single network, as a published model has, all networks start from these.
    """

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
            yield partial(with_weights, own or start.weights)


def schedule(config: Config) -> Schedule:
    """The schedule of pieces and learning rates that a config describes."""
    warmup = config.record.warmup
    return Schedule(
        config.schedule_pieces(),
        learning_rate=config.train.lr,
        decay_after=config.train.lr_update,
        decay=config.train.lr_decay,
        warmup=0 if warmup is None else config.get(warmup),
    )
