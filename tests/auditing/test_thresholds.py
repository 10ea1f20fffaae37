"""An estimate is told where decoys say something: not where its rate may be nearly anything, unless they bound it."""

import numpy as np
import pytest

from crcl.auditing.estimate import estimate
from crcl.auditing.thresholds import BOUNDING, Correspondences, without_vague


def estimated(decoys: int) -> Correspondences:
    """Most of 1,000 pairs are believed as decoys are."""
    rng = np.random.default_rng(1)
    added = rng.random(decoys) ** 2
    pairs = np.concatenate([rng.random(850) ** 2, rng.beta(3, 1.5, 150)])
    found = estimate(pairs, added)
    assert found.doubtful
    assert found.high - found.low > 0.5
    return Correspondences(pairs, found)


def test_few_decoys_whose_rate_may_be_nearly_anything_tell_none() -> None:
    found = without_vague(estimated(BOUNDING - 1))
    assert found.estimate is None
    assert found.vague is not None
    assert "99 decoys say no more than that between 0 and 94 % are mismatched" in found.unsure


def test_many_decoys_bound_a_rate_that_they_do_not_tell() -> None:
    given = estimated(BOUNDING)
    assert without_vague(given) is given


def test_a_rate_with_a_narrow_interval_is_told_by_few_decoys_too() -> None:
    rng = np.random.default_rng(0)
    pairs = np.concatenate([rng.beta(1, 30, 200), rng.beta(30, 1, 800)])
    found = Correspondences(pairs, estimate(pairs, rng.beta(1, 30, 50)))
    assert found.estimate is not None
    assert found.estimate.rate == pytest.approx(0.2, abs=0.05)
    assert without_vague(found) is found
