"""L2RM: learning to rematch mismatched pairs (CVPR 2024)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crcl.data.batches import Batch, Batches
from crcl.losses import Sims, info_nce, matching_log_probs, reverse_cross_entropy, symmetric_divergence, triplet
from crcl.matchers import MatcherRecord
from crcl.matchers.base import Matcher
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.division import beta_posterior, divide
from crcl.methods.epochs import (
    CLEAN,
    MEASURING,
    NOISY,
    WARMUP,
    CompletedSteps,
    measure_losses,
    restored_array,
    train_batches,
)
from crcl.methods.settings import DivisionSettings, LossSettings, check_division_warmup
from crcl.methods.transport import partial_plan
from crcl.progress import Clock, StepLog
from crcl.settings import Count, NotNegative, Positive, Section, ShareAboveZero


class Settings(Section):
    """Rematching of noisy pairs by partial optimal transport (method l2rm)."""

    mass: ShareAboveZero = 0.1
    """Share ρ of a noisy batch that is moved to a match."""
    regularisation: Positive = 0.07
    """Weight of the plan's entropy, which makes the plan smoother; published: 0.01 for Flickr30K."""
    own: bool = False
    """Let a pair called noisy be matched with itself: true for real mismatches, false for injected ones."""
    rematched: NotNegative = 0.01
    """Weight of the noisy pairs' mean loss, added to the mean hinge of the clean ones."""
    planted: Count = 12
    """Most clean pairs per step that train the cost of a match."""
    cost_lr: Positive = 2e-6
    """Learning rate of the cost of a match."""


class L2RM:
    """Trains on clean pairs as they are, and on noisy pairs as partial optimal transport rematches them.

    After the warm-up, each epoch starts with a division of the pairs by a beta mixture of their losses in eval mode. A
    step trains on the hardest triplets of a clean batch and on a noisy batch: a transport plan moves `mass` between its
    images and captions at a learnt cost, and the plan's rows and columns are the targets of the matching
    probabilities. With `own` a noisy pair may be matched with itself; the published code forbids this for injected
    mismatches. The correspondence is the probability that a pair is clean, from the last division.

    The cost is trained together with the network, on up to `planted` clean pairs that replace as many noisy ones. Its
    loss makes the cost of a clean pair low relative to the other costs in its row and column, since a cost that is low
    everywhere would carry no information. `slots` is the size of a full batch. The published code drops smaller
    batches; here a batch of K pairs uses the first K slots of the cost. Both losses are averaged over their batches,
    and `scale` is the weight of the noisy one.
    """

    def __init__(
        self,
        learner: Learner,
        pairs: int,
        *,
        slots: int = 128,
        warmup: int = 5,
        margin: float = 0.2,
        tau: float = 0.05,
        threshold: float = 0.5,
        mass: float = 0.1,
        regularisation: float = 0.07,
        own: bool = False,
        scale: float = 0.01,
        planted: int = 12,
        cost_learning_rate: float = 2e-6,
    ) -> None:
        self.learner = learner
        self.slots = slots
        self.warmup = warmup
        self.margin = margin
        self.tau = tau
        self.threshold = threshold
        self.mass = mass
        self.regularisation = regularisation
        self.own = own
        self.scale = scale
        self.planted = planted
        self.cost_learning_rate = cost_learning_rate
        self.losses = np.zeros(pairs, dtype=np.float32)
        self.correspondence = np.ones(pairs, dtype=np.float32)

    @property
    def matcher(self) -> Matcher:
        return self.learner.matcher

    def begin_piece(self, piece: int) -> None:
        self.learner.reset()
        self.cost = Cost(self.slots).to(self.learner.optimizer.device)
        self.cost_optimizer = torch.optim.Adam(self.cost.parameters(), lr=self.cost_learning_rate)
        self.losses[:], self.correspondence[:] = 0, 1

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        self.learner.module.train()
        completed = CompletedSteps(clock.step)
        start = completed.take(len(batches))
        if clock.epoch < self.warmup:
            yield from train_batches(self.learner, self._first_losses, batches, clock, start=start, stream=WARMUP)
            return
        yield from measure_losses(
            self.learner, self.losses, batches, clock, margin=self.margin, start=start, stream=MEASURING
        )
        self.correspondence = beta_posterior(self.losses).astype(np.float32)
        yield from self._rematch(batches, clock, completed)

    def _first_losses(self, sims: Sims) -> Tensor:
        """Mean of cross-entropy and reverse cross-entropy, the loss of the warm-up. (K,)"""
        return (info_nce(sims, tau=self.tau) + reverse_cross_entropy(sims, tau=self.tau)) / 2

    def _rematch(self, batches: Batches, clock: Clock, completed: CompletedSteps) -> Iterator[StepLog]:
        """Train on all clean batches, each together with a noisy batch; noisy batches repeat if they are fewer."""
        clean = divide(self.correspondence, self.threshold)
        among, others = np.flatnonzero(clean), np.flatnonzero(~clean)
        start = completed.take(batches.count(len(among)))
        noisy_batches = batches.cycle(clock.total_epoch, others, start=start, stream=NOISY)
        for batch in batches.epoch(clock.total_epoch, among=among, start=start, stream=CLEAN):
            noisy = next(noisy_batches, None)
            losses, pairs = triplet(self.learner.matrix(batch), self.margin), len(batch)
            if noisy is not None:
                losses = losses + self.scale * self._rematched(noisy, batch).mean()
                pairs += len(noisy)
            yield StepLog(pairs, self.learner.optimizer.step(losses, batch, clock.learning_rate))

    def _rematched(self, noisy: Batch, clean: Batch) -> Tensor:
        """Losses of a noisy batch, after a step of the cost on clean pairs planted in the batch. (K,)"""
        most = min(self.planted, len(clean), len(noisy))
        number, size = int(torch.randint(1, most + 1, ())), len(noisy)
        sims = self.learner.matrix(noisy.join(clean.first(number)))
        places = torch.arange(size)
        planted = torch.randperm(size)[:number]
        places[planted] = size + torch.arange(number)
        self._learn_cost(sims.detach().float()[places][:, places], planted)
        sims = sims[:size, :size]
        rows, columns = self.targets(sims.detach())
        return symmetric_divergence(*matching_log_probs(sims, self.tau), rows, columns)

    def _learn_cost(self, sims: Tensor, planted: Tensor) -> None:
        loss = info_nce(-self.cost(sims), tau=self.regularisation)[planted.to(sims.device)].mean()
        self.cost_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.cost_optimizer.step()

    def targets(self, sims: Tensor) -> tuple[Tensor, Tensor]:
        """Targets from a transport plan: of each image, rows that sum to 1, and of each text, columns. (K, K) each"""
        with torch.no_grad():
            cost = self.cost(sims.float())
        forbidden = None if self.own else torch.eye(len(sims), dtype=torch.bool, device=sims.device)
        plan = partial_plan(cost, self.mass, regularisation=self.regularisation, forbidden=forbidden)
        return plan.softmax(1), plan.softmax(0)

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.learner.state_dict(),
            "cost": self.cost.state_dict(),
            "cost_optimizer": self.cost_optimizer.state_dict(),
            "losses": torch.from_numpy(self.losses.copy()),
            "correspondence": torch.from_numpy(self.correspondence.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = restored_array(state["losses"], self.losses)
        self.correspondence = restored_array(state["correspondence"], self.correspondence)
        self.learner.load_state_dict(state)
        self.cost.load_state_dict(state["cost"])
        self.cost_optimizer.load_state_dict(state["cost_optimizer"])


class Cost(nn.Module):
    """Cost of matching an image and a text: a linear layer of the image's similarities, initially 1 - similarity."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(-torch.eye(slots))
        self.bias = nn.Parameter(torch.ones(slots))

    def forward(self, sims: Tensor) -> Tensor:
        """Similarities (K, K) to costs (K, K); a batch of K pairs uses the first K slots."""
        size = len(sims)
        return (sims @ self.weight[:size, :size].T + self.bias[:size]).relu()


def _build(
    *,
    make_learner: Callable[[], Learner],
    pairs: int,
    plan: Plan,
    loss: LossSettings,
    division: DivisionSettings,
    l2rm: Settings,
) -> L2RM:
    return L2RM(
        make_learner(),
        pairs,
        slots=plan.batch_size,
        warmup=division.warmup,
        margin=loss.margin,
        tau=loss.tau,
        threshold=division.threshold,
        mass=l2rm.mass,
        regularisation=l2rm.regularisation,
        own=l2rm.own,
        scale=l2rm.rematched,
        planted=l2rm.planted,
        cost_learning_rate=l2rm.cost_lr,
    )


def _refuses(matcher: MatcherRecord) -> str:
    if matcher.bounded:
        return ""
    return f"its cost of a match is 1 - similarity and never below 0, but {matcher.name} has similarities above 1"


RECORD = MethodRecord(
    name="l2rm",
    summary="rematching of noisy pairs by optimal transport (L2RM, CVPR 2024)",
    build=_build,
    sections={"loss": LossSettings, "division": DivisionSettings, "l2rm": Settings},
    warmup="division.warmup",
    threshold="division.threshold",
    undivided="optimal transport rematches all pairs of a noisy batch at once, clean ones planted among them",
    refuses=_refuses,
    contradictions=check_division_warmup,
    checkpoints={"L2RM": {}},
)
