"""NCR: learning with noisy correspondence by co-division and soft margins (Huang et al., NeurIPS 2021)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl.data.batches import Batch, Batches
from crcl.losses import Curve, triplet
from crcl.matchers.base import Matcher
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.division import divide, gaussian_posterior
from crcl.methods.epochs import CLEAN, NOISY, Done, division_seed, of_pairs
from crcl.methods.settings import DivisionSettings, LossSettings, only_warmup
from crcl.methods.two_networks import Twins
from crcl.progress import Clock, StepLog


class NCR:
    """Two networks; each learns from the pairs that the other calls clean, with margins that grow with soft labels.

    `epochs` are those of the whole training, the first `warmup` of them on all pairs alike. In the second half of the
    others each step on a clean batch is followed by one on a noisy batch.

    Where the published code differs, the paper's intent is followed: a margin is that of the anchor's own label in
    both directions (published: that of the image's row, also where the text is the anchor), and the label of a clean
    pair is made of its own posterior and its own prediction (published: of every posterior and every prediction of the
    batch, a K x K matrix). A single pair left over makes no batch and does not end the epoch. Noisy batches are
    drawn only where they are learnt from.
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
        self.twins = Twins(make_learner, pairs, margin=margin, curve=curve)
        self.warmup = warmup
        self.noisy_from = warmup + (epochs - warmup) // 2
        self.margin = margin
        self.threshold = threshold
        self.posterior = np.ones((2, pairs), dtype=np.float32)

    @property
    def matcher(self) -> Matcher:
        return self.twins.matcher

    @property
    def correspondence(self) -> np.ndarray:
        """How likely each pair is clean, by the mean of both networks' mixtures."""
        return self.posterior.mean(0)

    def begin_piece(self, piece: int) -> None:
        self.twins.renew()
        self.posterior[:] = 1

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        self.twins.train()
        done = Done(clock.step)
        if clock.epoch < self.warmup:
            loss = partial(triplet, margin=self.margin, negatives="mean")
            yield from self.twins.warm_up(loss, batches, clock, done)
            return
        yield from self.twins.measure(batches, clock, done)
        for which in (0, 1):
            seed = division_seed(batches, clock, which)
            self.posterior[which] = gaussian_posterior(self.twins.losses[which], seed=seed)
        for which in (0, 1):
            yield from self._co_teach(which, batches, clock, done)

    def _co_teach(self, which: int, batches: Batches, clock: Clock, done: Done) -> Iterator[StepLog]:
        """One network over the pairs that the other calls clean."""
        posterior = self.posterior[1 - which]
        clean = divide(posterior, self.threshold)
        among, others = np.flatnonzero(clean), np.flatnonzero(~clean)
        start = done.of(batches.count(len(among)))
        noisy_batches: Iterator[Batch] = iter(())
        if clock.epoch >= self.noisy_from:
            noisy_batches = batches.cycle(clock.total_epoch, others, start=start, stream=NOISY + which)
        for batch in batches.epoch(clock.total_epoch, among=among, start=start, stream=CLEAN + which):
            noisy = next(noisy_batches, None)
            steps = [(batch, self._clean_labels(which, batch, posterior))]
            if noisy is not None:
                steps.append((noisy, (self.twins.predict(0, noisy) + self.twins.predict(1, noisy)) / 2))
            yield self.twins.learn(which, steps, clock)

    def _clean_labels(self, which: int, batch: Batch, posterior: np.ndarray) -> Tensor:
        """As sure as the division is that a pair is clean, so far it is 1; the rest is predicted. (K,)"""
        predicted = self.twins.predict(which, batch)
        sure = torch.from_numpy(posterior[batch.pairs.numpy()]).to(predicted)
        return sure + (1 - sure) * predicted

    def state_dict(self) -> dict[str, Any]:
        return {"twins": self.twins.state_dict(), "posterior": torch.from_numpy(self.posterior.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.posterior = of_pairs(state["posterior"], self.posterior)
        self.twins.load_state_dict(state["twins"])


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
    contradictions=only_warmup,
    checkpoints={"NCR or BiCro": {}},
)
