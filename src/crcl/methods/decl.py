"""DECL: deep evidential cross-modal learning (Qin et al., ACM MM 2022)."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crcl.data.batches import Batch, Batches
from crcl.losses import dynamic_hinge, evidence_share, evidential
from crcl.matchers.base import Matcher, scoring
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.epochs import EVALUATION, of_pairs
from crcl.methods.settings import LossSettings, never_judged
from crcl.progress import Clock, StepLog
from crcl.settings import Count, NotNegative, Section


class Settings(Section):
    """Evidence instead of similarities (method decl)."""

    warmup: Count = 5
    """First epochs, in which every pair counts as matched; published: 5, and 2 from 60 % mismatches on."""
    evidence_tau: Annotated[float, Field(ge=0.05)] = 0.1
    """Temperature τ of the evidence; lower ones make more evidence than can be counted exactly."""
    divergence: NotNegative = 0.1
    """Scale λ₂ of the divergence of the wrong candidates' evidence from none."""
    hinge: NotNegative = 0.8
    """Scale λ₁ of the hinge."""
    most_negatives: Count = 128
    """Hardest negatives in the hinge of the first step."""
    least_negatives: Count = 5
    """Fewest hardest negatives in the hinge."""
    shrink: NotNegative = 0.025
    """Negatives that the hinge loses per step; small data take few steps and need more."""


class DECL:
    """Learn from evidence; a pair that is not the most evident one of its batch has no right candidate in it.

    In the warm-up every pair counts as matched. Then each epoch begins with a division in eval mode: a pair judged
    mismatched gets labels of 0 and no hinge. Evidence is made of the raw scores of SAF and SGR, and of the similarities
    of matchers that have no others. The correspondence is a pair's evidence beside its strongest rival's, from 0.5 on
    judged matched: that of the last division, or of the training steps in the warm-up.

    As published, the evidential losses of a batch are averaged and its hinges are added up. Unlike the published code,
    which ends an epoch at a batch of fewer than 6 pairs, small batches train with the negatives that they have.
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
        self.learner.renew()
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
            losses = self._losses(scores, matched, self.negatives(clock.epoch * len(batches) + number))
            yield StepLog(len(batch), self.learner.descent.step(losses, batch, clock.learning_rate))

    def negatives(self, step: int) -> int:
        """How many of the hardest negatives enter the hinge; steps are counted from the start of the warm-up."""
        return max(int(self.most - self.shrink * step), self.least)

    def _divide(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        """Judge each pair in a random batch, by the matcher as it is at the epoch's beginning."""
        for batch in batches.epoch(clock.total_epoch, start=clock.step, stream=EVALUATION, augment=False):
            with scoring(self.matcher):
                self._believe(batch, self.learner.scores(batch))
            yield StepLog(len(batch), float("nan"), phase="division")

    def _believe(self, batch: Batch, scores: Tensor) -> None:
        self.correspondence[batch.pairs.numpy()] = evidence_share(scores, self.tau).cpu().numpy()

    def _judged(self, batch: Batch) -> Tensor:
        return torch.from_numpy(self.correspondence[batch.pairs.numpy()] >= 0.5)

    def _losses(self, scores: Tensor, matched: Tensor, negatives: int) -> Tensor:
        matched = matched.to(scores.device)
        losses = evidential(scores, matched, tau=self.tau, scale=self.divergence)
        hinges = dynamic_hinge(scores, negatives, margin=self.margin) * matched
        return losses + self.hinge * len(scores) * hinges  # the mean of these has the sum of the hinges

    def state_dict(self) -> dict[str, Any]:
        return {**self.learner.state_dict(), "correspondence": torch.from_numpy(self.correspondence.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.correspondence = of_pairs(state["correspondence"], self.correspondence)
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
    yield from never_judged("decl", decl.warmup, pieces)
    if decl.least_negatives > decl.most_negatives:
        yield f"decl.least_negatives: {decl.least_negatives} is more than decl.most_negatives, {decl.most_negatives}"


RECORD = MethodRecord(
    name="decl",
    summary="evidence instead of similarities (DECL, ACM MM 2022)",
    build=_build,
    sections={"loss": LossSettings, "decl": Settings},
    threshold=0.5,
    contradictions=_contradictions,
    checkpoints={"DECL": {}},
)
