"""From the losses of all pairs to clean and noisy ones: mixtures, the cut between them, and soft labels of a batch.

Plain functions that several methods share. Small losses and posteriors near 1 speak for a match.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_FLOOR = 1e-12  # of a weighted density, so that no value is impossible under both components
_SPREAD = 1e-8  # least variance that a component is fitted to


def rescale(values: np.ndarray) -> np.ndarray:
    """Stretch values to reach from 0 to 1; all 0 where they do not differ. (N,) float64"""
    values = np.asarray(values, dtype=np.float64)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def gaussian_posterior(losses: np.ndarray, *, seed: int, steps: int = 10) -> np.ndarray:
    """NCR: how likely each loss is from the lower of two Gaussians fitted to all of them. (N,)

    Losses are stretched to [0, 1] first. At most `steps` steps of EM, which end before if the mean log-likelihood
    gains less than 1e-2; 5e-4 is added to the variances. Losses that do not differ say nothing: all are clean.
    """
    scaled = rescale(losses)[:, None]
    if not scaled.any():
        return np.ones(len(scaled))
    from sklearn.exceptions import ConvergenceWarning  # loads slowly: not for every command
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(2, max_iter=steps, tol=1e-2, reg_covar=5e-4, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so few steps are meant
        mixture.fit(scaled)
    return mixture.predict_proba(scaled)[:, mixture.means_.argmin()]


@dataclass(frozen=True)
class BetaMixture:
    """Two weighted beta distributions on (0, 1); each array has one entry per component. (2,)"""

    alpha: np.ndarray
    beta: np.ndarray
    weight: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return self.alpha / (self.alpha + self.beta)

    def densities(self, values: np.ndarray) -> np.ndarray:
        """Weighted density of each value under each component, 1e-12 at least. (2, N)"""
        logs = np.log(values), np.log1p(-values)
        rows = [
            weight
            * np.exp((a - 1) * logs[0] + (b - 1) * logs[1] + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
            for a, b, weight in zip(self.alpha, self.beta, self.weight, strict=True)
        ]
        return np.maximum(rows, _FLOOR)

    def posterior(self, values: np.ndarray) -> np.ndarray:
        """How likely each value is from each component. (2, N)"""
        densities = self.densities(values)
        return densities / densities.sum(0)


def beta_moments(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """The beta distribution with the weighted mean and variance of these values: its alpha and beta."""
    share = weights / weights.sum()
    mean = float(share @ values)
    variance = max(float(share @ np.square(values - mean)), _SPREAD)
    alpha = mean * (mean * (1 - mean) / variance - 1)
    return alpha, alpha * (1 - mean) / mean


RISING_AND_FALLING = BetaMixture(np.array([1.0, 2.0]), np.array([2.0, 1.0]), np.array([0.5, 0.5]))
"""Where BiCro starts: one density falls from 0 to 1, the other rises."""


def beta_mixture(
    values: np.ndarray, *, start: BetaMixture = RISING_AND_FALLING, steps: int = 10, tolerance: float = 0.0
) -> BetaMixture:
    """Two beta distributions fitted by EM to values within (0, 1), the second step of each by weighted moments.

    With a `tolerance` it ends as soon as the mean log-likelihood changes by less.
    """
    mixture, before = start, -math.inf
    for _ in range(steps):
        densities = mixture.densities(values)
        likelihood = float(np.log(densities.sum(0)).mean())
        if abs(likelihood - before) < tolerance:
            break
        before = likelihood
        share = densities / densities.sum(0)  # (2, N)
        alpha, beta = np.transpose([beta_moments(values, row) for row in share])
        mixture = BetaMixture(alpha, beta, share.mean(1))
    return mixture


def lower_posterior(mixture: BetaMixture, values: np.ndarray) -> np.ndarray:
    """How likely each value is from the component of the lower mean. (N,)

    The wider of two beta distributions wins both tails. So here the posterior does not fall again below the lower
    mean, nor rise again above the upper one: the smallest values are the likeliest, the largest the least likely.
    """
    posterior = mixture.posterior(values)[mixture.mean.argmin()]
    upwards = np.argsort(values, kind="stable")
    left = upwards[values[upwards] < mixture.mean.min()][::-1]
    right = upwards[values[upwards] > mixture.mean.max()]
    posterior[left] = np.maximum.accumulate(posterior[left])
    posterior[right] = np.minimum.accumulate(posterior[right])
    return posterior


def beta_posterior(losses: np.ndarray, *, steps: int = 10, edge: float = 1e-4) -> np.ndarray:
    """BiCro: how likely each loss is from the lower of two beta distributions fitted to all of them. (N,)

    Losses are stretched to [0, 1] and clipped by `edge`; the tails are those of `lower_posterior`. The published code
    takes the posterior as it is, of the first component whichever its mean, and without clipping, so that the smallest
    loss of all can become NaN, hence noisy.
    """
    scaled = rescale(losses)
    if not scaled.any():
        return np.ones(len(scaled))
    scaled = scaled.clip(edge, 1 - edge)
    return lower_posterior(beta_mixture(scaled, steps=steps), scaled)


def divide(posterior: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """Which pairs are clean: those above the threshold, with the guard of `enough`. (N,) bool

    Where that would be all, the N // 100 + 1 lowest are noisy (NCR's rule; here equal ones are told apart by their
    number, so that never all are).
    """
    clean = np.asarray(posterior > threshold)
    if not clean.all():
        return enough(clean, posterior)
    clean[np.argsort(posterior, kind="stable")[: len(clean) // 100 + 1]] = False
    return clean


def enough(chosen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The chosen pairs; where there is none, or a single one that no batch can be made of, those of the highest values.

    There are N // 100 + 1 of these, as many as NCR calls noisy where all look clean, and two at least. (N,) bool
    """
    if chosen.sum() >= 2:
        return chosen
    highest = np.argsort(values, kind="stable")[-max(len(values) // 100 + 1, 2) :]
    return chosen | np.isin(np.arange(len(values)), highest)


def soft_labels(losses: Tensor, margin: float) -> Tensor:
    """NCR: how far each pair of a batch keeps its mean triplet loss below the margin, its best pairs being 1. (K,)

    The best are the K // 10 + 1 with the smallest losses. All 0 where not even these keep any of the margin.
    """
    kept = (margin - losses / 2).clamp(0, margin)
    best = kept.topk(len(kept) // 10 + 1).values.mean()
    return (kept / best).clamp(0, 1) if best > 0 else torch.zeros_like(kept)
