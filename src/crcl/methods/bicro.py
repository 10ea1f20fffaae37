"""BiCro: bidirectional cross-modal similarity consistency (Yang et al., CVPR 2023)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl.data.batches import Batch, Batches
from crcl.losses import Curve, smallest, triplet
from crcl.matchers.base import Encoded, Matcher, l2, scoring
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.division import beta_posterior, divide
from crcl.methods.epochs import CLEAN, NOISY, Done, of_pairs
from crcl.methods.settings import DivisionSettings, LossSettings, only_warmup
from crcl.methods.two_networks import Twins
from crcl.progress import Clock, StepLog

Sides = tuple[Tensor, Tensor]
"""One vector of length 1 for each image of a batch, and for each text. (K, D) each"""


class BiCro:
    """Two networks; each divides the pairs for the other and labels them by how alike both sides stand to anchors.

    `epochs` are those of the whole training, the first `warmup` of them on the `kept` share of each batch whose losses
    are smallest. In the second half of the others each step on a clean batch follows one on a noisy batch. Labels that
    are not above `cut` become 0.

    Where the published code differs, the paper's intent is followed: each pair gets its own label (published: in a
    clean batch that of another one), a margin is that of the anchor's own label in both directions (published: that of
    the text's column, also where the image is the anchor), and the lower component of the mixture is the clean one. A
    single pair left over makes no batch and does not end the epoch.
    """

    def __init__(
        self,
        make_learner: Callable[[], Learner],
        pairs: int,
        *,
        epochs: int,
        warmup: int = 10,
        margin: float = 0.2,
        curve: Curve = "exponential",
        threshold: float = 0.5,
        kept: float = 0.3,
        cut: float = 0.5,
    ) -> None:
        self.twins = Twins(make_learner, pairs, margin=margin, curve=curve)
        self.warmup = warmup
        self.noisy_from = warmup + (epochs - warmup) // 2
        self.margin = margin
        self.threshold = threshold
        self.kept = kept
        self.cut = cut
        self.labels = np.ones((2, pairs), dtype=np.float32)

    @property
    def matcher(self) -> Matcher:
        return self.twins.matcher

    @property
    def correspondence(self) -> np.ndarray:
        """The mean of the labels that each pair had for both networks; where it had none, of the posteriors."""
        return self.labels.mean(0)

    def begin_piece(self, piece: int) -> None:
        self.twins.renew()
        self.labels[:] = 1

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        self.twins.train()
        done = Done(clock.step)
        if clock.epoch < self.warmup:
            yield from self.twins.warm_up(self._first_losses, batches, clock, done)
            return
        yield from self.twins.measure(batches, clock, done)
        posteriors = [beta_posterior(losses) for losses in self.twins.losses]
        for which in (0, 1):
            yield from self._co_teach(which, posteriors[1 - which], batches, clock, done)

    def _first_losses(self, sims: Tensor) -> Tensor:
        return smallest(triplet(sims, self.margin, negatives="mean"), self.kept)

    def _co_teach(
        self, which: int, posterior: np.ndarray, batches: Batches, clock: Clock, done: Done
    ) -> Iterator[StepLog]:
        """One network over the pairs that the other calls clean, with the other's labels."""
        clean = divide(posterior, self.threshold)
        among, others = np.flatnonzero(clean), np.flatnonzero(~clean)
        start = done.of(batches.count(len(among)))
        if start == 0:
            self.labels[which] = posterior
        noisy_batches = batches.cycle(clock.total_epoch, others, start=start, stream=NOISY + which)
        for batch in batches.epoch(clock.total_epoch, among=among, start=start, stream=CLEAN + which):
            noisy = next(noisy_batches, None)
            steps = self._label(which, batch, noisy)
            if clock.epoch < self.noisy_from:
                steps = steps[-1:]  # the others are labelled, for the audit, but not learnt from yet
            yield self.twins.learn(which, steps, clock)

    def _label(self, which: int, batch: Batch, noisy: Batch | None) -> list[tuple[Batch, Tensor]]:
        """The noisy batch, if any, then the clean one, with their labels by the other network."""
        learner = self.twins.learners[1 - which]
        with scoring(learner.matcher):
            encoded = learner.encode(batch)
            losses = triplet(learner.matcher.similarity(*encoded), self.margin, negatives="mean")
            sides = _whole(encoded[0]), _whole(encoded[1])
            anchors = losses.argsort(stable=True)[: len(batch) // 10 + 1]
            best = sides[0][anchors], sides[1][anchors]
            labelled = [(batch, clean_labels(sides, anchors, cut=self.cut))]
            if noisy is not None:
                images, texts = learner.encode(noisy)
                others = _cut(consistency((_whole(images), _whole(texts)), best), self.cut)
                labelled.insert(0, (noisy, others))
        for part, labels in labelled:
            self.labels[which, part.pairs.numpy()] = labels.cpu().numpy()
        return [(part, labels.clone()) for part, labels in labelled]  # no longer bound to inference mode

    def state_dict(self) -> dict[str, Any]:
        return {"twins": self.twins.state_dict(), "labels": torch.from_numpy(self.labels.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.labels = of_pairs(state["labels"], self.labels)
        self.twins.load_state_dict(state["twins"])


def consistency(sides: Sides, anchors: Sides) -> Tensor:
    """How alike the image and the text of each pair stand to the anchors, from 0 to 1. (K,)

    The mean of two ratios of cosines, the smaller over the larger: at the anchor whose image is nearest, and at the one
    whose text is. A ratio is 0 where a cosine is not positive.
    """
    by_image, by_text = sides[0] @ anchors[0].T, sides[1] @ anchors[1].T  # (K, anchors)
    low, high = torch.minimum(by_image, by_text), torch.maximum(by_image, by_text)
    ratios = torch.where(low > 0, low / high, 0)
    nearest = torch.stack([by_image.argmax(1), by_text.argmax(1)], dim=1)  # (K, 2)
    return ratios.gather(1, nearest).mean(1)


def clean_labels(sides: Sides, anchors: Tensor, *, cut: float = 0.5) -> Tensor:
    """Labels of a clean batch: 1 of its anchors, of the others half-way from their consistency to 1. (K,)"""
    labels = (1 + consistency(sides, (sides[0][anchors], sides[1][anchors]))) / 2
    labels[anchors] = 1
    return _cut(labels, cut)


def _cut(labels: Tensor, cut: float) -> Tensor:
    return torch.where(labels > cut, labels, 0).clamp(0, 1)


def _whole(encoded: Encoded) -> Tensor:
    """One vector of length 1 for each image or text; where a matcher sees parts, along the mean of the real ones."""
    x = l2(encoded.features)
    if x.ndim == 3:
        real = x.new_ones(x.shape[:2]) if encoded.mask is None else encoded.mask
        x = l2((x * real[..., None]).sum(1))
    return x


def _build(
    *, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings, division: DivisionSettings
) -> BiCro:
    return BiCro(
        make_learner,
        pairs,
        epochs=plan.epochs,
        warmup=division.warmup,
        margin=loss.margin,
        curve=loss.curve,
        threshold=division.threshold,
        kept=division.kept,
        cut=division.cut,
    )


RECORD = MethodRecord(
    name="bicro",
    summary="co-division by two networks and labels from anchors (BiCro, CVPR 2023)",
    build=_build,
    sections={"loss": LossSettings, "division": DivisionSettings},
    networks=2,
    warmup="division.warmup",
    threshold="division.threshold",
    contradictions=only_warmup,
)
