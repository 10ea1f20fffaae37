"""NCR: learning with noisy correspondence by co-division and soft margins (Huang et al., NeurIPS 2021)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl import distributed
from crcl.data.batches import Batch, Batches
from crcl.losses import Curve, triplet
from crcl.matchers.base import Matcher
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.division import divide, gaussian_posterior
from crcl.methods.epochs import CLEAN, NOISY, CompletedSteps, division_seed, restored_array
from crcl.methods.settings import DivisionSettings, LossSettings, check_division_warmup
from crcl.methods.two_networks import TwoNetworks
from crcl.progress import Clock, StepLog


class NCR:
    """Trains two networks, each on the pairs that the other calls clean, with margins that grow with soft labels.

    The training has `epochs` epochs; the first `warmup` train on all pairs. In the second half of the remaining ones,
    each step on a clean batch is followed by one on a noisy batch.

    Where the published code deviates from the paper, this follows the paper: a margin depends on the anchor's own
    label in both directions (published: on the image's label, even if the text is the anchor), and the label of a
    clean pair combines its own posterior and its own prediction (published: every posterior and every prediction of
    the batch, a K x K matrix). A single pair left over makes no batch and does not end the epoch. Noisy batches are
    only drawn in the epochs that train on them.
    """

    def __init__(
        self,
        make_learner: Callable[[], Learner],
        pairs: int,
        *,
        epochs: int,
        warmup: int = 5,
        margin: float = 0.2,
        curve: Curve = "exponential",
        threshold: float = 0.5,
    ) -> None:
        self.networks = TwoNetworks(make_learner, pairs, margin=margin, curve=curve)
        self.warmup = warmup
        self.noisy_from = warmup + (epochs - warmup) // 2
        self.margin = margin
        self.threshold = threshold
        self.posterior = np.ones((2, pairs), dtype=np.float32)

    @property
    def matcher(self) -> Matcher:
        return self.networks.matcher

    @property
    def correspondence(self) -> np.ndarray:
        """Probability that each pair is clean, the mean of both networks' mixtures. (N,)"""
        return self.posterior.mean(0)

    def begin_piece(self, piece: int) -> None:
        self.networks.reset()
        self.posterior[:] = 1

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        self.networks.train()
        completed = CompletedSteps(clock.step)
        if clock.epoch < self.warmup:
            loss = partial(triplet, margin=self.margin, negatives="mean")
            yield from self.networks.warm_up(loss, batches, clock, completed)
            return
        yield from self.networks.measure_losses(batches, clock, completed)
        for which in (0, 1):
            seed = division_seed(batches, clock, which)
            posterior = gaussian_posterior(self.networks.losses[which], seed=seed)
            self.posterior[which] = distributed.from_first(posterior)
        for which in (0, 1):
            yield from self._co_teach(which, batches, clock, completed)

    def _co_teach(self, which: int, batches: Batches, clock: Clock, completed: CompletedSteps) -> Iterator[StepLog]:
        """Train one network on the pairs that the other calls clean."""
        posterior = self.posterior[1 - which]
        clean = divide(posterior, self.threshold)
        among, others = np.flatnonzero(clean), np.flatnonzero(~clean)
        start = completed.take(batches.count(len(among)))
        noisy_batches: Iterator[Batch] = iter(())
        if clock.epoch >= self.noisy_from:
            noisy_batches = batches.cycle(clock.total_epoch, others, start=start, stream=NOISY + which)
        for batch in batches.epoch(clock.total_epoch, among=among, start=start, stream=CLEAN + which):
            noisy = next(noisy_batches, None)
            steps = [(batch, self._clean_labels(which, batch, posterior))]
            if noisy is not None:
                steps.append((noisy, (self.networks.predict(0, noisy) + self.networks.predict(1, noisy)) / 2))
            yield self.networks.train_on(which, steps, clock)

    def _clean_labels(self, which: int, batch: Batch, posterior: np.ndarray) -> Tensor:
        """Labels of a clean batch: mean of 1 and the predicted label, weighted by the posterior of being clean. (K,)"""
        predicted = self.networks.predict(which, batch)
        clean = torch.from_numpy(posterior[batch.pairs.numpy()]).to(predicted)
        return clean + (1 - clean) * predicted

    def state_dict(self) -> dict[str, Any]:
        return {"twins": self.networks.state_dict(), "posterior": torch.from_numpy(self.posterior.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.posterior = restored_array(state["posterior"], self.posterior)
        self.networks.load_state_dict(state["twins"])


def _build(
    *, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings, division: DivisionSettings
) -> NCR:
    return NCR(
        make_learner,
        pairs,
        epochs=plan.epochs,
        warmup=division.warmup,
        margin=loss.margin,
        curve=loss.curve,
        threshold=division.threshold,
    )


RECORD = MethodRecord(
    name="ncr",
    summary="co-division by two networks and soft margins (NCR, NeurIPS 2021)",
    build=_build,
    sections={"loss": LossSettings, "division": DivisionSettings},
    networks=2,
    warmup="division.warmup",
    threshold="division.threshold",
    contradictions=check_division_warmup,
    checkpoints={"NCR or BiCro": {}},
)
