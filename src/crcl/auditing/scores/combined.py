"""Several scores as one: a logistic regression of decoys against pairs, which never rises with any of the scores.

Each score enters by its rank, so that its scale does not matter. Weights are not negative: a pair that is better by
every score is never more suspect. Which pairs are wrong is not known, but decoys are, and pairs that look like decoys
are suspects. A pair, and a decoy, is judged by a regression that it had no part in, so that decoys can still tell how
good the combined score is.
"""

from collections.abc import Sequence

import numpy as np
import scipy.optimize
import scipy.special

FOLDS = 5
_RIDGE = 1e-3  # keeps weights finite where decoys and pairs are separated fully
_STREAM = 0xC0B1  # keeps the random numbers of folds apart from others drawn with the same seed


def combined(
    scores: Sequence[np.ndarray],
    decoys: int,
    *,
    judged: np.ndarray | None = None,
    wrong: np.ndarray | None = None,
    folds: int = FOLDS,
    seed: int = 0,
) -> np.ndarray:
    """One score of pairs and decoys, (N + D,) float32 between 0 and 1, low for suspects.

    Args:
        scores: Scores of N pairs and D decoys, decoys last, `(N + D,)` each and low for suspects. NaN where a pair has
            none: the score then says nothing about it.
        decoys: D.
        judged: Decoys that are judged, but not learnt from, `(D,)` bool; none, if not given.
        wrong: Pairs that are known to be mismatched, `(N,)` bool, which are learnt from as decoys are; none, if not
            given.
        folds: Number of parts that are judged by regressions on the others.
        seed: Seed of the division into parts.
    """
    ranks = np.stack([rank(score) for score in scores], axis=1)
    count = len(ranks)
    known = np.arange(count) >= count - decoys
    if wrong is not None:
        known[: len(wrong)] |= wrong
    learnt = _learnt(count, decoys, judged)
    part = _parts(count, decoys, folds, seed)
    found = np.empty(count)
    for fold in range(folds):
        own, others = part == fold, (part != fold) & learnt
        weights, constant = fit(ranks[others], known[others])
        found[own] = scipy.special.expit(-(ranks[own] @ weights + constant))
    return found.astype(np.float32)


def as_belief(score: np.ndarray, decoys: int, *, judged: np.ndarray | None = None) -> np.ndarray:
    """One score as numbers between 0 and 1 in the same order, (N + D,) float32: how little a pair is like a decoy.

    Args:
        score: Of N pairs and D decoys, decoys last, low for suspects. NaN where a pair has none: then the middle.
        decoys: D.
        judged: Decoys that are judged, but not learnt from, `(D,)` bool; none, if not given.
    """
    ranks, count = rank(score), len(score)
    learnt = _learnt(count, decoys, judged)
    (slope,), constant = fit(ranks[learnt, None], np.arange(count)[learnt] >= count - decoys)
    return scipy.special.expit(-(ranks * min(slope, -_RIDGE) + constant)).astype(np.float32)


def _learnt(count: int, decoys: int, judged: np.ndarray | None) -> np.ndarray:
    """Which of the pairs and decoys are learnt from. (N + D,) bool"""
    learnt = np.ones(count, dtype=bool)
    if judged is not None:
        learnt[count - decoys :] = ~judged
    return learnt


def rank(score: np.ndarray) -> np.ndarray:
    """Ranks as normal quantiles, ties alike; 0, the middle, where there is no score. (N,)"""
    there = ~np.isnan(score)
    found = np.zeros(len(score))
    values, place, counts = np.unique(score[there], return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2
    found[there] = scipy.special.ndtri(middle / max(there.sum(), 1))[place] if len(values) else 0
    return found


def fit(ranks: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights `(S,)`, none above 0, and the constant of a logistic regression of decoys `(N,)` on ranks `(N, S)`.

    Decoys and pairs count as much in all, however many they are.
    """
    each = np.where(known, 0.5 / max(known.sum(), 1), 0.5 / max((~known).sum(), 1))
    signs = np.where(known, 1.0, -1.0)

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weights, constant = parameters[:-1], parameters[-1]
        margin = signs * (ranks @ weights + constant)
        slope = -each * signs * scipy.special.expit(-margin)
        value = -(each * scipy.special.log_expit(margin)).sum() + _RIDGE * (weights**2).sum() / 2
        return float(value), np.append(ranks.T @ slope + _RIDGE * weights, slope.sum())

    size = ranks.shape[1]
    bounds = [(None, 0.0)] * size + [(None, None)]
    found = scipy.optimize.minimize(loss, np.append(np.full(size, -0.1), 0.0), jac=True, bounds=bounds)
    return found.x[:-1], float(found.x[-1])


def _parts(count: int, decoys: int, folds: int, seed: int) -> np.ndarray:
    """The part of each pair and decoy; each part has equally many of both. (N + D,)"""
    rng = np.random.default_rng([_STREAM, seed])
    pairs = rng.permutation(count - decoys) % folds
    return np.concatenate([pairs, rng.permutation(decoys) % folds])
