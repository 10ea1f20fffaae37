"""Regularised canonical correlation analysis from moments: a linear map of either side to one space."""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ridge:
    """What is added to the variances of one side, so that directions with few data are not trusted."""

    relative: float = 0.0
    """Share of each column's own variance."""
    absolute: float = 0.0
    """Share of the sum of all variances, added to each."""


@dataclass(frozen=True)
class Side:
    """Mean and regularised covariance of one side, factorised once for all fits."""

    mean: np.ndarray
    """(P,)"""
    factor: np.ndarray
    """(P, P) lower triangular, factor @ factor.T = covariance + ridge."""

    @classmethod
    def from_moments(
        cls, count: float, total: np.ndarray, squares: np.ndarray, ridge: "Ridge", *, shift: np.ndarray | float = 0.0
    ) -> "Side":
        """From the number of rows, their sum `(P,)` and the sum of their outer products `(P, P)`.

        `shift` `(P,)` is what was subtracted from the rows, so that rounding does not drown small variances.
        """
        mean = total / count
        covariance = squares / count - np.outer(mean, mean)
        variances = np.maximum(np.diagonal(covariance), 0)
        added = ridge.relative * variances + ridge.absolute * variances.sum()
        # a column that never varies must not be divided by 0
        covariance[np.diag_indices_from(covariance)] += np.maximum(added, 1e-6 * variances.mean() + 1e-30)
        return cls(mean + shift, scipy.linalg.cholesky(covariance, lower=True, overwrite_a=True, check_finite=False))


@dataclass(frozen=True)
class Projections:
    """Linear maps of both sides to one space, in which pairs are compared by cosine."""

    image_mean: np.ndarray
    """(P,) float32"""
    image_weights: np.ndarray
    """(P, D) float32"""
    text_mean: np.ndarray
    """(Q,) float32"""
    text_weights: np.ndarray
    """(Q, D) float32"""

    def tensors(self) -> dict[str, Tensor]:
        """These arrays as tensors, to be saved."""
        return {name: torch.from_numpy(value) for name, value in vars(self).items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "Projections":
        """The projections from the result of `tensors`."""
        return cls(**{name: value.numpy() for name, value in tensors.items()})

    def weights(self) -> dict[str, Tensor]:
        """Weights of the matchers in `matchers.linear`."""
        return {
            "image.linear.weight": torch.from_numpy(self.image_weights.T.copy()),
            "image.linear.bias": torch.from_numpy(-self.image_mean @ self.image_weights),
            "text.weight": torch.from_numpy(self.text_weights.T.copy()),
            "text.bias": torch.from_numpy(-self.text_mean @ self.text_weights),
        }


def cross_covariance(
    products: np.ndarray, weight: float, images: np.ndarray, texts: np.ndarray, sums: "Sums"
) -> np.ndarray:
    """Weighted mean of the outer products of centred images and texts, from sums that are not centred. `(P, Q)`

    Args:
        products: Weighted sum of the outer products, `(P, Q)`.
        weight: Sum of the weights.
        images: Mean of the images that is subtracted, `(P,)`.
        texts: Mean of the texts that is subtracted, `(Q,)`.
        sums: Weighted sums of images and texts.
    """
    centred = products - np.outer(sums.images, texts) - np.outer(images, sums.texts)
    return (centred + weight * np.outer(images, texts)) / weight


@dataclass(frozen=True)
class Sums:
    """Weighted sums over pairs."""

    images: np.ndarray
    """(P,)"""
    texts: np.ndarray
    """(Q,)"""


def fit(cross: np.ndarray, images: Side, texts: Side, *, dimensions: int) -> Projections:
    """The directions of the largest correlations, scaled by these.

    Args:
        cross: Cross-covariance of images and texts, `(P, Q)`.
        images: Mean and covariance of the images.
        texts: Mean and covariance of the texts.
        dimensions: Number of directions D; if there are not so many, the others are 0.
    """
    left = scipy.linalg.solve_triangular(images.factor, cross, lower=True, check_finite=False)
    whitened = scipy.linalg.solve_triangular(texts.factor, left.T, lower=True, check_finite=False).T  # (P, Q)
    wide = whitened if len(whitened) <= whitened.shape[1] else whitened.T
    count = min(dimensions, len(wide))
    span = (len(wide) - count, len(wide) - 1)
    squares, directions = scipy.linalg.eigh(wide @ wide.T, subset_by_index=span, check_finite=False)
    order = np.argsort(-squares, kind="stable")
    correlations = np.sqrt(np.maximum(squares[order], 0))
    own = directions[:, order] * correlations  # of the smaller side
    other = wide.T @ directions[:, order]  # the other side's directions, times the correlations already
    image_side, text_side = (own, other) if wide is whitened else (other, own)
    return Projections(
        images.mean.astype(np.float32),
        _unwhitened(images.factor, image_side, dimensions),
        texts.mean.astype(np.float32),
        _unwhitened(texts.factor, text_side, dimensions),
    )


def _unwhitened(factor: np.ndarray, directions: np.ndarray, dimensions: int) -> np.ndarray:
    """Weights for centred rows from directions of whitened ones. (P, D) float32"""
    weights = scipy.linalg.solve_triangular(factor, directions, lower=True, trans="T", check_finite=False)
    return np.pad(weights, ((0, 0), (0, dimensions - weights.shape[1]))).astype(np.float32)
