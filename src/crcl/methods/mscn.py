"""MSCN: noisy correspondence learning with meta similarity correction (Han et al., CVPR 2023).

Two networks. In each the last layer is a meta-network Θ, which reads the similarity vector of an image and a text. Θ
learns from a few pairs that are known to match, and from as many that surely do not, how to judge after the next step
of the network's other weights W: that step is taken virtually, and its result is differentiated in Θ. W then takes the
step in earnest, with margins that Θ's judgement shrinks. Each epoch a network keeps the pairs that look matched to it,
and the other network learns from these alone.

Where the published code differs from the paper's intent, which is followed here:

- Its margins are those of the negative's pair for one of the two directions; here each anchor has its own.
- It trains on batches of 128 in the warm-up and of 64 afterwards; here `batch_size` holds for both. Steps of W and Θ
  descend the mean loss of a batch by AdamW, as in all methods here. The virtual step is a plain one, which the loss's
  scale matters to: there the losses are summed, as published.

The meta data's positives may come from the dev split, as published for Flickr30K; dev also chooses the best epoch. The
meta-network's learning rate does not decay. The mixture's matched component is the one of the larger mean, and it is
fitted to the pairs that are trained on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, TypeVar, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy

from crcl.data.batches import Batch, Batches
from crcl.losses import soft_margin, triplet
from crcl.matchers import Ensemble, Matcher, MatcherRecord
from crcl.matchers.base import scoring
from crcl.matchers.encoders import MetaNetwork
from crcl.matchers.kernels.recurrent import plain
from crcl.methods.base import Descent, Learner, MethodRecord, Plan, TrustedPairs
from crcl.methods.division import BetaMixture, beta_mixture, beta_moments, enough, lower_posterior
from crcl.methods.epochs import Done, learn, of_pairs
from crcl.methods.settings import LossSettings, never_judged
from crcl.progress import Clock, StepLog
from crcl.settings import Count, OptionalFile, Positive, Section, ShareAboveZero

_META_DATA = 0x3E7A  # sets the random numbers of the meta data apart from others of the same seed
_TRAINING, _DIVISION = (2, 3), (4, 5)  # each network's streams of batches
_EDGE = 1e-3  # similarities that the mixture is fitted to are this far from 0 and 1
_Numbers = TypeVar("_Numbers", Tensor, np.ndarray)


class Settings(Section):
    """Meta-network, and the pairs known to match that it learns from (method mscn)."""

    warmup: Annotated[int, Field(ge=0)] = 5
    """First epochs, in which every pair counts as matched; the decay of the learning rate does not count them."""
    hidden: Count = 64
    """Hidden units of the meta-network."""
    meta_lr: Positive = 1.7e-5
    """Learning rate of the meta-network after the warm-up; small data take few steps and may need a larger one."""
    trusted: OptionalFile = None
    """Row numbers (.npy) of training pairs known to match, before any noise; empty: pairs of the dev split."""
    trusted_share: ShareAboveZero = 0.5
    """Share of the dev pairs that the meta-network learns from where no file of rows is given."""


class MSCN:
    """Train two networks, each on the pairs that the other one keeps, with a meta-network as their last layer.

    `correspondence` is the mean of both networks' sharpened similarities when they last judged all pairs.
    """

    def __init__(
        self,
        learners: tuple[Learner, Learner],
        pairs: int,
        *,
        margin: float = 0.2,
        warmup: int = 5,
        meta_learning_rate: float = 1.7e-5,
    ) -> None:
        self.learners = learners
        self.margin = margin
        self.warmup = warmup
        self.meta_learning_rate = meta_learning_rate
        self.similarity = np.ones((2, pairs), dtype=np.float32)
        self.kept = np.ones((2, pairs), dtype=bool)

    @property
    def matcher(self) -> Matcher:
        return Ensemble([learner.module for learner in self.learners])

    @property
    def correspondence(self) -> np.ndarray:
        return sharpen(self.similarity).mean(0)

    def begin_piece(self, piece: int) -> None:
        for learner in self.learners:
            learner.renew()
        self._renew_descents()
        self.similarity[:], self.kept[:] = 1, True

    def _renew_descents(self) -> None:
        """Optimizers without a memory; those of the meta-networks do not clip."""
        for learner in self.learners:
            learner.descent = Descent(learner.module, **learner.options)
        self.meta_descents = [
            Descent(meta_network(learner.module), **learner.options | {"clip": 0.0}) for learner in self.learners
        ]

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        done = Done(clock.step)
        if clock.epoch < self.warmup:
            yield from self._warm_up(batches, clock, done)
            return
        if clock.epoch == self.warmup and clock.step == 0:
            self._renew_descents()
        for judge, pupil in ((0, 1), (1, 0)):
            yield from self._judge(judge, batches, clock, done.of(len(batches)))
            if done.steps == 0:
                self.kept[judge] = self._divide(judge, batches, clock)
            among = np.flatnonzero(self.kept[judge])
            yield from self._train(pupil, among, batches, clock, done.of(batches.count(len(among))))

    def _warm_up(self, batches: Batches, clock: Clock, done: Done) -> Iterator[StepLog]:
        """All pairs, all weights, the mean over the negatives."""
        among = _trainable(batches)
        loss = partial(triplet, margin=self.margin, negatives="mean")
        for learner, stream in zip(self.learners, _TRAINING, strict=True):
            learner.module.train()
            start = done.of(batches.count(len(among)))
            yield from learn(learner, loss, batches, clock, start=start, stream=stream, among=among)

    def _judge(self, network: int, batches: Batches, clock: Clock, start: int) -> Iterator[StepLog]:
        """The network's similarity of each pair."""
        learner = self.learners[network]
        for batch in batches.epoch(clock.total_epoch, start=start, stream=_DIVISION[network], augment=False):
            with scoring(learner.matcher):
                own = learner.similarities(batch).diagonal().float().cpu().numpy()
            self.similarity[network, batch.pairs.numpy()] = own
            yield StepLog(len(batch), float("nan"), phase="division")

    def _divide(self, network: int, batches: Batches, clock: Clock) -> np.ndarray:
        """Which pairs the network keeps: a mixture that starts from how it judges the meta data. (N,) bool"""
        learner, meta_data = self.learners[network], MetaData(batches, clock.total_epoch, network)
        found, labels = [], []
        with scoring(learner.matcher):
            for number in range(len(meta_data)):
                batch, matched = meta_data[number]
                found.append(learner.similarities(batch).diagonal().float().cpu().numpy())
                labels.append(matched.numpy())
        kept, among = np.zeros_like(self.kept[network]), _trainable(batches)
        kept[among] = keep(self.similarity[network, among], np.concatenate(found), np.concatenate(labels))
        return kept

    def _train(self, network: int, among: np.ndarray, batches: Batches, clock: Clock, start: int) -> Iterator[StepLog]:
        learner, meta_data = self.learners[network], MetaData(batches, clock.total_epoch, network)
        meta, device = meta_network(learner.module), learner.descent.device
        epoch = batches.epoch(clock.total_epoch, start=start, among=among, stream=_TRAINING[network])
        learner.module.train()
        for number, batch in enumerate(epoch, start):
            examples, matched = meta_data[number]
            after = meta_losses(
                learner.module,
                batch.to(device),
                examples.to(device),
                matched.to(device),
                loss=self._losses,
                rate=clock.learning_rate,
            )
            self.meta_descents[network].step(after, examples, self.meta_learning_rate)
            with _fixed(meta):
                losses = self._losses(learner.similarities(batch))
                value = learner.descent.step(losses, batch, clock.learning_rate)
            yield StepLog(len(batch), value)

    def _losses(self, sims: Tensor) -> Tensor:
        """Hardest triplets with margins in proportion to the sharpened similarities. (K,)"""
        labels = sharpen(sims.detach().diagonal().float())
        return triplet(sims, soft_margin(labels, self.margin, curve="linear"))

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": [
                {**learner.state_dict(), "meta_descent": descent.state_dict()}
                for learner, descent in zip(self.learners, self.meta_descents, strict=True)
            ],
            "similarity": torch.from_numpy(self.similarity.copy()),
            "kept": torch.from_numpy(self.kept.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.similarity = of_pairs(state["similarity"], self.similarity)
        self.kept = of_pairs(state["kept"], self.kept)
        for learner, descent, saved in zip(self.learners, self.meta_descents, state["networks"], strict=True):
            learner.load_state_dict(saved)
            descent.load_state_dict(saved["meta_descent"])


def sharpen(similarity: _Numbers) -> _Numbers:
    """From a similarity p in [0, 1] to the label p² / (p² + (1 - p)²)."""
    return similarity**2 / (similarity**2 + (1 - similarity) ** 2)


def keep(similarity: np.ndarray, of_meta_data: np.ndarray, matched: np.ndarray) -> np.ndarray:
    """Which pairs are more likely matched than not by a beta mixture of their similarities. (N,) bool

    It starts from the betas of the meta data that do not match and that do. Unlike the published code, which takes the
    posterior as it is, the best pairs are not lost to a wide lower beta (`division.lower_posterior`, as BiCro's), and
    a network is never left without a batch: where fewer than two pairs would be kept, the N // 100 + 1 most similar are
    (`division.enough`). Similarities that do not differ say nothing: all are kept.
    """
    values, examples = (np.clip(x.astype(np.float64), _EDGE, 1 - _EDGE) for x in (similarity, of_meta_data))
    if values.min() == values.max():
        return np.ones(len(values), dtype=bool)
    alpha, beta = np.transpose([beta_moments(examples, weights) for weights in (1 - matched, matched)])
    start = BetaMixture(alpha, beta, np.array([0.5, 0.5]))
    mixture = beta_mixture(values, start=start, steps=10, tolerance=1e-2)
    return enough(lower_posterior(mixture, values) < 0.5, similarity)


def meta_losses(
    module: nn.Module,
    batch: Batch,
    examples: Batch,
    matched: Tensor,
    *,
    loss: Callable[[Tensor], Tensor],
    rate: float,
) -> Tensor:
    """Cross-entropy of the meta data after a virtual step on a batch; the step too is differentiable in Θ. (K,)

    In float32. Neither weights nor running statistics of the module change.
    """
    forward = _Similarities(module)
    meta = {id(parameter) for parameter in meta_network(module).parameters()}
    weights = {name: weight for name, weight in forward.named_parameters() if id(weight) not in meta}
    with plain():
        sims = functional_call(forward, _buffers(forward), (batch,))
    slopes = torch.autograd.grad(loss(sims).sum(), list(weights.values()), create_graph=True, materialize_grads=True)
    moved = {name: weight - rate * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
    sims = functional_call(forward, {**moved, **_buffers(forward)}, (examples,))
    return binary_cross_entropy(sims.diagonal(), matched, reduction="none")


def meta_network(module: nn.Module) -> MetaNetwork:
    """The meta-network within a matcher."""
    return next(part for part in module.modules() if isinstance(part, MetaNetwork))


class MetaData:
    """What a meta-network learns from in one epoch: batches of trusted pairs and as many wrong ones, in cycles.

    The wrong ones are training captions, each with an image that it is not shown with, and are drawn anew each epoch.
    """

    def __init__(self, training: Batches, epoch: int, network: int) -> None:
        if training.trusted is None:
            raise ValueError("MSCN needs pairs that are known to match: give its batches some as `trusted`")
        self.training = training
        self.trusted = training.trusted.batches
        rng = np.random.default_rng([_META_DATA, training.seed, epoch, network])
        self.rows = rng.permutation(training.trusted.rows)
        self.captions = rng.integers(0, len(training.pairs), len(self.rows))
        shown, images = training.pairs.image_index[self.captions], training.pairs.images
        self.images = (shown + rng.integers(1, images, len(self.rows))) % images
        self.half = min(training.batch_size // 2, len(self.rows))

    def __len__(self) -> int:
        """Batches of a cycle; the last one begins the next cycle where the numbers do not come out even."""
        return -(-len(self.rows) // self.half)

    def __getitem__(self, number: int) -> tuple[Batch, Tensor]:
        """A batch, trusted pairs first, and which of them match. (K,) float32"""
        places = np.arange(number * self.half, (number + 1) * self.half) % len(self.rows)
        right = self.trusted.make(self.rows[places])
        wrong = self.training.make(self.captions[places], images=self.images[places])
        return right.join(wrong), torch.tensor([1.0, 0.0]).repeat_interleave(self.half)


class _Similarities(nn.Module):
    """A matcher as a function of a batch, for `functional_call`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Batch) -> Tensor:
        matcher = cast(Matcher, self.module)
        images = matcher.encode_images(batch.regions, batch.region_mask)
        return matcher.similarity(images, matcher.encode_texts(batch.tokens, batch.lengths))


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of running statistics, to be changed in place of them."""
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def _trainable(batches: Batches) -> np.ndarray:
    numbers = np.arange(len(batches.pairs))
    return numbers if batches.trusted is None else np.setdiff1d(numbers, batches.trusted.held_out)


@contextmanager
def _fixed(module: nn.Module) -> Iterator[None]:
    """These weights stay as they are."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)


def _build(*, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings, mscn: Settings) -> MSCN:
    learners, rate = (make_learner(), make_learner()), mscn.meta_lr
    return MSCN(learners, pairs, margin=loss.margin, warmup=mscn.warmup, meta_learning_rate=rate)


def _refuses(matcher: MatcherRecord) -> str:
    if not matcher.similarity_vector:
        return f"its meta-network reads a similarity vector, which {matcher.name} does not make"
    if matcher.pretrained:
        return f"its meta-network would replace the cosine that a published model ({matcher.name}) has learnt"
    return ""


def _contradictions(*, pieces: tuple[int, ...], loss: LossSettings, mscn: Settings) -> Iterator[str]:
    yield from never_judged("mscn", mscn.warmup, pieces)


RECORD = MethodRecord(
    name="mscn",
    summary="meta-networks that learn from pairs known to match (MSCN, CVPR 2023)",
    build=_build,
    sections={"loss": LossSettings, "mscn": Settings},
    networks=2,
    warmup="mscn.warmup",
    threshold=0.5,
    trusted=TrustedPairs(rows="mscn.trusted", share="mscn.trusted_share"),
    meta="mscn.hidden",
    refuses=_refuses,
    contradictions=_contradictions,
)
