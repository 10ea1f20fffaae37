"""L2RM: learning to rematch mismatched pairs (CVPR 2024)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crcl.data.batches import Batch, Batches
from crcl.losses import info_nce, matching_log_probs, reverse_cross_entropy, symmetric_divergence, triplet
from crcl.matchers import MatcherRecord
from crcl.matchers.base import Matcher
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.division import beta_posterior, divide
from crcl.methods.epochs import CLEAN, MEASURING, NOISY, WARMUP, Done, learn, measure, of_pairs
from crcl.methods.settings import DivisionSettings, LossSettings, only_warmup
from crcl.methods.transport import partial_plan
from crcl.progress import Clock, StepLog
from crcl.settings import Count, NotNegative, Positive, Section, ShareAboveZero


class Settings(Section):
    """Rematching of noisy pairs by partial optimal transport (method l2rm)."""

    mass: ShareAboveZero = 0.1
    """Share ρ of a noisy batch that is moved to a match."""
    regularisation: Positive = 0.07
    """How much the plan is blurred by its entropy; published: 0.01 for Flickr30K."""
    own: bool = False
    """Let a pair called noisy be matched with itself: true for real mismatches, false for injected ones."""
    rematched: NotNegative = 0.01
    """Weight of the noisy pairs' mean loss beside the mean hinge of the clean ones."""
    planted: Count = 12
    """Most clean pairs that the cost of a match learns from in each step."""
    cost_lr: Positive = 2e-6
    """Learning rate of the cost of a match."""


class L2RM:
    """Learn from clean pairs as they are, and from noisy ones as partial optimal transport rematches them.

    After the warm-up each epoch begins with a division of the pairs by a beta mixture of their losses in eval mode. A
    step takes a clean batch, by hardest triplets, and a noisy one: a plan moves `mass` between its images and captions
    at a learnt cost, and its rows and columns are the targets of their matching probabilities. With `own` a noisy pair
    may be matched with itself; published under injected mismatches: it may not. The correspondence is how likely a
    pair is clean, by the last division.

    The cost learns beside the network, from up to `planted` clean pairs that take the places of as many noisy ones.
    It is meant to be low for these: here that is to say beside the other costs of their rows and columns, since a cost
    that is low for all would say nothing. `slots` is the size of a full batch. Published loaders drop smaller batches;
    here such a one uses as many places of the cost as it has pairs. Both losses are averaged over their batches, and
    `scale` is the weight of the noisy one.
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
        self.learner.renew()
        self.cost = Cost(self.slots).to(self.learner.descent.device)
        self.cost_optimizer = torch.optim.Adam(self.cost.parameters(), lr=self.cost_learning_rate)
        self.losses[:], self.correspondence[:] = 0, 1

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        self.learner.module.train()
        done = Done(clock.step)
        start = done.of(len(batches))
        if clock.epoch < self.warmup:
            yield from learn(self.learner, self._first_losses, batches, clock, start=start, stream=WARMUP)
            return
        yield from measure(self.learner, self.losses, batches, clock, margin=self.margin, start=start, stream=MEASURING)
        self.correspondence = beta_posterior(self.losses).astype(np.float32)
        yield from self._rematch(batches, clock, done)

    def _first_losses(self, sims: Tensor) -> Tensor:
        """Cross-entropy in both senses. (K,)"""
        return (info_nce(sims, tau=self.tau) + reverse_cross_entropy(sims, tau=self.tau)) / 2

    def _rematch(self, batches: Batches, clock: Clock, done: Done) -> Iterator[StepLog]:
        """A pass over the clean pairs, the noisy ones beside them as often as need be."""
        clean = divide(self.correspondence, self.threshold)
        among, others = np.flatnonzero(clean), np.flatnonzero(~clean)
        start = done.of(batches.count(len(among)))
        noisy_batches = batches.cycle(clock.total_epoch, others, start=start, stream=NOISY)
        for batch in batches.epoch(clock.total_epoch, among=among, start=start, stream=CLEAN):
            noisy = next(noisy_batches, None)
            losses, pairs = triplet(self.learner.similarities(batch), self.margin), len(batch)
            if noisy is not None:
                losses = losses + self.scale * self._rematched(noisy, batch).mean()
                pairs += len(noisy)
            yield StepLog(pairs, self.learner.descent.step(losses, batch, clock.learning_rate))

    def _rematched(self, noisy: Batch, clean: Batch) -> Tensor:
        """Losses of a noisy batch; on the way the cost learns from clean pairs that are planted among it. (K,)"""
        most = min(self.planted, len(clean), len(noisy))
        number, size = int(torch.randint(1, most + 1, ())), len(noisy)
        sims = self.learner.similarities(noisy.join(clean.first(number)))
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
        """What a plan says each image matches, and each text: its rows add up to 1, its columns do. (K, K) each"""
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
        self.losses = of_pairs(state["losses"], self.losses)
        self.correspondence = of_pairs(state["correspondence"], self.correspondence)
        self.learner.load_state_dict(state)
        self.cost.load_state_dict(state["cost"])
        self.cost_optimizer.load_state_dict(state["cost_optimizer"])


class Cost(nn.Module):
    """What it costs to match image and text, from all similarities of the image's row; at first 1 - similarity."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(-torch.eye(slots))
        self.bias = nn.Parameter(torch.ones(slots))

    def forward(self, sims: Tensor) -> Tensor:
        """(K, K) to (K, K); a batch that is not full uses the first K places."""
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
    return f"its cost of a match is 1 - similarity and never below 0, and similarities of {matcher.name} go beyond 1"


RECORD = MethodRecord(
    name="l2rm",
    summary="rematching of noisy pairs by optimal transport (L2RM, CVPR 2024)",
    build=_build,
    sections={"loss": LossSettings, "division": DivisionSettings, "l2rm": Settings},
    warmup="division.warmup",
    threshold="division.threshold",
    refuses=_refuses,
    contradictions=only_warmup,
    checkpoints={"L2RM": {}},
)
