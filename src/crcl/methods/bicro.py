"""BiCro: bidirectional cross-modal similarity consistency (Yang et al., CVPR 2023)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl.data.batches import Batch, Batches
from crcl.losses import Curve, Sims, smallest, triplet
from crcl.matchers.base import Encoded, Matcher, eval_mode, l2
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.division import beta_posterior, divide
from crcl.methods.epochs import CLEAN, NOISY, CompletedSteps, restored_array
from crcl.methods.settings import DivisionSettings, LossSettings, check_division_warmup
from crcl.methods.two_networks import TwoNetworks
from crcl.progress import Clock, StepLog

Sides = tuple[Tensor, Tensor]
"""Unit vectors of the images of a batch, and of its texts. (K, D) each"""


class BiCro:
    """Trains two networks; each divides the pairs for the other and labels them by their consistency with anchors.

    The training has `epochs` epochs; the first `warmup` train on the `kept` share of each batch with the smallest
    losses. In the second half of the remaining ones, each step on a clean batch follows one on a noisy batch. Labels
    that are not above `cut` become 0.

    Where the published code deviates from the paper, this follows the paper: each pair gets its own label (published:
    in a clean batch that of another pair), a margin depends on the anchor's own label in both directions (published:
    on the text's label, even if the image is the anchor), and the component with the lower mean is the clean one. A
    single pair left over makes no batch and does not end the epoch.
    """

    def __init__(
        self,
        make_learner: Callable[[], Learner],
        pairs: int,
        *,
        epochs: int,
        warmup: int = 10,
        margin: float = 0.2,
        curve: Curve = "exponential",
        threshold: float = 0.5,
        kept: float = 0.3,
        cut: float = 0.5,
    ) -> None:
        self.networks = TwoNetworks(make_learner, pairs, margin=margin, curve=curve)
        self.warmup = warmup
        self.noisy_from = warmup + (epochs - warmup) // 2
        self.margin = margin
        self.threshold = threshold
        self.kept = kept
        self.cut = cut
        self.labels = np.ones((2, pairs), dtype=np.float32)

    @property
    def matcher(self) -> Matcher:
        return self.networks.matcher

    @property
    def correspondence(self) -> np.ndarray:
        """Mean of both networks' labels of each pair, or of their posteriors for pairs without labels. (N,)"""
        return self.labels.mean(0)

    def begin_piece(self, piece: int) -> None:
        self.networks.reset()
        self.labels[:] = 1

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        self.networks.train()
        completed = CompletedSteps(clock.step)
        if clock.epoch < self.warmup:
            yield from self.networks.warm_up(self._first_losses, batches, clock, completed)
            return
        yield from self.networks.measure_losses(batches, clock, completed)
        posteriors = [beta_posterior(losses) for losses in self.networks.losses]
        for which in (0, 1):
            yield from self._co_teach(which, posteriors[1 - which], batches, clock, completed)

    def _first_losses(self, sims: Sims) -> Tensor:
        return smallest(triplet(sims, self.margin, negatives="mean"), self.kept)

    def _co_teach(
        self, which: int, posterior: np.ndarray, batches: Batches, clock: Clock, completed: CompletedSteps
    ) -> Iterator[StepLog]:
        """Train one network on the pairs that the other calls clean, with the other's labels."""
        clean = divide(posterior, self.threshold)
        among, others = np.flatnonzero(clean), np.flatnonzero(~clean)
        start = completed.take(batches.count(len(among)))
        if start == 0:
            self.labels[which] = posterior
        noisy_batches = batches.cycle(clock.total_epoch, others, start=start, stream=NOISY + which)
        for batch in batches.epoch(clock.total_epoch, among=among, start=start, stream=CLEAN + which):
            noisy = next(noisy_batches, None)
            steps = self._label(which, batch, noisy)
            if clock.epoch < self.noisy_from:
                steps = steps[-1:]  # noisy pairs are labelled for the audit, but not trained on yet
            yield self.networks.train_on(which, steps, clock)

    def _label(self, which: int, batch: Batch, noisy: Batch | None) -> list[tuple[Batch, Tensor]]:
        """The noisy batch, if any, and then the clean one, each with the labels that the other network gives it."""
        learner = self.networks.learners[1 - which]
        with eval_mode(learner.matcher):
            encoded = learner.encode(batch)
            losses = triplet(learner.matcher.similarity(*encoded), self.margin, negatives="mean")
            sides = _pooled(encoded[0]), _pooled(encoded[1])
            anchors = losses.argsort(stable=True)[: len(batch) // 10 + 1]
            best = sides[0][anchors], sides[1][anchors]
            labelled = [(batch, clean_labels(sides, anchors, cut=self.cut))]
            if noisy is not None:
                images, texts = learner.encode(noisy)
                others = _cut(consistency((_pooled(images), _pooled(texts)), best), self.cut)
                labelled.insert(0, (noisy, others))
        for part, labels in labelled:
            self.labels[which, part.pairs.numpy()] = labels.cpu().numpy()
        return [(part, labels.clone()) for part, labels in labelled]  # no longer bound to inference mode

    def state_dict(self) -> dict[str, Any]:
        return {"twins": self.networks.state_dict(), "labels": torch.from_numpy(self.labels.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.labels = restored_array(state["labels"], self.labels)
        self.networks.load_state_dict(state["twins"])


def consistency(sides: Sides, anchors: Sides) -> Tensor:
    """Similarity of a pair's image to the anchors compared with that of its text, from 0 to 1 (equal). (K,)

    It is the mean of two ratios of cosines, smaller over larger: at the anchor with the nearest image, and at the
    anchor with the nearest text. A ratio is 0 if a cosine is not positive.
    """
    by_image, by_text = sides[0] @ anchors[0].T, sides[1] @ anchors[1].T  # (K, anchors)
    low, high = torch.minimum(by_image, by_text), torch.maximum(by_image, by_text)
    ratios = torch.where(low > 0, low / high, 0)
    nearest = torch.stack([by_image.argmax(1), by_text.argmax(1)], dim=1)  # (K, 2)
    return ratios.gather(1, nearest).mean(1)


def clean_labels(sides: Sides, anchors: Tensor, *, cut: float = 0.5) -> Tensor:
    """Labels of a clean batch: 1 for its anchors, the mean of 1 and their consistency for the others. (K,)"""
    labels = (1 + consistency(sides, (sides[0][anchors], sides[1][anchors]))) / 2
    labels[anchors] = 1
    return _cut(labels, cut)


def _cut(labels: Tensor, cut: float) -> Tensor:
    return torch.where(labels > cut, labels, 0).clamp(0, 1)


def _pooled(encoded: Encoded) -> Tensor:
    """One unit vector for each image or text; regions and words are averaged without padding. (K, D)"""
    x = l2(encoded.features)
    if x.ndim == 3:
        real = x.new_ones(x.shape[:2]) if encoded.mask is None else encoded.mask
        x = l2((x * real[..., None]).sum(1))
    return x


def _build(
    *, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings, division: DivisionSettings
) -> BiCro:
    return BiCro(
        make_learner,
        pairs,
        epochs=plan.epochs,
        warmup=division.warmup,
        margin=loss.margin,
        curve=loss.curve,
        threshold=division.threshold,
        kept=division.kept,
        cut=division.cut,
    )


RECORD = MethodRecord(
    name="bicro",
    summary="co-division by two networks and labels from anchors (BiCro, CVPR 2023)",
    build=_build,
    sections={"loss": LossSettings, "division": DivisionSettings},
    networks=2,
    warmup="division.warmup",
    threshold="division.threshold",
    undivided="it takes the pairs of the smallest losses of a whole batch as anchors, which label all others",
    contradictions=check_division_warmup,
)
