"""Orders of an epoch: every pair once; in blocks, a few parts of the file at a time, the next ones asked for before."""

import numpy as np
import pytest

from crcl.data.order import WHOLE, Order, Shuffle

PAIRS = 103
PLACES = np.arange(PAIRS) // 2  # two pairs for each image


def shuffled(how: Shuffle, seed: int = 0) -> Order:
    return Order.shuffled(np.arange(PAIRS), PLACES, np.random.default_rng(seed), how)


@pytest.mark.parametrize("how", [WHOLE, Shuffle(4, 3), Shuffle(1, 1), Shuffle(1000, 1), Shuffle(5, 1000)], ids=str)
def test_each_pair_comes_once_in_an_order_of_its_seed(how: Shuffle) -> None:
    order = shuffled(how)
    assert sorted(order.rows) == sorted(order.read) == list(range(PAIRS))
    np.testing.assert_array_equal(order.rows, shuffled(how).rows)
    assert (order.rows != shuffled(how, 1).rows).any()
    assert (order.rows != np.arange(PAIRS)).mean() > 0.5


def test_a_whole_shuffle_is_that_of_numpy() -> None:
    rows = np.arange(5, PAIRS)
    order = Order.shuffled(rows, rows, np.random.default_rng(3))
    np.testing.assert_array_equal(order.rows, np.random.default_rng(3).permutation(rows))


def test_a_window_holds_whole_blocks_and_windows_are_of_nearly_one_size() -> None:
    order = shuffled(Shuffle(4, 3))  # 13 blocks of 4 images
    begins = [0, *order.ends[:-1]]
    windows = [
        set((PLACES[order.rows[begin:end]] // 4).tolist()) for begin, end in zip(begins, order.ends, strict=True)
    ]
    assert sorted(block for window in windows for block in window) == list(range(13))
    assert {len(window) for window in windows} == {2, 3}
    assert any(max(window) - min(window) > 3 for window in windows)  # blocks of all parts of the file
    for begin, end in zip(begins, order.ends, strict=True):
        places = PLACES[order.read[begin:end]]
        assert (np.diff(places) >= 0).all()
        assert (np.diff(PLACES[order.rows[begin:end]]) < 0).any()


def test_pairs_of_an_image_that_is_shown_elsewhere_lie_in_its_block() -> None:
    places = np.random.default_rng(1).permutation(PLACES)
    order = Order.shuffled(np.arange(PAIRS), places, np.random.default_rng(0), Shuffle(4, 3))
    first = set((places[order.rows[: order.ends[0]]] // 4).tolist())
    assert len(first) <= 3


@pytest.mark.parametrize("size", [1, 7, 16, 200])
@pytest.mark.parametrize("start", [0, 3])
def test_all_that_a_batch_needs_was_asked_for_in_windows_before_its_own(size: int, start: int) -> None:
    order = shuffled(Shuffle(4, 3))
    asked = set(order.at_first(start * size).tolist())
    for begin in range(start * size, PAIRS, size):
        assert asked >= set(
            order.rows[begin : min(begin + size, int(order.ends[np.searchsorted(order.ends, begin, "right")]))]
        )
        asked |= set(order.ahead(begin, begin + size).tolist())
    assert asked >= set(order.rows[start * size :])


def test_a_window_is_asked_for_in_equal_shares_and_never_twice() -> None:
    order = shuffled(Shuffle(4, 3))
    asked = [order.at_first(0), *(order.ahead(begin, begin + 6) for begin in range(0, PAIRS, 6))]
    assert sorted(np.concatenate(asked)) == list(range(PAIRS))
    assert max(map(len, asked[1:])) <= 12


def test_without_windows_the_next_batch_is_asked_for() -> None:
    order = shuffled(WHOLE)
    np.testing.assert_array_equal(order.ahead(10, 20), order.rows[20:30])
    assert not len(order.at_first(50))
    assert not len(order.ahead(PAIRS - 3, PAIRS + 7))


def test_no_pairs_have_no_order() -> None:
    order = Order.shuffled(np.empty(0, np.int64), np.empty(0, np.int64), np.random.default_rng(0), Shuffle(4, 3))
    assert not len(order)
    assert not len(order.at_first(0))
