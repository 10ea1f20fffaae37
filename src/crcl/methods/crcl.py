"""CRCL: active complementary learning with self-refining correspondence (the paper's Algorithm 1)."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from crcl.data.batches import Batches
from crcl.ledger import Ledger
from crcl.losses import Terms, active_complementary, matching_log_probs, pair_probability
from crcl.matchers.base import Matcher, scoring
from crcl.methods.base import Learner
from crcl.methods.epochs import EVALUATION
from crcl.progress import Clock, StepLog


class CRCL:
    """Train on labels that the ledger refines; every piece starts from fresh weights, the ledger goes on."""

    def __init__(
        self,
        learner: Learner,
        ledger: Ledger,
        *,
        tau: float = 0.05,
        scale: float = 5.0,
        terms: Terms = "both",
        probability: Literal["train", "eval"] = "train",
    ) -> None:
        self.learner = learner
        self.ledger = ledger
        self.tau = tau
        self.scale = scale
        self.terms: Terms = terms
        self.probability = probability

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
        self.learner.module.train()
        for batch in batches.epoch(clock.total_epoch, start=clock.step):
            sims = self.learner.similarities(batch)
            probability = pair_probability(*matching_log_probs(sims, self.tau))  # Eq. 3
            labels = self.ledger.observe(batch.pairs, probability)  # Eq. 10-12
            losses = active_complementary(sims, labels, tau=self.tau, scale=self.scale, terms=self.terms)  # Eq. 8
            yield StepLog(len(batch), self.learner.descent.step(losses, batch, clock.learning_rate))
        if self.probability == "eval":
            yield from self._observe_in_eval_mode(batches, clock)

    def _observe_in_eval_mode(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        """Replace the p̂ of this epoch's steps by those of the matcher as it is at its end, without augmentation."""
        done = max(clock.step - len(batches), 0)
        for batch in batches.epoch(clock.total_epoch, start=done, stream=EVALUATION, augment=False):
            with scoring(self.matcher):
                sims = self.learner.similarities(batch)
                self.ledger.record(batch.pairs, pair_probability(*matching_log_probs(sims, self.tau)))
            yield StepLog(len(batch), float("nan"), phase="probabilities")

    def state_dict(self) -> dict[str, Any]:
        return {**self.learner.state_dict(), "ledger": self.ledger.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.ledger.load_state_dict(state["ledger"])
