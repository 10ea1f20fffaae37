"""The random sample: fixed by its seed, mixed, and measured only where it was gone through."""

import numpy as np
import pytest

from crcl.auditing.review.drawing import draw, strata
from crcl.auditing.review.sample import Stratum, measure


def test_both_groups_are_drawn_mixed_and_the_same_each_time() -> None:
    suspect = np.arange(1000) < 200
    sample = draw(suspect, each=50)
    assert len(set(sample.pairs.tolist())) == 100
    assert (sample.flagged == suspect[sample.pairs]).all()
    assert sample.flagged.sum() == 50
    assert 15 < sample.flagged[:50].sum() < 35  # no group comes first
    assert (sample.pairs == draw(suspect, each=50).pairs).all()
    assert (sample.all_flagged, sample.all_unflagged) == (200, 800)
    assert len(draw(suspect, each=500).pairs) == 700
    assert not draw(np.zeros(9, bool)).flagged.any()


def test_another_threshold_leaves_most_of_the_sample_in_place() -> None:
    one, other = (set(draw(np.arange(1000) < flagged, each=50).pairs.tolist()) for flagged in (200, 220))
    assert len(one & other) > 85


def test_verdicts_count_only_where_the_sample_was_gone_through() -> None:
    sample = draw(np.arange(100) < 50, each=50)
    first = {int(pair): bool(pair < 50) for pair in sample.pairs[:20]}
    flagged, unflagged = strata(sample, first, reached=-1)
    assert (flagged.judged + unflagged.judged, flagged.right, unflagged.wrong) == (20, 0, 0)
    elsewhere = {int(sample.pairs[place]): True for place in range(40, 60)}
    assert strata(sample, first | elsewhere, reached=-1) == (flagged, unflagged)
    assert sum(one.judged for one in strata(sample, first | elsewhere, reached=99)) == 40
    assert strata(sample, dict.fromkeys(first), reached=-1) == (Stratum(50, 0, 0), Stratum(50, 0, 0))  # all unsure


@pytest.mark.parametrize("worst_first", [0, 150])
def test_reviewing_the_worst_before_the_sample_does_not_bend_what_it_measures(worst_first: int) -> None:
    """The first half of the flagged pairs is wrong. Judged first, they must not be all that counts."""
    suspect = np.arange(1000) < 300
    found = []
    for seed in range(40):
        sample = draw(suspect, each=100, seed=seed)
        said = {int(pair): bool(pair < 150) for pair in [*range(worst_first), *sample.pairs[:60]]}
        found.append(measure(*strata(sample, said, reached=59)).precision)
    assert np.mean([float(one) for one in found if one is not None]) == pytest.approx(0.5, abs=0.05)
