"""Division of pairs into clean and noisy ones by mixture models of their losses, and soft labels of a batch.

These functions are shared by several methods. A small loss, or a posterior near 1, indicates a match.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_MIN_DENSITY = 1e-12  # so that no value has density 0 under both components
_MIN_VARIANCE = 1e-8  # of a fitted component


def rescale(values: np.ndarray) -> np.ndarray:
    """Values rescaled linearly to [0, 1]; all 0 if they are equal. (N,) float64"""
    values = np.asarray(values, dtype=np.float64)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def gaussian_posterior(losses: np.ndarray, *, seed: int, steps: int = 10) -> np.ndarray:
    """NCR: posterior of the lower of two Gaussians, fitted to all losses, for each loss. (N,)

    Losses are rescaled to [0, 1] first. EM takes at most `steps` steps and stops when the mean log-likelihood improves
    by less than 1e-2; 5e-4 is added to the variances. If all losses are equal, all pairs are clean.
    """
    scaled = rescale(losses)[:, None]
    if not scaled.any():
        return np.ones(len(scaled))
    from sklearn.exceptions import ConvergenceWarning  # imported here because it is slow to load
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(2, max_iter=steps, tol=1e-2, reg_covar=5e-4, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the published number of steps is small
        mixture.fit(scaled)
    return mixture.predict_proba(scaled)[:, mixture.means_.argmin()]


@dataclass(frozen=True)
class BetaMixture:
    """Mixture of two beta distributions on (0, 1); each array has one entry per component. (2,)"""

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
        return np.maximum(rows, _MIN_DENSITY)

    def posterior(self, values: np.ndarray) -> np.ndarray:
        """Posterior probability of each component for each value. (2, N)"""
        densities = self.densities(values)
        return densities / densities.sum(0)


def beta_moments(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Alpha and beta of the beta distribution that has the weighted mean and variance of the values."""
    share = weights / weights.sum()
    mean = float(share @ values)
    variance = max(float(share @ np.square(values - mean)), _MIN_VARIANCE)
    alpha = mean * (mean * (1 - mean) / variance - 1)
    return alpha, alpha * (1 - mean) / mean


RISING_AND_FALLING = BetaMixture(np.array([1.0, 2.0]), np.array([2.0, 1.0]), np.array([0.5, 0.5]))
"""BiCro's initial mixture: one density falls from 0 to 1, the other rises."""


def beta_mixture(
    values: np.ndarray, *, start: BetaMixture = RISING_AND_FALLING, steps: int = 10, tolerance: float = 0.0
) -> BetaMixture:
    """Mixture of two beta distributions, fitted by EM to values in (0, 1); its M-step matches weighted moments.

    EM stops as soon as the mean log-likelihood changes by less than `tolerance`.
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
    """Posterior of the component with the lower mean, for each value. (N,)

    The wider of two beta distributions dominates both tails, so the plain posterior is not monotonic. Here it never
    falls towards values below the lower mean and never rises towards values above the upper mean: the smallest
    values get the highest posterior, the largest the lowest.
    """
    posterior = mixture.posterior(values)[mixture.mean.argmin()]
    upwards = np.argsort(values, kind="stable")
    left = upwards[values[upwards] < mixture.mean.min()][::-1]
    right = upwards[values[upwards] > mixture.mean.max()]
    posterior[left] = np.maximum.accumulate(posterior[left])
    posterior[right] = np.minimum.accumulate(posterior[right])
    return posterior


def beta_posterior(losses: np.ndarray, *, steps: int = 10, edge: float = 1e-4) -> np.ndarray:
    """BiCro: posterior of the lower of two beta distributions, fitted to all losses, for each loss. (N,)

    Losses are rescaled to [0, 1] and clipped to [edge, 1 - edge]; `lower_posterior` corrects the tails. The published
    code takes the plain posterior of the first component, even if its mean is the higher one, and does not clip, so
    that the posterior of the smallest loss can become NaN and its pair noisy.
    """
    scaled = rescale(losses)
    if not scaled.any():
        return np.ones(len(scaled))
    scaled = scaled.clip(edge, 1 - edge)
    return lower_posterior(beta_mixture(scaled, steps=steps), scaled)


def divide(posterior: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """Which pairs are clean: those with a posterior above the threshold, and `at_least_two`. (N,) bool

    If all pairs would be clean, the N // 100 + 1 with the lowest posteriors are noisy. This is NCR's rule; here ties
    are broken by row number, so that never all pairs become noisy.
    """
    clean = np.asarray(posterior > threshold)
    if not clean.all():
        return at_least_two(clean, posterior)
    clean[np.argsort(posterior, kind="stable")[: len(clean) // 100 + 1]] = False
    return clean


def at_least_two(chosen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The chosen pairs, and if these are fewer than two, which is too few for a batch, those with the highest values.

    The N // 100 + 1 highest are added, as many as NCR calls noisy if all pairs look clean, but at least two. (N,) bool
    """
    if chosen.sum() >= 2:
        return chosen
    highest = np.argsort(values, kind="stable")[-max(len(values) // 100 + 1, 2) :]
    return chosen | np.isin(np.arange(len(values)), highest)


def soft_labels(losses: Tensor, margin: float) -> Tensor:
    """NCR: label in [0, 1] for each pair of a batch, by how far its mean triplet loss is below the margin. (K,)

    The mean of the K // 10 + 1 pairs with the smallest losses has label 1. All labels are 0 if no pair is below it.
    """
    kept = (margin - losses / 2).clamp(0, margin)
    best = kept.topk(len(kept) // 10 + 1).values.mean()
    return (kept / best).clamp(0, 1) if best > 0 else torch.zeros_like(kept)
