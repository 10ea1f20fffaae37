"""Two networks that divide the pairs for each other, the common part of the co-division methods."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl.data.batches import Batch, Batches
from crcl.losses import Curve, Sims, soft_margin, triplet
from crcl.matchers import Ensemble, Matcher
from crcl.methods.base import Learner
from crcl.methods.division import soft_labels
from crcl.methods.epochs import (
    MEASURING,
    WARMUP,
    CompletedSteps,
    batch_losses,
    measure_losses,
    restored_array,
    train_batches,
)
from crcl.progress import Clock, StepLog


class TwoNetworks:
    """Two learners and their latest loss of each pair, `(2, N)`.

    The loss is the mean triplet loss within a random batch. A pair that was never measured has loss 0 and so counts as
    clean. A single pair left over at the end of an epoch makes no batch and keeps its previous loss.
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

    def reset(self) -> None:
        """Create both networks with fresh weights, different from each other, and clear the losses."""
        for learner in self.learners:
            learner.reset()
        self.losses[:] = 0

    def train(self) -> None:
        """Put both networks into train mode."""
        for learner in self.learners:
            learner.module.train()

    def warm_up(
        self, loss: Callable[[Sims], Tensor], batches: Batches, clock: Clock, completed: CompletedSteps
    ) -> Iterator[StepLog]:
        """Train one network after the other on all pairs, by a loss of a batch's similarities."""
        for which, learner in enumerate(self.learners):
            yield from train_batches(
                learner, loss, batches, clock, start=completed.take(len(batches)), stream=WARMUP + which
            )

    def measure_losses(self, batches: Batches, clock: Clock, completed: CompletedSteps) -> Iterator[StepLog]:
        """Update the losses of all pairs in eval mode, under one network after the other."""
        for which in (0, 1):
            start, stream = completed.take(len(batches)), MEASURING + which
            learner, losses = self.learners[which], self.losses[which]
            yield from measure_losses(learner, losses, batches, clock, margin=self.margin, start=start, stream=stream)

    def predict(self, which: int, batch: Batch) -> Tensor:
        """Soft labels that one network predicts for a batch, in eval mode. (K,)"""
        losses = batch.gather(batch_losses(self.learners[which], batch, self.margin))
        return batch.own(soft_labels(losses, self.margin))

    def train_on(self, which: int, labelled: Sequence[tuple[Batch, Tensor]], clock: Clock) -> StepLog:
        """Train one network on labelled batches, one optimizer step each."""
        losses = [self.optimizer_step(which, batch, labels, clock) for batch, labels in labelled]
        pairs = [batch.size for batch, _ in labelled]
        return StepLog(sum(pairs), float(np.average(losses, weights=pairs)))

    def optimizer_step(self, which: int, batch: Batch, labels: Tensor, clock: Clock) -> float:
        """One optimizer step on the hardest triplets, with margins that grow with the labels; returns the mean loss."""
        learner, margins = self.learners[which], soft_margin(labels, self.margin, curve=self.curve)
        return learner.optimizer.step(triplet(learner.similarities(batch), margins), batch, clock.learning_rate)

    def state_dict(self) -> dict[str, Any]:
        return {
            "learners": [learner.state_dict() for learner in self.learners],
            "losses": torch.from_numpy(self.losses.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = restored_array(state["losses"], self.losses)
        for learner, saved in zip(self.learners, state["learners"], strict=True):
            learner.load_state_dict(saved)
