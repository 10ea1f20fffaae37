"""Mixtures, the cut between clean and noisy pairs, and soft labels."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture

from crcl import losses
from crcl.methods import division

Numbers = Callable[[str], dict[str, np.ndarray]]
Posterior = Callable[[np.ndarray], np.ndarray]

POSTERIORS: dict[str, Posterior] = {
    "gaussians": lambda values: division.gaussian_posterior(values, seed=0),
    "betas": division.beta_posterior,
}
each_posterior = pytest.mark.parametrize("posterior", POSTERIORS.values(), ids=POSTERIORS)


def two_groups(clean: int = 600, noisy: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Losses of matched and mismatched pairs, and which are matched."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.beta(2, 12, clean), rng.beta(10, 4, noisy)])
    return values, np.arange(len(values)) < clean


def test_rescaled_values_reach_from_zero_to_one() -> None:
    np.testing.assert_allclose(division.rescale(np.array([3.0, 5.0, 4.0])), [0, 1, 0.5])
    np.testing.assert_array_equal(division.rescale(np.full(3, 7.0)), [0, 0, 0])


def test_gaussians_are_those_of_scikit_learn() -> None:
    values, _ = two_groups()
    scaled = ((values - values.min()) / (values.max() - values.min()))[:, None]
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=3).fit(scaled)
    lower = int(np.argmin(mixture.means_))
    expected = mixture.predict_proba(scaled)[:, lower]
    np.testing.assert_array_equal(division.gaussian_posterior(values, seed=3), expected)


def test_weighted_densities_are_those_of_scipy() -> None:
    mixture = division.BetaMixture(np.array([0.5, 7.0]), np.array([3.0, 2.0]), np.array([0.3, 0.7]))
    values = np.linspace(0.01, 0.99, 25)
    expected = [0.3 * stats.beta.pdf(values, 0.5, 3), 0.7 * stats.beta.pdf(values, 7, 2)]
    np.testing.assert_allclose(mixture.densities(values), expected, rtol=1e-10)
    np.testing.assert_allclose(mixture.posterior(values), expected / np.sum(expected, 0), rtol=1e-10)
    np.testing.assert_allclose(mixture.mean, [stats.beta.mean(0.5, 3), stats.beta.mean(7, 2)])


def test_no_value_is_impossible() -> None:
    mixture = division.BetaMixture(np.array([900.0, 900.0]), np.array([1.0, 1.0]), np.array([0.5, 0.5]))
    np.testing.assert_array_equal(mixture.densities(np.array([1e-4]))[:, 0], [1e-12, 1e-12])
    np.testing.assert_array_equal(mixture.posterior(np.array([1e-4]))[:, 0], [0.5, 0.5])


def test_moments_give_the_distribution_with_that_mean_and_variance() -> None:
    values, weights = np.array([0.2, 0.5, 0.9]), np.array([2.0, 1.0, 1.0])
    alpha, beta = division.beta_moments(values, weights)
    repeated = np.array([0.2, 0.2, 0.5, 0.9])
    assert stats.beta.mean(alpha, beta) == pytest.approx(repeated.mean())
    assert stats.beta.var(alpha, beta) == pytest.approx(repeated.var())


def expectation_maximisation(values: np.ndarray, steps: int) -> tuple[list[float], list[float], list[float]]:
    """The same fit, pair by pair, from the formulas."""
    alphas, betas, weights = [1.0, 2.0], [2.0, 1.0], [0.5, 0.5]
    for _ in range(steps):
        shares: list[list[float]] = []
        for value in values:
            dens = [max(weights[c] * float(stats.beta.pdf(value, alphas[c], betas[c])), 1e-12) for c in range(2)]
            shares.append([density / sum(dens) for density in dens])
        for c in range(2):
            total = sum(share[c] for share in shares)
            mean = sum(share[c] * value for share, value in zip(shares, values, strict=True)) / total
            var = sum(share[c] * (value - mean) ** 2 for share, value in zip(shares, values, strict=True)) / total
            alphas[c] = mean * (mean * (1 - mean) / var - 1)
            betas[c] = alphas[c] * (1 - mean) / mean
            weights[c] = total / len(values)
    return alphas, betas, weights


def test_the_beta_fit_agrees_with_a_loop_over_the_pairs() -> None:
    values, _ = two_groups(30, 20)
    fitted = division.beta_mixture(values, steps=4)
    for ours, theirs in zip(
        (fitted.alpha, fitted.beta, fitted.weight), expectation_maximisation(values, 4), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8)


def test_the_beta_fit_finds_the_distributions_that_the_values_were_drawn_from() -> None:
    values, _ = two_groups(60_000, 40_000)
    fitted = division.beta_mixture(values, steps=50)
    np.testing.assert_allclose(fitted.weight, [0.6, 0.4], atol=0.01)
    np.testing.assert_allclose(fitted.mean, [2 / 14, 10 / 14], atol=0.005)
    np.testing.assert_allclose(fitted.alpha, [2, 10], rtol=0.1)
    np.testing.assert_allclose(fitted.beta, [12, 4], rtol=0.1)


def test_with_a_tolerance_the_fit_ends_early() -> None:
    values, _ = two_groups()
    early = division.beta_mixture(values, steps=50, tolerance=1e-2)
    assert any(np.array_equal(early.alpha, division.beta_mixture(values, steps=steps).alpha) for steps in range(1, 10))
    assert not np.array_equal(early.alpha, division.beta_mixture(values, steps=50).alpha)


def test_a_fit_can_start_elsewhere() -> None:
    values, _ = two_groups()
    swapped = division.BetaMixture(np.array([2.0, 1.0]), np.array([1.0, 2.0]), np.array([0.5, 0.5]))
    mixture, other = division.beta_mixture(values), division.beta_mixture(values, start=swapped)
    np.testing.assert_allclose(other.mean, mixture.mean[::-1])


@each_posterior
def test_small_losses_are_clean_on_any_scale(posterior: Posterior) -> None:
    values, matched = two_groups()
    clean = posterior(3 + 40 * values)
    assert clean.shape == values.shape
    assert ((clean >= 0) & (clean <= 1)).all()
    assert ((clean > 0.5) == matched).mean() > 0.97
    assert roc_auc_score(matched, clean) > 0.99
    assert clean[values.argmin()] > 0.5  # at the edges too
    assert clean[values.argmax()] < 0.5


def wide_below_narrow(rng: np.random.Generator) -> np.ndarray:
    return np.concatenate([rng.beta(2, 2, 400), rng.beta(40, 25, 600)])


def wide_above_narrow(rng: np.random.Generator) -> np.ndarray:
    return np.concatenate([rng.beta(25, 40, 600), rng.beta(2, 2, 400)])


@pytest.mark.parametrize("draw", [wide_below_narrow, wide_above_narrow])
def test_a_wide_beta_distribution_does_not_win_both_tails(
    draw: Callable[[np.random.Generator], np.ndarray],
) -> None:
    values = np.sort(draw(np.random.default_rng(0)))
    scaled = division.rescale(values).clip(1e-4, 1 - 1e-4)
    mixture = division.beta_mixture(scaled)
    plain = mixture.posterior(scaled)[mixture.mean.argmin()]
    assert (np.diff(plain) > 0.01).any()  # as it is, it does
    clean = division.beta_posterior(values)
    outside = (scaled < mixture.mean.min()) | (scaled > mixture.mean.max())
    assert (np.diff(clean)[outside[1:] & outside[:-1]] <= 0).all()
    np.testing.assert_array_equal(clean[~outside], plain[~outside])
    assert clean[0] == clean.max()
    assert clean[-1] == clean.min()


@each_posterior
@pytest.mark.parametrize("values", [np.full(5, 0.3), np.array([0.0, 1.0]), np.array([0.0, 0.0, 0.0, 1.0])], ids=str)
def test_losses_that_hardly_differ_give_numbers_all_the_same(posterior: Posterior, values: np.ndarray) -> None:
    clean = posterior(values)
    assert np.isfinite(clean).all()
    assert ((clean >= 0) & (clean <= 1)).all()
    assert clean[0] >= clean[-1]
    assert division.divide(clean).sum() > 0


def test_pairs_above_the_threshold_are_clean() -> None:
    np.testing.assert_array_equal(division.divide(np.array([0.5, 0.51, 0.9, 0.1])), [False, True, True, False])
    np.testing.assert_array_equal(division.divide(np.array([0.5, 0.51, 0.9, 0.1]), 0.05), [True, True, True, False])


@pytest.mark.parametrize("pairs", [2, 50, 100, 350])
def test_about_one_in_a_hundred_is_noisy_where_none_would_be(pairs: int) -> None:
    posterior = np.random.default_rng(0).uniform(0.6, 1, pairs)
    expected = posterior > np.sort(posterior)[pairs // 100]
    np.testing.assert_array_equal(division.divide(posterior), expected)
    assert (~division.divide(np.ones(pairs))).sum() == pairs // 100 + 1  # where a value could not tell them apart


@pytest.mark.parametrize("posterior", [np.full(350, 0.2), np.r_[np.linspace(0, 0.4, 349), 0.7]], ids=["none", "one"])
def test_some_are_clean_where_none_would_be(posterior: np.ndarray) -> None:
    clean = division.divide(posterior)
    assert clean.sum() == 4
    assert clean[-4:].all()
    assert division.divide(np.zeros(5)).sum() == 2


def test_soft_labels_agree_with_the_published_implementation(recorded: Numbers) -> None:
    numbers = recorded("peer_losses")
    per_pair = losses.triplet(torch.from_numpy(numbers["similarities"]), negatives="mean")
    np.testing.assert_allclose(per_pair, numbers["ncr_per_pair_loss"], rtol=1e-4)
    np.testing.assert_allclose(division.soft_labels(per_pair, 0.2), numbers["ncr_predict"], rtol=1e-4, atol=1e-6)


def test_soft_labels_of_a_longer_batch_go_by_the_mean_of_its_best() -> None:
    per_pair = torch.rand(25, generator=torch.Generator().manual_seed(0)).double() * 0.6
    kept = [min(max(0.2 - loss / 2, 0), 0.2) for loss in per_pair.tolist()]
    best = sum(sorted(kept)[-3:]) / 3
    expected = [min(value / best, 1) for value in kept]
    np.testing.assert_allclose(division.soft_labels(per_pair, 0.2), expected)
    assert max(expected) == 1
    assert min(expected) == 0


def test_where_no_pair_keeps_any_of_the_margin_all_labels_are_zero() -> None:
    labels = division.soft_labels(torch.full((4,), 3.0), 0.2)
    assert not math.isnan(labels.sum().item())
    assert labels.tolist() == [0, 0, 0, 0]
