"""DECL: deep evidential cross-modal learning (Qin et al., ACM MM 2022)."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crcl.data.batches import Batch, Batches
from crcl.losses import Sims, dynamic_hinge, evidence_share, evidential
from crcl.matchers.base import Matcher, eval_mode
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.epochs import EVALUATION, restored_array
from crcl.methods.settings import LossSettings, check_warmup
from crcl.progress import Clock, StepLog
from crcl.settings import Count, NotNegative, Section


class Settings(Section):
    """Evidential learning (method decl)."""

    warmup: Count = 5
    """First epochs, in which every pair counts as matched; published: 5, and 2 from 60 % mismatches on."""
    evidence_tau: Annotated[float, Field(ge=0.05)] = 0.1
    """Temperature τ of the evidence; with lower ones the evidence is too large to be computed exactly."""
    divergence: NotNegative = 0.1
    """Scale λ₂ of the divergence, which penalises evidence for wrong candidates."""
    hinge: NotNegative = 0.8
    """Scale λ₁ of the hinge."""
    most_negatives: Count = 128
    """Hardest negatives in the hinge of the first step."""
    least_negatives: Count = 5
    """Fewest hardest negatives in the hinge."""
    shrink: NotNegative = 0.025
    """Decrease of the number of negatives per step; small data take few steps and need a faster one."""


class DECL:
    """Trains on evidence; a pair is judged mismatched if another candidate in its batch has more evidence.

    In the warm-up every pair counts as matched. After it, each epoch starts with a division in eval mode: a pair
    judged mismatched gets labels of 0 and no hinge. Evidence is computed from the scores before the sigmoid of SAF and
    SGR, and from the similarities of other matchers. The correspondence is the share of a pair's own evidence compared
    with its strongest rival (`losses.evidence_share`); from 0.5 on the pair is judged matched. It is taken from the
    last division, or in the warm-up from the training steps.

    As published, the evidential losses of a batch are averaged and its hinges are summed. The published code ends an
    epoch at a batch of fewer than 6 pairs; here small batches train with the negatives that they have.
    """

    def __init__(
        self,
        learner: Learner,
        pairs: int,
        *,
        warmup: int = 5,
        tau: float = 0.1,
        divergence: float = 0.1,
        hinge: float = 0.8,
        margin: float = 0.2,
        most: int = 128,
        least: int = 5,
        shrink: float = 0.025,
    ) -> None:
        self.learner = learner
        self.pairs = pairs
        self.warmup = warmup
        self.tau = tau
        self.divergence = divergence
        self.hinge = hinge
        self.margin = margin
        self.most = most
        self.least = least
        self.shrink = shrink
        self.correspondence = np.ones(self.pairs, dtype=np.float32)

    @property
    def matcher(self) -> Matcher:
        return self.learner.matcher

    def begin_piece(self, piece: int) -> None:
        self.learner.reset()
        self.correspondence = np.ones(self.pairs, dtype=np.float32)

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        start, divided = clock.step, clock.epoch >= self.warmup
        if divided:
            yield from self._divide(batches, clock)
            start = max(clock.step - len(batches), 0)
        self.learner.module.train()
        for number, batch in enumerate(batches.epoch(clock.total_epoch, start=start), start):
            scores = self.learner.scores(batch)
            if not divided:
                self._believe(batch, scores)
            matched = self._judged(batch) if divided else torch.ones(len(batch))
            losses = self._losses(scores, matched, batch.size, self.negatives(clock.epoch * len(batches) + number))
            yield StepLog(batch.size, self.learner.optimizer.step(losses, batch, clock.learning_rate))

    def negatives(self, step: int) -> int:
        """Number of hardest negatives in the hinge; steps are counted from the start of the warm-up."""
        return max(int(self.most - self.shrink * step), self.least)

    def _divide(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        """Judge each pair in a random batch, before the epoch's first step."""
        for batch in batches.epoch(clock.total_epoch, start=clock.step, stream=EVALUATION, augment=False):
            with eval_mode(self.matcher):
                self._believe(batch, self.learner.scores(batch))
            yield StepLog(batch.size, float("nan"), phase="division")

    def _believe(self, batch: Batch, scores: Sims) -> None:
        self.correspondence[batch.all_pairs.numpy()] = batch.gather(evidence_share(scores, self.tau)).cpu().numpy()

    def _judged(self, batch: Batch) -> Tensor:
        return torch.from_numpy(self.correspondence[batch.pairs.numpy()] >= 0.5)

    def _losses(self, scores: Sims, matched: Tensor, pairs: int, negatives: int) -> Tensor:
        matched = matched.to(scores.device)
        losses = evidential(scores, matched, tau=self.tau, scale=self.divergence)
        hinges = dynamic_hinge(scores, negatives, margin=self.margin) * matched
        return losses + self.hinge * pairs * hinges  # the batch mean then contains the sum of the hinges

    def state_dict(self) -> dict[str, Any]:
        return {**self.learner.state_dict(), "correspondence": torch.from_numpy(self.correspondence.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.correspondence = restored_array(state["correspondence"], self.correspondence)
        self.learner.load_state_dict(state)


def _build(*, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings, decl: Settings) -> DECL:
    return DECL(
        make_learner(),
        pairs,
        warmup=decl.warmup,
        tau=decl.evidence_tau,
        divergence=decl.divergence,
        hinge=decl.hinge,
        margin=loss.margin,
        most=decl.most_negatives,
        least=decl.least_negatives,
        shrink=decl.shrink,
    )


def _contradictions(*, pieces: tuple[int, ...], loss: LossSettings, decl: Settings) -> Iterator[str]:
    yield from check_warmup("decl", decl.warmup, pieces)
    if decl.least_negatives > decl.most_negatives:
        yield f"decl.least_negatives: {decl.least_negatives} is more than decl.most_negatives, {decl.most_negatives}"


RECORD = MethodRecord(
    name="decl",
    summary="evidential learning with division of pairs (DECL, ACM MM 2022)",
    build=_build,
    sections={"loss": LossSettings, "decl": Settings},
    threshold=0.5,
    contradictions=_contradictions,
    checkpoints={"DECL": {}},
)
