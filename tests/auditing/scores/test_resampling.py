"""What a threshold chosen by decoys adds to their recall, and intervals of precision."""

import numpy as np

from crcl.auditing.scores.resampling import best_place, precision_interval, too_high


def test_fewer_decoys_choose_worse() -> None:
    rng = np.random.default_rng(0)
    pairs = np.concatenate([rng.beta(2, 6, 300), rng.beta(6, 2, 700)])
    thresholds = np.unique(np.quantile(pairs, np.linspace(0, 1, 200)))
    few, many = (too_high(pairs, rng.beta(2, 6, count), thresholds) for count in (50, 4000))
    assert 0 <= many < 0.01 < few


def test_the_best_place_is_none_where_nothing_is_found() -> None:
    assert best_place(np.array([np.nan, 0.9, 0.6]), np.array([0.0, 0.5, 0.9])) == 2
    assert best_place(np.array([np.nan, 0.0]), np.array([0.0, 0.0])) is None


def test_the_interval_of_precision_lies_between_nothing_and_all() -> None:
    rng = np.random.default_rng(1)
    low, high = precision_interval(np.concatenate([rng.beta(2, 6, 300), rng.beta(6, 2, 700)]), rng.beta(2, 6, 80), 0.4)
    assert 0 <= low < 0.9 < high <= 1
