"""Phases of an epoch that several methods share: training by one loss, and measuring the losses of all pairs."""

from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from crcl.data.batches import Batch, Batches
from crcl.losses import Sims, triplet
from crcl.matchers.base import eval_mode
from crcl.methods.base import Learner
from crcl.progress import Clock, StepLog

# Random streams of the batch orders within an epoch; a second network uses the next number.
EVALUATION = 1  # of all pairs, by a method with one network
WARMUP, MEASURING, CLEAN, NOISY = 0, 2, 4, 6


class CompletedSteps:
    """Steps of an epoch that were completed before an interruption, to be skipped phase by phase."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def take(self, steps: int) -> int:
        """How many steps of the next phase, which has `steps` of them, are completed."""
        completed = min(self.steps, steps)
        self.steps -= completed
        return completed


def train_batches(
    learner: Learner,
    loss: Callable[[Sims], Tensor],
    batches: Batches,
    clock: Clock,
    *,
    start: int,
    stream: int,
    among: np.ndarray | None = None,
) -> Iterator[StepLog]:
    """Take one optimizer step on each batch, by a loss of its similarities, as in a warm-up."""
    for batch in batches.epoch(clock.total_epoch, start=start, among=among, stream=stream):
        losses = loss(learner.similarities(batch))
        yield StepLog(batch.size, learner.optimizer.step(losses, batch, clock.learning_rate))


def measure_losses(
    learner: Learner, losses: np.ndarray, batches: Batches, clock: Clock, *, margin: float, start: int, stream: int
) -> Iterator[StepLog]:
    """Write the `batch_losses` of all pairs into `losses` `(N,)`; a pair in no batch keeps its previous loss."""
    for batch in batches.epoch(clock.total_epoch, start=start, stream=stream, augment=False):
        losses[batch.all_pairs.numpy()] = batch.gather(batch_losses(learner, batch, margin)).cpu().numpy()
        yield StepLog(batch.size, float("nan"), phase="division")


def batch_losses(learner: Learner, batch: Batch, margin: float) -> Tensor:
    """Mean triplet loss of each pair of a batch, in eval mode. (K,)"""
    with eval_mode(learner.matcher):
        losses = triplet(learner.similarities(batch), margin, negatives="mean")
    return losses.clone()  # no longer bound to inference mode


def division_seed(batches: Batches, clock: Clock, which: int) -> int:
    """Random seed of one network's division in this epoch."""
    return int(np.random.SeedSequence([batches.seed, clock.total_epoch, which]).generate_state(1)[0])


def restored_array(saved: Tensor, current: np.ndarray) -> np.ndarray:
    """A saved array with one column per pair; refuses another shape than the current array has."""
    if tuple(saved.shape) != current.shape:
        raise ValueError(f"the saved state has {saved.shape[-1]} pairs, the data {current.shape[-1]}")
    return saved.numpy().copy()
