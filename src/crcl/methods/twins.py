"""Two networks of one kind that divide the pairs for each other: what the methods of co-division are made of."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl.data.batches import Batch, Batches
from crcl.division import soft_labels
from crcl.losses import Curve, soft_margin, triplet
from crcl.matchers import Ensemble, Matcher
from crcl.methods.base import Clock, Learner, StepLog
from crcl.score import scoring

# What sets the orders of one epoch's passes apart; the second network's is one higher.
WARMUP, MEASURING, CLEAN, NOISY = 0, 2, 4, 6


class Done:
    """The steps of an epoch that were done before it was interrupted, to be taken off its passes one by one."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def of(self, steps: int) -> int:
        """How many steps of a pass of so many are done."""
        done = min(self.steps, steps)
        self.steps -= done
        return done


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

    def measure(self, batches: Batches, clock: Clock, done: Done) -> Iterator[StepLog]:
        """The losses of all pairs in eval mode, first under one network, then under the other."""
        for which in (0, 1):
            start, stream = done.of(len(batches)), MEASURING + which
            for batch in batches.epoch(clock.total_epoch, start=start, stream=stream, augment=False):
                self.losses[which, batch.pairs.numpy()] = self._batch_losses(which, batch).cpu().numpy()
                yield StepLog(len(batch), float("nan"), phase="division")

    def predict(self, which: int, batch: Batch) -> Tensor:
        """Soft labels of a batch by one network in eval mode. (K,)"""
        return soft_labels(self._batch_losses(which, batch), self.margin)

    def learn(self, which: int, parts: Sequence[tuple[Batch, Tensor]], clock: Clock) -> StepLog:
        """Steps of one network on labelled batches, one after the other."""
        losses = [self.step(which, batch, labels, clock) for batch, labels in parts]
        pairs = [len(batch) for batch, _ in parts]
        return StepLog(sum(pairs), float(np.average(losses, weights=pairs)))

    def step(self, which: int, batch: Batch, labels: Tensor, clock: Clock) -> float:
        """One step by hardest triplets, with margins that grow with the labels."""
        learner, margins = self.learners[which], soft_margin(labels, self.margin, curve=self.curve)
        return learner.descent.step(triplet(learner.similarities(batch), margins), batch, clock.learning_rate)

    def _batch_losses(self, which: int, batch: Batch) -> Tensor:
        learner = self.learners[which]
        with scoring(learner.matcher):
            losses = triplet(learner.similarities(batch), self.margin, negatives="mean")
        return losses.clone()  # no longer bound to inference mode

    def state_dict(self) -> dict[str, Any]:
        return {
            "learners": [learner.state_dict() for learner in self.learners],
            "losses": torch.from_numpy(self.losses.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = of_pairs(state["losses"], self.losses)
        for learner, saved in zip(self.learners, state["learners"], strict=True):
            learner.load_state_dict(saved)


def division_seed(batches: Batches, clock: Clock, which: int) -> int:
    """What the random numbers of one network's division in this epoch come from."""
    return int(np.random.SeedSequence([batches.seed, clock.total_epoch, which]).generate_state(1)[0])


def of_pairs(saved: Tensor, now: np.ndarray) -> np.ndarray:
    """A saved array of numbers per pair, of the shape that it has now."""
    if tuple(saved.shape) != now.shape:
        raise ValueError(f"the saved state is of {saved.shape[-1]} pairs, the data of {now.shape[-1]}")
    return saved.numpy().copy()
