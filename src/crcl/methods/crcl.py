"""CRCL: active complementary learning with self-refining correspondence (the paper's Algorithm 1)."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from torch import Tensor

from crcl.data.batches import Batches
from crcl.ledger import Ledger
from crcl.losses import Sims, Terms, active_complementary, matching_log_probs, pair_probability
from crcl.matchers.base import Matcher, eval_mode
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.epochs import EVALUATION
from crcl.methods.settings import LedgerSettings, LossSettings
from crcl.progress import Clock, StepLog


class CRCL:
    """Trains on labels that the ledger refines. Every piece starts from fresh weights and keeps the ledger."""

    def __init__(
        self,
        learner: Learner,
        ledger: Ledger,
        *,
        tau: float = 0.05,
        scale: float = 5.0,
        terms: Terms = "both",
        probability: Literal["train", "eval"] = "train",
        negatives: int = 0,
    ) -> None:
        self.learner = learner
        self.ledger = ledger
        self.tau = tau
        self.scale = scale
        self.terms: Terms = terms
        self.probability = probability
        self.negatives = negatives

    @property
    def matcher(self) -> Matcher:
        return self.learner.matcher

    @property
    def correspondence(self) -> np.ndarray:
        return self.ledger.told

    @property
    def judged(self) -> np.ndarray | None:
        return None if self.ledger.fixed is None else self.ledger.correspondence

    def begin_piece(self, piece: int) -> None:
        self.learner.reset()

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        if clock.step == 0:
            self.ledger.begin_epoch(clock.piece, clock.epoch)
        self.learner.module.train()
        for batch in batches.epoch(clock.total_epoch, start=clock.step):
            sims = self.learner.similarities(batch)
            probability = self._probability(sims)  # Eq. 3
            labels = batch.own(self.ledger.observe(batch.all_pairs, batch.gather(probability)))  # Eq. 10-12
            losses = active_complementary(sims, labels, tau=self.tau, scale=self.scale, terms=self.terms)  # Eq. 8
            yield StepLog(batch.size, self.learner.optimizer.step(losses, batch, clock.learning_rate))
        if self.probability == "eval":
            yield from self._observe_in_eval_mode(batches, clock)

    def _observe_in_eval_mode(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        """Replace the p̂ recorded in this epoch's steps by those of the matcher after them, without augmentation."""
        start = max(clock.step - len(batches), 0)
        for batch in batches.epoch(clock.total_epoch, start=start, stream=EVALUATION, augment=False):
            with eval_mode(self.matcher):
                sims = self.learner.similarities(batch)
                probability = self._probability(sims)
                self.ledger.record(batch.all_pairs, batch.gather(probability))
            yield StepLog(batch.size, float("nan"), phase="probabilities")

    def _probability(self, sims: Sims) -> Tensor:
        return pair_probability(*matching_log_probs(sims, self.tau), negatives=self.negatives)

    def state_dict(self) -> dict[str, Any]:
        return {**self.learner.state_dict(), "ledger": self.ledger.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.ledger.load_state_dict(state["ledger"])


def _build(
    *, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings, ledger: LedgerSettings
) -> CRCL:
    beliefs = Ledger(
        pairs,
        momentum=ledger.momentum,
        threshold=ledger.threshold,
        freeze_epochs=ledger.freeze_epochs,
        correction=ledger.correction,
        start=plan.beliefs,
        fixed=plan.fixed,
    )
    return CRCL(
        make_learner(),
        beliefs,
        tau=loss.tau,
        scale=loss.scale,
        terms=loss.terms,
        probability=ledger.probability,
        negatives=ledger.negatives,
    )


def _contradictions(*, pieces: tuple[int, ...], loss: LossSettings, ledger: LedgerSettings) -> Iterator[str]:
    if ledger.freeze_epochs >= max(pieces):
        yield (
            f"ledger.freeze_epochs: {ledger.freeze_epochs} epochs of each piece are frozen, and no piece of "
            f"train.pieces {list(pieces)} is longer: no belief would ever change"
        )
    if ledger.probability == "eval" and ledger.correction != "paper":
        yield (
            f"ledger.probability=eval works with ledger.correction=paper only: {ledger.correction} takes the "
            "probability of the current step"
        )


RECORD = MethodRecord(
    name="crcl",
    summary="active complementary loss with self-refining correspondence (the paper's method)",
    build=_build,
    sections={"loss": LossSettings, "ledger": LedgerSettings},
    pieces="all",
    threshold="ledger.threshold",
    starts_from_beliefs=True,
    takes_verdicts=True,
    contradictions=_contradictions,
    checkpoints={"CRCL": {}},
)
