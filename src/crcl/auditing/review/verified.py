"""What an estimate becomes where it is known of some pairs whether they match."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Verified:
    """Pairs of which it is known whether they match, by what was believed of them before."""

    wrong: np.ndarray
    """Correspondences of the wrong ones."""
    right: np.ndarray
    """Correspondences of the right ones."""
    pairs: int
    """N, the number of all pairs."""

    def split(self, threshold: float, below: int, mismatched: float, recall: float) -> "Split":
        """What is flagged if known wrong ones are, known right ones are not, and of the others those below a threshold.

        Args:
            threshold: The threshold.
            below: Number of pairs below it, known ones too.
            mismatched: Estimated number of mismatched pairs, known ones too.
            recall: Estimated share of these below the threshold.
        """
        wrong, right = int((self.wrong < threshold).sum()), int((self.right < threshold).sum())
        others_below = below - wrong - right
        others_above = self.pairs - len(self.wrong) - len(self.right) - others_below
        found = float(np.clip(mismatched * recall - wrong, 0, others_below))
        missed = float(np.clip(mismatched * (1 - recall) - (len(self.wrong) - wrong), 0, others_above))
        return Split(len(self.wrong) + others_below, len(self.wrong) + found, missed)


@dataclass(frozen=True)
class Split:
    """Pairs that are flagged, and how many mismatched ones are among them and among the others."""

    flagged: int
    found: float
    missed: float

    @property
    def precision(self) -> float:
        """Share of the flagged that are mismatched; NaN where nothing is flagged."""
        return self.found / self.flagged if self.flagged else float("nan")

    @property
    def recall(self) -> float:
        """Share of the mismatched that are flagged; 1 where none is mismatched."""
        total = self.found + self.missed
        return self.found / total if total else 1.0
