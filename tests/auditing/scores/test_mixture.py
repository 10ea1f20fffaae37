"""The share of mismatches in a mixture of decoys and of pairs that match."""

import numpy as np
import pytest

from crcl.auditing.scores.mixture import FAR, NEAR, Bins, mismatched_share


def share(pairs: np.ndarray, decoys: np.ndarray, **gap: float) -> float:
    bins = Bins.of(decoys)
    return float(mismatched_share(bins, bins.count(decoys)[None], bins.count(pairs)[None], **gap)[0])


def test_a_histogram_counts_values_up_to_each_edge_and_above_the_last() -> None:
    bins = Bins(np.array([0.2, 0.5]), np.array([-1.0, 0.0]))
    assert bins.count(np.array([0.1, 0.2, 0.3, 0.5, 0.6, 0.7])).tolist() == [2, 2, 2]


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
def test_the_share_is_found_although_matching_pairs_lie_among_the_decoys(rate: float) -> None:
    rng = np.random.default_rng(7)
    off, bounds = [], []
    for _ in range(10):
        wrong = rng.random(20_000) < rate
        pairs, decoys = rng.normal(size=20_000) + np.where(wrong, 0, 2.2), rng.normal(size=1000)
        off.append(share(pairs, decoys) - rate)
        bounds.append(  # what pairs and decoys below a threshold would tell
            (pairs < np.quantile(decoys, 0.6)).mean() / 0.6 - rate
        )
    assert abs(np.mean(off)) < min(0.03, np.mean(bounds))


@pytest.mark.parametrize("scale", [np.exp, lambda values: values**3, lambda values: 1 / (1 + np.exp(-values))])
def test_only_the_order_counts(scale) -> None:
    rng = np.random.default_rng(1)
    pairs, decoys = rng.normal(size=3000) + 2 * (rng.random(3000) > 0.3), rng.normal(size=201)
    # quantiles lie between two decoys, so that edges may move by less than their distance
    assert share(scale(pairs), scale(decoys)) == pytest.approx(share(pairs, decoys), abs=0.01)


def test_the_nearer_matching_pairs_may_come_the_fewer_are_mismatched() -> None:
    rng = np.random.default_rng(2)
    pairs, decoys = rng.normal(size=3000) + 1.5 * (rng.random(3000) > 0.3), rng.normal(size=200)
    assert share(pairs, decoys, gap=NEAR) < share(pairs, decoys) < share(pairs, decoys, gap=FAR)
    clear = np.where(rng.random(3000) > 0.3, 9.0, rng.normal(size=3000))
    assert share(clear, decoys, gap=NEAR) == pytest.approx(share(clear, decoys, gap=FAR), abs=0.02)


def test_decoys_that_are_all_alike_count_as_they_are() -> None:
    assert share(np.repeat([0.0, 1.0], [20, 80]), np.zeros(50)) == pytest.approx(0.2, abs=0.005)


def test_there_are_no_more_mismatches_below_an_edge_than_pairs() -> None:
    rng = np.random.default_rng(0)
    wrong, right = rng.beta(1, 12, 4000), rng.beta(6, 2, 16_000)
    decoys = np.concatenate([rng.beta(1, 12, 700), rng.beta(6, 2, 300)])  # three in ten match
    assert share(np.concatenate([wrong, right]), decoys) < 0.31  # 0.2 / 0.7 and some errors
