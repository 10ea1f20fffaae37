"""Calibrated probabilities: near the true ones on simulated beliefs, falling with the belief, adding up to the rate."""

import numpy as np
import pytest
from scipy.stats import beta

from crcl.auditing.estimate import estimate
from crcl.auditing.scores.calibration import wrong_probability

WRONG, RIGHT = beta(1, 8), beta(6, 2)


def simulated(rate: float, *, pairs: int = 20_000, decoys: int = 1500, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Beliefs of pairs and decoys, the truth, and the true probability that each pair is wrong."""
    rng = np.random.default_rng(seed)
    truth = rng.random(pairs) >= rate
    beliefs = np.where(truth, RIGHT.rvs(pairs, random_state=rng), WRONG.rvs(pairs, random_state=rng))
    wrong, right = rate * WRONG.pdf(beliefs), (1 - rate) * RIGHT.pdf(beliefs)
    known = WRONG.rvs(decoys, random_state=rng).astype(np.float32)
    return beliefs.astype(np.float32), known, truth, wrong / (wrong + right)


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.4, 0.8])
def test_probabilities_are_near_the_true_ones(rate: float) -> None:
    beliefs, decoys, truth, true = simulated(rate)
    found = wrong_probability(beliefs, decoys, rate)
    assert found.dtype == np.float32
    assert np.abs(found - true).mean() < 0.03
    assert found.mean() == pytest.approx(rate, abs=0.02)
    for low, high in ((0, 0.1), (0.3, 0.7), (0.9, 1.01)):
        inside = (found >= low) & (found < high)
        if inside.sum() > 300:
            assert (~truth[inside]).mean() == pytest.approx(found[inside].mean(), abs=0.08)


@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_the_estimated_rate_is_enough(rate: float) -> None:
    beliefs, decoys, _, true = simulated(rate, seed=1)
    found = wrong_probability(beliefs, decoys, estimate(beliefs, decoys).rate)
    assert np.abs(found - true).mean() < 0.03


def test_a_higher_belief_never_has_a_higher_probability_and_equal_beliefs_have_equal_ones() -> None:
    rng = np.random.default_rng(0)
    beliefs = rng.choice(np.array([0.0, 1e-30, 1e-12, 0.2, 0.5, 0.9, 1.0], np.float32), 500)
    decoys = rng.choice(np.array([0.0, 1e-30, 0.2, 0.5], np.float32), 60)
    found = wrong_probability(beliefs, decoys, 0.3)
    order = np.argsort(beliefs, kind="stable")
    assert (np.diff(found[order]) <= 0).all()
    for value in np.unique(beliefs):
        assert len(np.unique(found[beliefs == value])) == 1
    assert ((found >= 0) & (found <= 1)).all()
    assert (found[beliefs > 0.5] == 0).all()  # no decoy is believed so much


def test_the_order_of_the_pairs_does_not_matter() -> None:
    beliefs, decoys, _, _ = simulated(0.3, pairs=400, decoys=50)
    order = np.random.default_rng(0).permutation(400)
    found = wrong_probability(beliefs, decoys, 0.3)
    np.testing.assert_array_equal(wrong_probability(beliefs[order], decoys, 0.3), found[order])


def test_beliefs_that_say_nothing_give_every_pair_the_rate() -> None:
    found = wrong_probability(np.full(100, 0.5, np.float32), np.full(20, 0.5, np.float32), 0.25)
    np.testing.assert_allclose(found, 0.25, rtol=1e-6)


def test_where_no_pair_is_wrong_no_probability_is_above_0() -> None:
    assert (wrong_probability(np.linspace(0, 1, 50), np.linspace(0, 0.5, 30), 0.0) == 0).all()
