"""Precision and recall from verdicts: exact where all is judged, and intervals that hold the truth as often as told."""

import numpy as np
import pytest

from crcl.auditing.review.sample import Stratum, measure
from crcl.errors import InputError


def test_where_every_pair_is_judged_nothing_is_in_doubt() -> None:
    found = measure(Stratum(10, right=2, wrong=8), Stratum(30, right=28, wrong=2))
    for interval, value in ((found.precision, 0.8), (found.recall, 0.8), (found.rate, 0.25)):
        assert interval is not None
        assert (float(interval), interval.low, interval.high) == pytest.approx((value, value, value))


def test_both_groups_are_weighed_by_their_sizes() -> None:
    found = measure(Stratum(200, right=5, wrong=45), Stratum(800, right=49, wrong=1))
    assert found.recall is not None
    assert found.precision is not None
    assert found.recall == pytest.approx(180 / 196)
    assert found.rate == pytest.approx(196 / 1000)
    assert found.precision.low == pytest.approx(0.7819, abs=1e-4)  # Clopper and Pearson, 45 of 50
    assert found.precision.high == pytest.approx(0.9667, abs=1e-4)


def test_without_a_sample_of_a_group_nothing_is_said_that_needs_it() -> None:
    found = measure(Stratum(200, right=5, wrong=45), Stratum(800, right=0, wrong=0))
    assert found.precision is not None
    assert found.recall is found.rate is None
    assert measure(Stratum(200, right=0, wrong=0), Stratum(800, right=1, wrong=1)).precision is None
    assert measure(Stratum(0, right=0, wrong=0), Stratum(9, right=3, wrong=0)).recall is None


@pytest.mark.parametrize(
    ("flagged", "level"),
    [(Stratum(3, right=2, wrong=2), 0.95), (Stratum(3, right=-1, wrong=2), 0.95), (Stratum(3, right=1, wrong=1), 1.0)],
)
def test_impossible_counts_are_refused(flagged: Stratum, level: float) -> None:
    with pytest.raises(InputError):
        measure(flagged, Stratum(3, right=1, wrong=1), level=level)


@pytest.mark.parametrize(("precision", "missed"), [(0.9, 0.02), (0.6, 0.1), (0.98, 0.005)])
def test_the_intervals_hold_the_truth_as_often_as_they_say(precision: float, missed: float) -> None:
    rng = np.random.default_rng(0)
    sizes, drawn = (1000, 4000), 100
    wrong = (round(sizes[0] * precision), round(sizes[1] * missed))
    truth = {"precision": precision, "recall": wrong[0] / sum(wrong), "rate": sum(wrong) / sum(sizes)}
    held = dict.fromkeys(truth, 0)
    trials = 300
    for _ in range(trials):
        found = rng.hypergeometric(np.array(wrong), np.array(sizes) - np.array(wrong), drawn)
        told = measure(*(Stratum(size, drawn - int(one), int(one)) for size, one in zip(sizes, found, strict=True)))
        for name, value in truth.items():
            interval = getattr(told, name)
            held[name] += interval.low <= value <= interval.high
    assert min(held.values()) / trials > 0.91, held
