"""Plain training: one matcher and one loss, which treats every pair as matched."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from crcl.data.batches import Batches
from crcl.ledger import Ledger
from crcl.losses import (
    Sims,
    contrastive_complementary,
    info_nce,
    matching_log_probs,
    pair_probability,
    robust_complementary,
    triplet,
)
from crcl.matchers.base import Matcher
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.settings import LossSettings
from crcl.progress import Clock, StepLog

Loss = Callable[[Sims], Tensor]
"""Maps similarities `(K, K)` to one value per pair `(K,)`."""


class Objective:
    """Trains with one loss, optionally with another one in the first epochs.

    The ledger only records the latest p̂ of each pair, so that these runs can be audited too.
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
        self.learner.reset()

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        if clock.step == 0:
            self.ledger.begin_epoch(clock.piece, clock.epoch)
        loss = self.loss
        if self.first_loss is not None and clock.epoch < self.first_epochs:
            loss = self.first_loss
        self.learner.module.train()
        for batch in batches.epoch(clock.total_epoch, start=clock.step):
            sims = self.learner.similarities(batch)
            probability = pair_probability(*matching_log_probs(sims, self.tau))
            self.ledger.observe(batch.all_pairs, batch.gather(probability))
            yield StepLog(batch.size, self.learner.optimizer.step(loss(sims), batch, clock.learning_rate))

    def state_dict(self) -> dict[str, Any]:
        return {**self.learner.state_dict(), "ledger": self.ledger.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.ledger.load_state_dict(state["ledger"])


def _triplet(*, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings) -> Objective:
    return Objective(make_learner(), partial(triplet, margin=loss.margin, negatives="sum"), pairs, tau=loss.tau)


def _hardest(*, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings) -> Objective:
    return Objective(
        make_learner(),
        partial(triplet, margin=loss.margin),
        pairs,
        tau=loss.tau,
        first_loss=partial(triplet, margin=loss.margin, negatives="sum"),
        first_epochs=loss.first_epochs,
    )


def _check_first_epochs(*, pieces: tuple[int, ...], loss: LossSettings) -> Iterator[str]:
    if loss.first_epochs >= pieces[-1]:
        yield (
            f"loss.first_epochs: {loss.first_epochs} epochs take all negatives, and train.pieces {list(pieces)} ends "
            f"with {pieces[-1]}: none would take the hardest; method triplet takes all negatives throughout"
        )


def _info_nce(*, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings) -> Objective:
    return Objective(make_learner(), partial(info_nce, tau=loss.tau), pairs, tau=loss.tau)


def _complementary(*, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings) -> Objective:
    chosen: Loss
    if loss.kind == "robust":
        chosen = partial(robust_complementary, tau=loss.tau, q=loss.q)
    else:
        chosen = partial(contrastive_complementary, tau=loss.tau, kind=loss.kind, q=loss.q)
    return Objective(make_learner(), chosen, pairs, tau=loss.tau)


def _check_exponent(*, pieces: tuple[int, ...], loss: LossSettings) -> Iterator[str]:
    if loss.kind == "gce" and loss.q == 0:
        yield "loss.q: must be greater than 0 for loss.kind=gce, got 0; its limit there is loss.kind=log"


TRIPLET = MethodRecord(
    name="triplet",
    summary="triplet loss over all negatives, for comparison",
    build=_triplet,
    sections={"loss": LossSettings},
)
TRIPLET_HARDEST = MethodRecord(
    name="triplet-hardest",
    summary="triplet loss with the hardest negatives, which most published matchers were trained with",
    build=_hardest,
    sections={"loss": LossSettings},
    contradictions=_check_first_epochs,
    checkpoints={name: {} for name in ("SGRAF", "SCAN", "CHAN", "VSRN", "NAAF", "IMRAM", "GSMN", "an unknown method")},
)
INFONCE = MethodRecord(
    name="infonce",
    summary="InfoNCE, the plain contrastive loss, for comparison",
    build=_info_nce,
    sections={"loss": LossSettings},
)
COMPLEMENTARY = MethodRecord(
    name="complementary",
    summary="one complementary loss of RCL's family",
    build=_complementary,
    sections={"loss": LossSettings},
    contradictions=_check_exponent,
    checkpoints={"RCL": {"loss.kind": "log"}},
)
