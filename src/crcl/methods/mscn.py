"""MSCN: noisy correspondence learning with meta similarity correction (Han et al., CVPR 2023).

MSCN trains two networks. The last layer of each is a meta-network Θ, which reads the similarity vector of an image and
a text. Θ learns from a few pairs that are known to match and from as many that do not match. Its loss is taken after a
virtual SGD step of the network's other weights W and differentiated through that step. Then W takes its real step, with
margins that shrink with Θ's similarity. In each epoch a network selects the pairs that look matched to it, and the
other network trains on these only.

Differences from the published code, where it deviates from the paper:

- In one direction it takes the margin of the negative's pair; here each anchor has its own margin.
- It trains on batches of 128 in the warm-up and of 64 afterwards; here `batch_size` applies to both. Steps of W and Θ
  minimise the mean loss of a batch by AdamW, as in all methods here. The virtual step is plain SGD, which depends on
  the scale of the loss: it sums the losses, as published.

The positive examples may come from the dev split, as published for Flickr30K, although dev also selects the best epoch.
The meta-network's learning rate does not decay. The beta mixture is fitted to the pairs that are trained on, and the
component with the larger mean is the matched one.
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
from crcl.matchers.base import eval_mode
from crcl.matchers.encoders import MetaNetwork
from crcl.matchers.kernels.recurrent import twice_differentiable
from crcl.methods.base import Learner, MethodRecord, Optimizer, Plan, TrustedPairs
from crcl.methods.division import BetaMixture, at_least_two, beta_mixture, beta_moments, lower_posterior
from crcl.methods.epochs import CompletedSteps, restored_array, train_batches
from crcl.methods.settings import LossSettings, check_warmup
from crcl.progress import Clock, StepLog
from crcl.settings import Count, OptionalFile, Positive, Section, ShareAboveZero

_META_DATA = 0x3E7A  # separates the random numbers of the meta data from others with the same seed
_TRAINING, _DIVISION = (2, 3), (4, 5)  # random streams of the batch orders, one for each network
_EDGE = 1e-3  # the mixture is fitted to similarities clipped to [_EDGE, 1 - _EDGE]
_Numbers = TypeVar("_Numbers", Tensor, np.ndarray)


class Settings(Section):
    """Meta-network and the pairs known to match that train it (method mscn)."""

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
    """Trains two networks that end in meta-networks, each on the pairs that the other one keeps.

    `correspondence` is the mean of both networks' sharpened similarities from their last pass over all pairs.
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
            learner.reset()
        self._reset_optimizers()
        self.similarity[:], self.kept[:] = 1, True

    def _reset_optimizers(self) -> None:
        """Create new optimizers; those of the meta-networks do not clip gradients."""
        for learner in self.learners:
            learner.optimizer = Optimizer(learner.module, **learner.options)
        self.meta_optimizers = [
            Optimizer(meta_network(learner.module), **learner.options | {"clip": 0.0}) for learner in self.learners
        ]

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        completed = CompletedSteps(clock.step)
        if clock.epoch < self.warmup:
            yield from self._warm_up(batches, clock, completed)
            return
        if clock.epoch == self.warmup and clock.step == 0:
            self._reset_optimizers()
        for selecting, trained in ((0, 1), (1, 0)):
            yield from self._measure(selecting, batches, clock, completed.take(len(batches)))
            if completed.steps == 0:
                self.kept[selecting] = self._select(selecting, batches, clock)
            among = np.flatnonzero(self.kept[selecting])
            yield from self._train(trained, among, batches, clock, completed.take(batches.count(len(among))))

    def _warm_up(self, batches: Batches, clock: Clock, completed: CompletedSteps) -> Iterator[StepLog]:
        """Train all weights on all pairs, by the mean triplet loss over the negatives."""
        among = _trainable(batches)
        loss = partial(triplet, margin=self.margin, negatives="mean")
        for learner, stream in zip(self.learners, _TRAINING, strict=True):
            learner.module.train()
            start = completed.take(batches.count(len(among)))
            yield from train_batches(learner, loss, batches, clock, start=start, stream=stream, among=among)

    def _measure(self, network: int, batches: Batches, clock: Clock, start: int) -> Iterator[StepLog]:
        """Store the network's similarity of each pair, in eval mode."""
        learner = self.learners[network]
        for batch in batches.epoch(clock.total_epoch, start=start, stream=_DIVISION[network], augment=False):
            with eval_mode(learner.matcher):
                own = learner.matrix(batch).diagonal().float().cpu().numpy()
            self.similarity[network, batch.pairs.numpy()] = own
            yield StepLog(len(batch), float("nan"), phase="division")

    def _select(self, network: int, batches: Batches, clock: Clock) -> np.ndarray:
        """Which pairs the network keeps, by a mixture initialised from its similarities of the meta data. (N,) bool"""
        learner, meta_data = self.learners[network], MetaData(batches, clock.total_epoch, network)
        similarities, labels = [], []
        with eval_mode(learner.matcher):
            for number in range(len(meta_data)):
                batch, matched = meta_data[number]
                similarities.append(learner.matrix(batch).diagonal().float().cpu().numpy())
                labels.append(matched.numpy())
        kept, among = np.zeros_like(self.kept[network]), _trainable(batches)
        kept[among] = likely_matched(
            self.similarity[network, among], np.concatenate(similarities), np.concatenate(labels)
        )
        return kept

    def _train(self, network: int, among: np.ndarray, batches: Batches, clock: Clock, start: int) -> Iterator[StepLog]:
        learner, meta_data = self.learners[network], MetaData(batches, clock.total_epoch, network)
        meta, device = meta_network(learner.module), learner.optimizer.device
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
            self.meta_optimizers[network].step(after, examples, self.meta_learning_rate)
            with _frozen(meta):
                losses = self._losses(learner.matrix(batch))
                value = learner.optimizer.step(losses, batch, clock.learning_rate)
            yield StepLog(len(batch), value)

    def _losses(self, sims: Tensor) -> Tensor:
        """Triplet loss on the hardest negatives, with margins proportional to the sharpened similarities. (K,)"""
        labels = sharpen(sims.detach().diagonal().float())
        return triplet(sims, soft_margin(labels, self.margin, curve="linear"))

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": [
                {**learner.state_dict(), "meta_descent": optimizer.state_dict()}
                for learner, optimizer in zip(self.learners, self.meta_optimizers, strict=True)
            ],
            "similarity": torch.from_numpy(self.similarity.copy()),
            "kept": torch.from_numpy(self.kept.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.similarity = restored_array(state["similarity"], self.similarity)
        self.kept = restored_array(state["kept"], self.kept)
        for learner, optimizer, saved in zip(self.learners, self.meta_optimizers, state["networks"], strict=True):
            learner.load_state_dict(saved)
            optimizer.load_state_dict(saved["meta_descent"])


def sharpen(similarity: _Numbers) -> _Numbers:
    """Label p² / (p² + (1 - p)²) of a similarity p in [0, 1]."""
    return similarity**2 / (similarity**2 + (1 - similarity) ** 2)


def likely_matched(similarity: np.ndarray, meta_similarity: np.ndarray, matched: np.ndarray) -> np.ndarray:
    """Which pairs are more likely matched than not, by a beta mixture of their similarities. (N,) bool

    EM starts from the beta distributions of the mismatched and of the matched meta data. The published code takes the
    posterior as it is; here the most similar pairs are not lost to a wide lower component
    (`division.lower_posterior`, as for BiCro), and if fewer than two pairs would be kept, the N // 100 + 1 most similar
    are kept (`division.at_least_two`), so that a network always has a batch. If all similarities are equal, all pairs
    are kept.
    """
    values, examples = (np.clip(x.astype(np.float64), _EDGE, 1 - _EDGE) for x in (similarity, meta_similarity))
    if values.min() == values.max():
        return np.ones(len(values), dtype=bool)
    alpha, beta = np.transpose([beta_moments(examples, weights) for weights in (1 - matched, matched)])
    start = BetaMixture(alpha, beta, np.array([0.5, 0.5]))
    mixture = beta_mixture(values, start=start, steps=10, tolerance=1e-2)
    return at_least_two(lower_posterior(mixture, values) < 0.5, similarity)


def meta_losses(
    module: nn.Module,
    batch: Batch,
    examples: Batch,
    matched: Tensor,
    *,
    loss: Callable[[Tensor], Tensor],
    rate: float,
) -> Tensor:
    """Cross-entropy of the meta data after a virtual SGD step on a batch, differentiable in Θ through that step. (K,)

    Computed in float32. The module's weights and running statistics do not change.
    """
    forward = _Similarities(module)
    meta = {id(parameter) for parameter in meta_network(module).parameters()}
    weights = {name: weight for name, weight in forward.named_parameters() if id(weight) not in meta}
    with twice_differentiable():
        sims = functional_call(forward, _buffers(forward), (batch,))
    gradients = torch.autograd.grad(loss(sims).sum(), list(weights.values()), create_graph=True, materialize_grads=True)
    stepped = {name: w - rate * gradient for (name, w), gradient in zip(weights.items(), gradients, strict=True)}
    sims = functional_call(forward, {**stepped, **_buffers(forward)}, (examples,))
    return binary_cross_entropy(sims.diagonal(), matched, reduction="none")


def meta_network(module: nn.Module) -> MetaNetwork:
    """The meta-network that a matcher contains."""
    return next(part for part in module.modules() if isinstance(part, MetaNetwork))


class MetaData:
    """Batches that train a meta-network in one epoch: half trusted pairs, half known mismatches, repeated in cycles.

    A mismatch is a training caption with an image of another pair; mismatches are drawn again in each epoch.
    """

    def __init__(self, training: Batches, epoch: int, network: int) -> None:
        if training.trusted is None:
            raise ValueError("MSCN needs pairs that are known to match: pass `trusted` to its batches")
        self.training = training
        self.trusted = training.trusted.batches
        rng = np.random.default_rng([_META_DATA, training.seed, epoch, network])
        self.rows = rng.permutation(training.trusted.rows)
        self.captions = rng.integers(0, len(training.pairs), len(self.rows))
        shown, images = training.pairs.image_index[self.captions], training.pairs.images
        self.images = (shown + rng.integers(1, images, len(self.rows))) % images
        self.half = min(training.batch_size // 2, len(self.rows))

    def __len__(self) -> int:
        """Batches of a cycle; the last one is filled with the first pairs of the next cycle."""
        return -(-len(self.rows) // self.half)

    def __getitem__(self, number: int) -> tuple[Batch, Tensor]:
        """A batch, trusted pairs first, and 1 for each pair that matches, else 0. (K,) float32"""
        places = np.arange(number * self.half, (number + 1) * self.half) % len(self.rows)
        right = self.trusted.make(self.rows[places])
        wrong = self.training.make(self.captions[places], images=self.images[places])
        return right.join(wrong), torch.tensor([1.0, 0.0]).repeat_interleave(self.half)


class _Similarities(nn.Module):
    """Module that maps a batch to a matcher's similarities, for `functional_call`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Batch) -> Tensor:
        matcher = cast(Matcher, self.module)
        images = matcher.encode_images(batch.regions, batch.region_mask)
        return matcher.similarity(images, matcher.encode_texts(batch.tokens, batch.lengths))


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the running statistics, so that a virtual step updates these instead."""
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def _trainable(batches: Batches) -> np.ndarray:
    numbers = np.arange(len(batches.pairs))
    return numbers if batches.trusted is None else np.setdiff1d(numbers, batches.trusted.held_out)


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Exclude a module's weights from gradients."""
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
        return f"its meta-network would replace the cosine that a published model ({matcher.name}) was trained with"
    return ""


def _contradictions(*, pieces: tuple[int, ...], loss: LossSettings, mscn: Settings) -> Iterator[str]:
    yield from check_warmup("mscn", mscn.warmup, pieces)


RECORD = MethodRecord(
    name="mscn",
    summary="meta-networks that learn from pairs known to match (MSCN, CVPR 2023)",
    build=_build,
    sections={"loss": LossSettings, "mscn": Settings},
    networks=2,
    warmup="mscn.warmup",
    threshold=0.5,
    undivided="its meta-networks learn from a virtual step on the whole batch, differentiated twice",
    trusted=TrustedPairs(rows="mscn.trusted", share="mscn.trusted_share"),
    meta="mscn.hidden",
    refuses=_refuses,
    contradictions=_contradictions,
)
