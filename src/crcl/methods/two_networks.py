"""Two networks of one kind that divide the pairs for each other: what the methods of co-division are made of."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl.data.batches import Batch, Batches
from crcl.losses import Curve, soft_margin, triplet
from crcl.matchers import Ensemble, Matcher
from crcl.methods.base import Learner
from crcl.methods.division import soft_labels
from crcl.methods.epochs import MEASURING, WARMUP, Done, batch_losses, learn, measure, of_pairs
from crcl.progress import Clock, StepLog


class Twins:
    """Two learners, and the loss of each pair as each of them saw it last. (2, N)

    The loss is the mean triplet loss within a random batch. A pair that was never measured has loss 0, so it is
    believed; where a batch of a single pair is left over, that pair keeps the loss of the epoch before.
    """

    def __init__(
        self, make_learner: Callable[[], Learner], pairs: int, *, margin: float, curve: Curve = "exponential"
    ) -> None:
        self.learners = (make_learner(), make_learner())
        self.margin = margin
        self.curve: Curve = curve
        self.losses = np.zeros((2, pairs), dtype=np.float32)

    @property
    def matcher(self) -> Matcher:
        return Ensemble([learner.module for learner in self.learners])

    def renew(self) -> None:
        """Fresh weights, different ones, and no losses."""
        for learner in self.learners:
            learner.renew()
        self.losses[:] = 0

    def train(self) -> None:
        """Put both into train mode."""
        for learner in self.learners:
            learner.module.train()

    def warm_up(
        self, loss: Callable[[Tensor], Tensor], batches: Batches, clock: Clock, done: Done
    ) -> Iterator[StepLog]:
        """All pairs, by one loss of a batch's similarities, first one network, then the other."""
        for which, learner in enumerate(self.learners):
            yield from learn(learner, loss, batches, clock, start=done.of(len(batches)), stream=WARMUP + which)

    def measure(self, batches: Batches, clock: Clock, done: Done) -> Iterator[StepLog]:
        """The losses of all pairs in eval mode, first under one network, then under the other."""
        for which in (0, 1):
            start, stream = done.of(len(batches)), MEASURING + which
            learner, losses = self.learners[which], self.losses[which]
            yield from measure(learner, losses, batches, clock, margin=self.margin, start=start, stream=stream)

    def predict(self, which: int, batch: Batch) -> Tensor:
        """Soft labels of a batch by one network in eval mode. (K,)"""
        return soft_labels(batch_losses(self.learners[which], batch, self.margin), self.margin)

    def learn(self, which: int, parts: Sequence[tuple[Batch, Tensor]], clock: Clock) -> StepLog:
        """Steps of one network on labelled batches, one after the other."""
        losses = [self.step(which, batch, labels, clock) for batch, labels in parts]
        pairs = [len(batch) for batch, _ in parts]
        return StepLog(sum(pairs), float(np.average(losses, weights=pairs)))

    def step(self, which: int, batch: Batch, labels: Tensor, clock: Clock) -> float:
        """One step by hardest triplets, with margins that grow with the labels."""
        learner, margins = self.learners[which], soft_margin(labels, self.margin, curve=self.curve)
        return learner.descent.step(triplet(learner.similarities(batch), margins), batch, clock.learning_rate)

    def state_dict(self) -> dict[str, Any]:
        return {
            "learners": [learner.state_dict() for learner in self.learners],
            "losses": torch.from_numpy(self.losses.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = of_pairs(state["losses"], self.losses)
        for learner, saved in zip(self.learners, state["learners"], strict=True):
            learner.load_state_dict(saved)
