"""GSC: geometrical structure consistency (CVPR 2024)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from crcl import distributed
from crcl.data.batches import Batches
from crcl.distributed import Part, own_first
from crcl.losses import active, matching_log_probs, pair_probability
from crcl.matchers import MatcherRecord
from crcl.matchers.base import Matcher
from crcl.methods.base import Learner, MethodRecord, Plan
from crcl.methods.division import gaussian_posterior
from crcl.methods.epochs import division_seed, restored_array
from crcl.methods.settings import LossSettings
from crcl.progress import Clock, StepLog
from crcl.settings import NotNegative, Section, ShareBelowOne


class Settings(Section):
    """Beliefs by probability and by structure (method gsc)."""

    structure: NotNegative = 0.01
    """Scale γ of the structural loss; the published script for COCO leaves it at 1."""
    momentum: ShareBelowOne = 0.3
    """Weight of the old beliefs after each epoch."""


class GSC:
    """Weights each pair by two beliefs: p̂, and the agreement of its image's and its text's similarities to the batch.

    The agreement is the cosine of a pair's rows in the two matrices of `structures`; a Gaussian mixture of all pairs'
    agreements turns it into a probability. After each epoch both beliefs move towards the values seen in its steps,
    and the smaller one is the pair's label in the next epoch; `momentum` is the weight of the previous beliefs, `scale`
    that of the structural loss. A pair that was in no batch of the epoch keeps the values seen last.

    This is the published variant with one network; GSC+, with two, is not implemented. SAF and SGR compare images with
    images and texts with texts by the same head, as published; matchers with one vector per image and text compare
    these by cosine. Running statistics only cover images with texts. The published τ is 0.07; `scale` is 0.01, but 1
    in the published script for COCO.
    """

    def __init__(
        self,
        learner: Learner,
        pairs: int,
        *,
        tau: float = 0.05,
        scale: float = 0.01,
        momentum: float = 0.3,
        start: np.ndarray | None = None,
    ) -> None:
        self.learner = learner
        self.tau = tau
        self.scale = scale
        self.momentum = momentum
        self.start = np.ones(pairs) if start is None else start
        self._reset_beliefs()

    def _reset_beliefs(self) -> None:
        """Set both beliefs, of structure and of p̂, to their initial values `(2, N)`, and clear the values seen."""
        self.beliefs = np.stack([self.start, self.start]).astype(np.float32)
        self.seen = np.full_like(self.beliefs, np.nan)

    @property
    def matcher(self) -> Matcher:
        return self.learner.matcher

    @property
    def correspondence(self) -> np.ndarray:
        return self.beliefs.min(0)

    def begin_piece(self, piece: int) -> None:
        self.learner.reset()
        self._reset_beliefs()

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        labels = torch.from_numpy(self.correspondence)
        self.learner.module.train()
        for batch in batches.epoch(clock.total_epoch, start=clock.step):
            images, texts = self.learner.encode(batch)
            sims = self.learner.compare(images, texts, batch)
            alike = self.learner.within(images, batch), self.learner.within(texts, batch)
            i2t, t2i = matching_log_probs(sims, self.tau)
            everyone = labels[batch.all_pairs].to(sims.device)
            by_image, by_text = structures(*alike, everyone)
            own, others = batch.own(everyone), batch.gather(by_text)
            losses = active(i2t, t2i, own) / 2 + self.scale * own * structural(by_image, others, batch.part)
            agreement = cosine_similarity(by_image.detach(), by_text.detach(), dim=1)
            seen = batch.gather(torch.stack([agreement, pair_probability(i2t, t2i)], dim=1))
            self.seen[:, batch.all_pairs.numpy()] = seen.T.cpu().numpy()
            yield StepLog(batch.size, self.learner.optimizer.step(losses, batch, clock.learning_rate))
        self._refine(division_seed(batches, clock, 0))

    def _refine(self, seed: int) -> None:
        """Update both beliefs of all pairs that have been in a batch."""
        known = np.flatnonzero(np.isfinite(self.seen).all(0))
        agreement, probability = self.seen[:, known]
        matched = gaussian_posterior(-agreement, seed=seed)  # of the component with more agreement
        new = np.stack([distributed.from_first(matched), probability])
        self.beliefs[:, known] = self.momentum * self.beliefs[:, known] + (1 - self.momentum) * new

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.learner.state_dict(),
            "beliefs": torch.from_numpy(self.beliefs.copy()),
            "seen": torch.from_numpy(self.seen.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.beliefs, self.seen = (
            restored_array(state["beliefs"], self.beliefs),
            restored_array(state["seen"], self.seen),
        )
        self.learner.load_state_dict(state)


def structures(image_sims: Tensor, text_sims: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Similarities of each image to all images of the batch, and of each text to all texts. (K, K) each

    Column k is weighted by the label of pair k.
    """
    return image_sims.float() * labels, text_sims.float() * labels


def structural(by_image: Tensor, by_text: Tensor, part: Part | None = None) -> Tensor:
    """InfoNCE of the rows of `structures`: an image's row should agree most with that of its own text. (K,)

    From images to texts only, at temperature 1, as published. If processes share the batch, `by_image` has the rows
    of the own images and `by_text` those of all texts.
    """
    return -own_first(by_image @ by_text.T, part, dim=1).log_softmax(1).diagonal()


def _build(*, make_learner: Callable[[], Learner], pairs: int, plan: Plan, loss: LossSettings, gsc: Settings) -> GSC:
    return GSC(
        make_learner(),
        pairs,
        tau=loss.tau,
        scale=gsc.structure,
        momentum=gsc.momentum,
        start=plan.beliefs,
    )


def _refuses(matcher: MatcherRecord) -> str:
    if matcher.compares_within:
        return ""
    return (
        "it compares images with images and texts with texts as the matcher does, and "
        f"{matcher.name} cannot compare those"
    )


RECORD = MethodRecord(
    name="gsc",
    summary="weights by probability and by geometrical structure (GSC, CVPR 2024)",
    build=_build,
    sections={"loss": LossSettings, "gsc": Settings},
    # GSC has no threshold of its own; its beliefs are comparable to those of crcl
    threshold="ledger.threshold",
    starts_from_beliefs=True,
    refuses=_refuses,
    checkpoints={"GSC": {}},
)
