"""The passes that an epoch is made of: their orders, what is done of them, two that dividing methods share."""

from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from crcl.data.batches import Batch, Batches
from crcl.losses import triplet
from crcl.matchers.base import scoring
from crcl.methods.base import Learner
from crcl.progress import Clock, StepLog

# What sets the orders of one epoch's passes apart; a second network's is one higher.
EVALUATION = 1  # of all pairs by a method of one network
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


def learn(
    learner: Learner,
    loss: Callable[[Tensor], Tensor],
    batches: Batches,
    clock: Clock,
    *,
    start: int,
    stream: int,
    among: np.ndarray | None = None,
) -> Iterator[StepLog]:
    """One step on each batch, by one loss of its similarities: what warm-ups do."""
    for batch in batches.epoch(clock.total_epoch, start=start, among=among, stream=stream):
        losses = loss(learner.similarities(batch))
        yield StepLog(len(batch), learner.descent.step(losses, batch, clock.learning_rate))


def measure(
    learner: Learner, losses: np.ndarray, batches: Batches, clock: Clock, *, margin: float, start: int, stream: int
) -> Iterator[StepLog]:
    """Write the loss of every pair, (N,), as `batch_losses` has it; a pair that is left over keeps what it had."""
    for batch in batches.epoch(clock.total_epoch, start=start, stream=stream, augment=False):
        losses[batch.pairs.numpy()] = batch_losses(learner, batch, margin).cpu().numpy()
        yield StepLog(len(batch), float("nan"), phase="division")


def batch_losses(learner: Learner, batch: Batch, margin: float) -> Tensor:
    """The mean triplet loss of each pair within a batch, in eval mode. (K,)"""
    with scoring(learner.matcher):
        losses = triplet(learner.similarities(batch), margin, negatives="mean")
    return losses.clone()  # no longer bound to inference mode


def division_seed(batches: Batches, clock: Clock, which: int) -> int:
    """What the random numbers of one network's division in this epoch come from."""
    return int(np.random.SeedSequence([batches.seed, clock.total_epoch, which]).generate_state(1)[0])


def of_pairs(saved: Tensor, now: np.ndarray) -> np.ndarray:
    """A saved array of numbers per pair, of the shape that it has now."""
    if tuple(saved.shape) != now.shape:
        raise ValueError(f"the saved state is of {saved.shape[-1]} pairs, the data of {now.shape[-1]}")
    return saved.numpy().copy()
