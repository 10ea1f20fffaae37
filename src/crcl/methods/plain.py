"""Plain training: one matcher, one loss, no belief in any pair but that it matches."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from crcl.data.batches import Batches
from crcl.ledger import Ledger
from crcl.losses import matching_log_probs, pair_probability
from crcl.matchers.base import Matcher
from crcl.methods.base import Learner
from crcl.progress import Clock, StepLog

Loss = Callable[[Tensor], Tensor]
"""From similarities `(K, K)` to one value per pair `(K,)`."""


class Objective:
    """Train with a fixed loss, with another one in the first epochs if asked.

    The ledger only records p̂ of each pair in the steps of the last epoch, so that these trainings can be audited too.
    """

    def __init__(
        self,
        learner: Learner,
        loss: Loss,
        pairs: int,
        *,
        tau: float = 0.05,
        first_loss: Loss | None = None,
        first_epochs: int = 0,
    ) -> None:
        self.learner = learner
        self.loss = loss
        self.first_loss = first_loss
        self.first_epochs = first_epochs
        self.tau = tau
        self.ledger = Ledger(pairs, correction="none")

    @property
    def matcher(self) -> Matcher:
        return self.learner.matcher

    @property
    def correspondence(self) -> np.ndarray:
        return self.ledger.correspondence

    def begin_piece(self, piece: int) -> None:
        self.learner.renew()

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        if clock.step == 0:
            self.ledger.begin_epoch(clock.piece, clock.epoch)
        loss = self.loss
        if self.first_loss is not None and clock.epoch < self.first_epochs:
            loss = self.first_loss
        self.learner.module.train()
        for batch in batches.epoch(clock.total_epoch, start=clock.step):
            sims = self.learner.similarities(batch)
            self.ledger.observe(batch.pairs, pair_probability(*matching_log_probs(sims, self.tau)))
            yield StepLog(len(batch), self.learner.descent.step(loss(sims), batch, clock.learning_rate))

    def state_dict(self) -> dict[str, Any]:
        return {**self.learner.state_dict(), "ledger": self.ledger.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.ledger.load_state_dict(state["ledger"])
