"""The paper's bound: sums of tangents, Eq. 7 on random risks, Lemma 1."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crcl import theory
from crcl.losses import complementary, matching_log_probs

sizes = st.integers(2, 7)
seeds = st.integers(0, 9999)
noise_shares = st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99])
"""Noise rates as shares of the largest one that the theory allows, (N - 1) / N."""
exponents = st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0])


def risks(sims: torch.Tensor, q: float, noise: float) -> tuple[float, float]:
    """Clean and noisy risk of a predictor on N images and texts, Def. 1, as exact expectations.

    Rolling the texts by k makes text i + k the positive of image i, in both directions; under uniform noise each wrong
    positive has the probability noise / (N - 1).
    """
    n = len(sims)
    by_shift = [complementary(*matching_log_probs(sims.roll(-k, 1), 1.0), q).mean().item() for k in range(n)]
    return by_shift[0], (1 - noise) * by_shift[0] + noise / (n - 1) * sum(by_shift[1:])


def family(n: int, seed: int, *, sharpest: float = 30.0) -> list[torch.Tensor]:
    """Random predictors, from nearly uniform ones to nearly certain ones, good and bad."""
    rng = np.random.default_rng(seed)
    return [
        torch.from_numpy(rng.normal(size=(n, n)) + rng.choice([-1, 0, 1]) * np.eye(n)) * rng.uniform(0.1, sharpest)
        for _ in range(12)
    ]


@given(n=st.integers(1, 40), seed=seeds, concentration=st.sampled_from([0.01, 0.3, 1, 100]))
def test_sum_of_tangents_lies_between_a_min_and_a_max(n: int, seed: int, concentration: float) -> None:
    p = np.random.default_rng(seed).dirichlet(np.full(n, concentration))
    assert theory.smallest_sum(n) - 1e-9 <= np.tan(p).sum() <= theory.largest_sum() + 1e-9


@pytest.mark.parametrize("n", [2, 5, 128])
def test_equal_probabilities_reach_a_min_and_a_certain_one_a_max(n: int) -> None:
    assert theory.smallest_sum(n) == pytest.approx(np.tan(np.full(n, 1 / n)).sum())
    assert theory.largest_sum() == pytest.approx(np.tan(np.eye(n)[0]).sum())
    assert 1 < theory.smallest_sum(n) < theory.largest_sum() == pytest.approx(1.5574, abs=1e-4)


@given(n=sizes, seed=seeds, share=noise_shares, q=exponents)
def test_noisy_risk_lies_between_its_bounds_for_every_predictor(n: int, seed: int, share: float, q: float) -> None:
    """The step of the proof from which Eq. 7 follows."""
    noise = share * (n - 1) / n
    for sims in family(n, seed)[:3]:
        clean, noisy = risks(sims, q, noise)
        excess = noisy - (1 - n * noise / (n - 1)) * clean
        assert 2 * noise * theory.smallest_sum(n) ** (1 - q) - 1e-9 <= excess
        assert excess <= 2 * noise * theory.largest_sum() ** (1 - q) + 1e-9


@given(n=sizes, seed=seeds, share=noise_shares, q=exponents)
def test_equation_7_bounds_what_the_noisy_minimiser_costs(n: int, seed: int, share: float, q: float) -> None:
    noise = share * (n - 1) / n
    clean, noisy = np.array([risks(sims, q, noise) for sims in family(n, seed)]).T
    best, noisy_best = clean.argmin(), noisy.argmin()
    assert theory.lower_bound(q, noise, n) - 1e-9 <= clean[best] - clean[noisy_best] <= 0
    assert 0 <= noisy[best] - noisy[noisy_best] <= theory.noisy_upper_bound(q, noise, n) + 1e-9


@given(n=sizes, seed=seeds, share=noise_shares)
def test_at_q_one_the_noisy_minimiser_is_the_clean_one(n: int, seed: int, share: float) -> None:
    """Lemma 1: the noisy risk is an increasing linear function of the clean one."""
    noise = share * (n - 1) / n
    clean, noisy = np.array([risks(sims, 1.0, noise) for sims in family(n, seed, sharpest=2.0)]).T
    np.testing.assert_allclose(noisy, (1 - n * noise / (n - 1)) * clean + 2 * noise, rtol=1e-9)
    assert clean.argmin() == noisy.argmin()


def test_without_the_bound_noise_can_mislead() -> None:
    """At q = 0 some family has another minimiser under noise, so that the test of Lemma 1 is not an empty one."""
    misled = 0
    for seed in range(40):
        clean, noisy = np.array([risks(sims, 0.0, 0.6) for sims in family(4, seed)]).T
        misled += clean.argmin() != noisy.argmin()
    assert misled > 0


@given(n=st.integers(2, 500), share=st.floats(0.01, 0.99))
def test_bounds_tighten_as_q_grows_and_vanish_at_q_one(n: int, share: float) -> None:
    noise = share * (n - 1) / n
    lower = [theory.lower_bound(q, noise, n) for q in np.linspace(0, 1, 11)]
    upper = [theory.noisy_upper_bound(q, noise, n) for q in np.linspace(0, 1, 11)]
    assert all(a < b for a, b in pairwise(lower))
    assert all(a > b for a, b in pairwise(upper))
    assert lower[-1] == upper[-1] == 0


def test_bound_by_hand() -> None:
    """N = 100, noise 0.2, q = 0, as in the supplement's figure."""
    gap = 100 * math.tan(0.01) - math.tan(1)
    assert theory.lower_bound(0, 0.2, 100) == pytest.approx(0.4 * gap / (1 - 20 / 99))
    assert theory.noisy_upper_bound(0, 0.2, 100) == pytest.approx(-0.4 * gap)


@pytest.mark.parametrize("noise", [-0.1, 0.75, 0.9, math.nan])
def test_noise_beyond_what_can_be_tolerated_is_refused(noise: float) -> None:
    for bound in (theory.lower_bound, theory.noisy_upper_bound):
        with pytest.raises(ValueError, match=r"noise rate in \[0, 0.7500\) for n = 4"):
            bound(0.5, noise, 4)


def test_losses_of_all_choices_of_the_positive_add_up_as_the_page_says() -> None:
    """docs/theory.md: in each direction to (N - 1) Δ^(1-q), the identity that the bound rests on."""
    for seed, q in enumerate((0.0, 0.3, 1.0)):
        i2t, t2i = matching_log_probs(family(5, seed)[0], 1.0)
        n = len(i2t)
        total = sum(complementary(i2t.roll(-k, 1), t2i.roll(-k, 1), q).sum().item() for k in range(n))
        deltas = [p.exp().tan().sum(dim) for p, dim in ((i2t, 1), (t2i, 0))]
        assert total == pytest.approx((n - 1) * sum((delta ** (1 - q)).sum().item() for delta in deltas))


def test_the_page_has_the_numbers_of_the_functions() -> None:
    page = (Path(__file__).parents[1] / "docs/theory.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| 0.")]
    assert len(rows) == 4
    for noise, *told in rows:
        assert told == [f"{theory.lower_bound(q, float(noise), 128):.3f}" for q in (0, 0.25, 0.5, 0.75, 1)]
