"""The ledger: correspondences of all pairs, refined over epochs and pieces (self-refining correspondence, Eq. 10-12).

A ledger only needs row numbers of pairs and matching probabilities, so it works with any training loop:

    ledger = Ledger(len(pairs))
    for epoch in range(epochs):
        ledger.begin_epoch(0, epoch)
        for numbers, sims in batches:
            labels = ledger.observe(numbers, pair_probability(*matching_log_probs(sims, 0.05)))
            active_complementary(sims, labels).mean().backward()

Pieces and epochs are counted from 0 here; the paper's t is `epoch + 1`, its j is `piece + 1`.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Correction = Literal["paper", "official", "none"]


def refine(
    correspondence: np.ndarray,
    probability: np.ndarray,
    *,
    piece: int,
    epoch: int,
    momentum: float = 0.8,
    freeze_epochs: int = 2,
) -> np.ndarray:
    """Beliefs at the start of an epoch, Eq. 11, from p̂ of the previous one; pairs without p̂ (NaN) keep theirs. (N,)

    Without frozen epochs, the first epoch has no previous one: all beliefs stay, and Eq. 10 applies from the second.
    """
    if epoch < freeze_epochs:
        return correspondence
    first = piece == 0 and epoch == freeze_epochs
    refined = probability if first else _momentum(correspondence, probability, momentum)
    return np.where(np.isnan(probability), correspondence, refined)


def cut(correspondence: np.ndarray, threshold: float = 0.1) -> np.ndarray:
    """Labels for the loss, Eq. 12: a belief below the threshold counts as a certain mismatch. (N,)"""
    return np.where(correspondence < threshold, np.float32(0), correspondence)


class Ledger:
    """The correspondences of all pairs while a matcher is trained.

    correction "paper": Eq. 11 and 12 to the letter. Beliefs change between epochs, from p̂ of the previous epoch; the
        threshold applies to the labels only.
    correction "official": as in the authors' code. Beliefs change at each step, from p̂ of that step; in the first piece
        the last frozen epoch stores p̂ as it is; labels below the threshold are stored as 0, even in frozen epochs.
    correction "none": no self-refining correction. The label is p̂ of the current step (1 in frozen epochs), and the
        ledger stores the last p̂.

    `fixed` gives beliefs `(pairs,)` that are known, NaN where they are not: their labels are these, whatever p̂ is. The
    ledger still forms beliefs of these pairs from p̂; `told` has the known ones in their place.

    `start` gives beliefs `(pairs,)` of an earlier training to start from, instead of ones. These count as a piece
    before the first: the rule of Eq. 11 that takes p̂ as it is does not apply again, only the momentum does.
    """

    def __init__(
        self,
        pairs: int,
        *,
        momentum: float = 0.8,
        threshold: float = 0.1,
        freeze_epochs: int = 2,
        correction: Correction = "paper",
        start: np.ndarray | None = None,
        fixed: np.ndarray | None = None,
    ) -> None:
        if pairs < 1:
            raise ValueError(f"a ledger needs at least one pair, got {pairs}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be in [0, 1), got {threshold}")
        if freeze_epochs < 0:
            raise ValueError(f"freeze_epochs must be 0 or more, got {freeze_epochs}")
        if correction not in ("paper", "official", "none"):
            raise ValueError(f"correction must be paper, official or none, got {correction!r}")
        if start is not None and (start.shape != (pairs,) or not ((start >= 0) & (start <= 1)).all()):
            raise ValueError(f"start must have {pairs} beliefs from 0 to 1, one for each pair")
        if fixed is not None and (fixed.shape != (pairs,) or (fixed < 0).any() or (fixed > 1).any()):
            raise ValueError(f"fixed must have {pairs} beliefs from 0 to 1 or NaN, one for each pair")
        self.fixed = fixed
        self.momentum = momentum
        self.threshold = threshold
        self.freeze_epochs = freeze_epochs
        self.correction = correction
        self.piece = 0
        self.epoch = 0
        self.pieces_before = 0 if start is None else 1
        self.correspondence = np.ones(pairs, np.float32) if start is None else start.astype(np.float32)
        self.probability = np.full(pairs, np.nan, dtype=np.float32)  # p̂ of this epoch; NaN: not seen yet

    def __len__(self) -> int:
        return len(self.correspondence)

    @property
    def told(self) -> np.ndarray:
        """The correspondences, with those that are fixed in their place. (pairs,)"""
        return self._with_fixed(self.correspondence, np.arange(len(self)))

    def _with_fixed(self, beliefs: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Beliefs of some pairs, or what is known of them."""
        if self.fixed is None:
            return beliefs
        known = self.fixed[numbers]
        return np.where(np.isnan(known), beliefs, known).astype(np.float32)

    def begin_epoch(self, piece: int, epoch: int) -> None:
        """Update the beliefs for this epoch, then clear the probabilities that they were computed from."""
        if epoch > 0 and self.correction == "paper":
            self.correspondence = refine(
                self.correspondence,
                self.probability,
                piece=self.pieces_before + piece,
                epoch=epoch,
                momentum=self.momentum,
                freeze_epochs=self.freeze_epochs,
            )
        self.piece, self.epoch = piece, epoch
        self.probability = np.full(len(self), np.nan, dtype=np.float32)

    def record(self, pairs: Tensor, probability: Tensor) -> None:
        """Store p̂ of these pairs for the next epoch, replacing earlier values."""
        self.probability[_numbers(pairs)] = probability.detach().float().cpu().numpy()

    def observe(self, pairs: Tensor, probability: Tensor) -> Tensor:
        """Store p̂ of these pairs and return their labels for the loss. (K,), on p̂'s device"""
        self.record(pairs, probability)
        numbers = _numbers(pairs)
        now = self.probability[numbers]
        if self.correction == "paper":
            labels = cut(self.correspondence[numbers], self.threshold)
        elif self.correction == "official":
            labels = self._official(numbers, now)
        else:
            self.correspondence[numbers] = now
            labels = np.ones_like(now) if self.epoch < self.freeze_epochs else now
        return torch.from_numpy(self._with_fixed(labels, numbers)).to(probability.device)

    def _official(self, numbers: np.ndarray, now: np.ndarray) -> np.ndarray:
        before = self.correspondence[numbers]
        refined = before if self.epoch < self.freeze_epochs else _momentum(before, now, self.momentum)
        labels = cut(refined, self.threshold)
        store_as_is = self.pieces_before + self.piece == 0 and self.epoch == self.freeze_epochs - 1
        self.correspondence[numbers] = now if store_as_is else labels
        return labels

    def state_dict(self) -> dict[str, Any]:
        return {
            "piece": self.piece,
            "epoch": self.epoch,
            "correspondence": torch.from_numpy(self.correspondence.copy()),
            "probability": torch.from_numpy(self.probability.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["correspondence"]) != len(self):
            raise ValueError(f"the saved ledger has {len(state['correspondence'])} pairs, the data {len(self)}")
        self.piece, self.epoch = int(state["piece"]), int(state["epoch"])
        self.correspondence = state["correspondence"].numpy().copy()
        self.probability = state["probability"].numpy().copy()


def _momentum(before: np.ndarray, now: np.ndarray, momentum: float) -> np.ndarray:
    """Eq. 10, in float32."""
    return np.float32(momentum) * before + np.float32(1 - momentum) * now


def _numbers(pairs: Tensor) -> np.ndarray:
    return pairs.detach().cpu().numpy()
