"""How well each score tells decoys from pairs, and which score an audit takes.

The AUROC of decoys against pairs is not that of mismatched against matching pairs: the pairs have mismatches among
them, which no score tells from decoys. With a share ρ of these it is (1 - ρ) times the true one plus ρ / 2, if decoys
look like mismatches. So the order of the scores is the same, and the best by decoys is the best by truth, but for
chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

BY_NAME_ONLY = frozenset({"similarity", "consistency"})
"""Scores that an audit takes only where they are named. A trained matcher's similarity knows the captions of decoys;
and the captions of a mismatched image may all agree with each other, which those of decoys never do."""
_SURELY = 1.0  # standard errors by which another score must be better than the run's own
_WORSE = 2.0  # standard errors by which a score that tells near decoys worse than the run's own is left out


@dataclass(frozen=True)
class Rating:
    """How well a score tells decoys from pairs."""

    auroc: float
    """Share of decoys and pairs, taken two by two, of which the pair has the higher score."""
    error: float
    """Its standard error."""
    added: float = 0.0
    """By how much it is better than the score that it was compared with."""
    added_error: float = 0.0
    """Standard error of the difference, on the same pairs and decoys."""


def rate(pairs: np.ndarray, decoys: np.ndarray, beside: "tuple[np.ndarray, np.ndarray] | None" = None) -> Rating:
    """Rate a score of pairs `(N,)` and decoys `(D,)`, with another one beside it; errors are DeLong's."""
    above, below = _places(pairs, decoys)
    auroc, error = float(above.mean()), _error(above, below)
    if beside is None:
        return Rating(auroc, error)
    other_above, other_below = _places(*beside)
    return Rating(auroc, error, auroc - float(other_above.mean()), _error(above - other_above, below - other_below))


def _places(pairs: np.ndarray, decoys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each decoy the share of pairs above it, for each pair the share of decoys below it; ties are half."""
    return 1 - _below(decoys, pairs), _below(pairs, decoys)


def _below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The share of `others` below each of the values."""
    order = np.sort(others)
    return (np.searchsorted(order, values) + np.searchsorted(order, values, side="right")) / (2 * len(order))


def _error(of_decoys: np.ndarray, of_pairs: np.ndarray) -> float:
    return float(np.sqrt(of_decoys.var() / len(of_decoys) + of_pairs.var() / len(of_pairs)))


def rate_all(scores: Mapping[str, tuple[np.ndarray, np.ndarray]], own: str) -> dict[str, Rating]:
    """Rate scores of pairs and decoys, by name, all beside the run's own; the best first."""
    found = {name: rate(*score, beside=scores[own]) for name, score in scores.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1].auroc))


def best(ratings: Mapping[str, Rating], own: str, near: Mapping[str, Rating] = MappingProxyType({})) -> str:
    """The score that separates best; the run's own unless another is better by more than a standard error.

    One that is clearly worse than the run's own by `near` decoys, where there are such, is not taken.
    """
    worse = {name for name, rating in near.items() if rating.added < -_WORSE * rating.added_error}
    free = {name: rating for name, rating in ratings.items() if name not in BY_NAME_ONLY | worse}
    name = max(free, key=lambda one: free[one].auroc)
    return name if free[name].added > _SURELY * free[name].added_error else own
