"""Canonical correlations against the textbook's eigenproblem, and the laws that they obey."""

import numpy as np
import pytest
import scipy.linalg

from crcl.methods.relink.cca import Projections, Ridge, Side, Sums, cross_covariance, fit

PLAIN = Ridge(relative=0.1), Ridge(absolute=1e-2)


def drawn(pairs: int = 60, *, images: int = 7, texts: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of both sides that share three hidden numbers, about means that are not 0."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(pairs, 3))
    sides = [hidden @ rng.normal(size=(3, size)) + rng.normal(size=(pairs, size)) for size in (images, texts)]
    return sides[0] + rng.normal(size=images), sides[1] + rng.normal(size=texts)


def side(rows: np.ndarray, ridge: Ridge) -> Side:
    return Side.from_moments(len(rows), rows.sum(0), rows.T @ rows, ridge)


def fitted(x: np.ndarray, y: np.ndarray, *, ridges: tuple[Ridge, Ridge] = PLAIN, dimensions: int = 4) -> Projections:
    images, texts = side(x, ridges[0]), side(y, ridges[1])
    cross = (x - x.mean(0)).T @ (y - y.mean(0)) / len(x)
    return fit(cross, images, texts, dimensions=dimensions)


def similarities(found: Projections, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    images = (x - found.image_mean) @ found.image_weights
    texts = (y - found.text_mean) @ found.text_weights
    return (images / np.linalg.norm(images, axis=1)[:, None]) @ (texts / np.linalg.norm(texts, axis=1)[:, None]).T


def regularised(rows: np.ndarray, ridge: Ridge) -> np.ndarray:
    """Covariance and ridge, entry by entry."""
    mean = [sum(column) / len(rows) for column in rows.T]
    size = rows.shape[1]
    covariance = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            covariance[i, j] = sum((row[i] - mean[i]) * (row[j] - mean[j]) for row in rows) / len(rows)
    variances = [covariance[i, i] for i in range(size)]
    for i in range(size):
        covariance[i, i] += ridge.relative * variances[i] + ridge.absolute * sum(variances)
    return covariance


def test_a_side_factorises_the_covariance_with_its_ridge() -> None:
    x, _ = drawn()
    for ridge in (Ridge(relative=0.5), Ridge(absolute=0.01), Ridge(relative=0.2, absolute=0.1)):
        found = side(x, ridge)
        np.testing.assert_allclose(found.factor @ found.factor.T, regularised(x, ridge), atol=1e-10)
        np.testing.assert_allclose(found.mean, x.mean(0))


def test_rows_may_be_shifted_before_their_moments_are_taken() -> None:
    x, _ = drawn()
    shift = np.arange(7.0)
    moved = x - shift
    there = Side.from_moments(len(x), moved.sum(0), moved.T @ moved, PLAIN[0], shift=shift)
    np.testing.assert_allclose(there.mean, x.mean(0))
    np.testing.assert_allclose(there.factor, side(x, PLAIN[0]).factor, atol=1e-10)


@pytest.mark.parametrize("sizes", [(7, 5), (4, 6)])
def test_directions_are_those_of_the_generalised_eigenproblem_scaled_by_the_correlations(
    sizes: tuple[int, int],
) -> None:
    x, y = drawn(images=sizes[0], texts=sizes[1])
    found = fitted(x, y, dimensions=3)
    cross = (x - x.mean(0)).T @ (y - y.mean(0)) / len(x)
    zeros = [np.zeros((size, size)) for size in sizes]
    own = scipy.linalg.block_diag(regularised(x, PLAIN[0]), regularised(y, PLAIN[1]))
    values, vectors = scipy.linalg.eigh(np.block([[zeros[0], cross], [cross.T, zeros[1]]]), own)
    correlations, best = values[::-1][:3], 2**0.5 * vectors[:, ::-1][:, :3]  # each half of a vector has length 1/2
    a, b = best[: sizes[0]] * correlations, best[sizes[0] :] * correlations
    # products, in which the sign of a direction does not count
    np.testing.assert_allclose(found.image_weights @ found.text_weights.T, a @ b.T, atol=1e-5)
    np.testing.assert_allclose(found.image_weights @ found.image_weights.T, a @ a.T, atol=1e-5)
    np.testing.assert_allclose(found.text_weights @ found.text_weights.T, b @ b.T, atol=1e-5)


def test_the_scale_of_a_side_does_not_matter() -> None:
    x, y = drawn()
    expected = similarities(fitted(x, y), x, y)
    np.testing.assert_allclose(similarities(fitted(1000 * x, y), 1000 * x, y), expected, atol=1e-4)
    np.testing.assert_allclose(similarities(fitted(x, y / 1000), x, y / 1000), expected, atol=1e-4)


def test_with_a_relative_ridge_the_scale_of_a_column_does_not_matter() -> None:
    x, y = drawn()
    columns = np.array([1, 10, 0.1, 3, 0.5, 2, 7])
    expected = similarities(fitted(x, y), x, y)
    np.testing.assert_allclose(similarities(fitted(columns * x, y), columns * x, y), expected, atol=1e-4)


def test_dimensions_that_are_not_there_are_zeros() -> None:
    x, y = drawn()
    few, many = fitted(x, y, dimensions=5), fitted(x, y, dimensions=9)
    assert many.image_weights.shape == (7, 9)
    assert many.text_weights.shape == (5, 9)
    assert not many.image_weights[:, 5:].any()
    assert not many.text_weights[:, 5:].any()
    np.testing.assert_allclose(similarities(many, x, y), similarities(few, x, y), atol=1e-5)


def test_columns_that_never_vary_do_no_harm() -> None:
    x, y = drawn()
    constant = np.full((len(x), 2), 3.0)
    found = fitted(np.concatenate([x, constant], axis=1), np.concatenate([0 * constant, y], axis=1))
    assert all(np.isfinite(value).all() for value in vars(found).values())
    wide = np.concatenate([x, constant], axis=1), np.concatenate([0 * constant, y], axis=1)
    np.testing.assert_allclose(similarities(found, *wide), similarities(fitted(x, y), x, y), atol=0.02)
    nothing = fitted(np.zeros_like(x), y)
    assert not nothing.image_weights.any()


def test_a_weighted_cross_covariance_is_the_mean_over_pairs() -> None:
    x, y = drawn()
    weights = np.random.default_rng(1).random(len(x))
    images, texts = side(x, PLAIN[0]), side(y, PLAIN[1])
    products = (weights[:, None] * x).T @ y
    found = cross_covariance(products, weights.sum(), images.mean, texts.mean, Sums(weights @ x, weights @ y))
    expected = np.zeros((7, 5))
    for weight, one, other in zip(weights, x, y, strict=True):
        expected += weight * np.outer(one - x.mean(0), other - y.mean(0))
    np.testing.assert_allclose(found, expected / weights.sum(), atol=1e-10)


def test_projections_come_back_from_their_tensors() -> None:
    x, y = drawn()
    found = fitted(x, y)
    again = Projections.from_tensors(found.tensors())
    assert all(np.array_equal(vars(again)[name], value) for name, value in vars(found).items())
