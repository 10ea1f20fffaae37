"""Metrics: recorded numbers, slow sorting, ties, and detection by hand."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcl import metrics


def slow_ranks(sims: np.ndarray, image_of_text: np.ndarray) -> tuple[list[int], list[int]]:
    """Sort every row and every column, best first, and look for the first right item."""
    images, texts = sims.shape
    i2t, t2i = [], []
    for image in range(images):
        if image in image_of_text:
            order = sorted(range(texts), key=lambda text: -sims[image, text])
            i2t.append(min(place for place, text in enumerate(order) if image_of_text[text] == image))
    for text in range(texts):
        order = sorted(range(images), key=lambda image: -sims[image, text])
        t2i.append(order.index(image_of_text[text]))
    return i2t, t2i


@given(
    images=st.integers(1, 8),
    owners=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    block=st.sampled_from([1, 3, 256]),
    seed=st.integers(0, 999),
)
def test_ranks_are_those_of_sorting_for_any_map_of_captions_to_images(
    images: int, owners: list[int], block: int, seed: int
) -> None:
    """Images without captions are no queries, but stand in the way of others."""
    image_of_text = np.array(owners) % images
    sims = np.random.default_rng(seed).permutation(images * len(owners)).reshape(images, -1).astype(np.float32)
    i2t, t2i = metrics.ranks(sims, image_of_text, block=block)
    slow_i2t, slow_t2i = slow_ranks(sims, image_of_text)
    assert i2t.tolist() == slow_i2t
    assert t2i.tolist() == slow_t2i


def test_scores_agree_with_the_field(recorded: Callable[[str], dict[str, np.ndarray]]) -> None:
    numbers = recorded("recall")
    sims = numbers["similarities"]
    found = metrics.retrieval(sims, np.arange(sims.shape[1]) // int(numbers["captions_per_image"]))
    np.testing.assert_allclose(list(vars(found.i2t).values()), numbers["i2t"])
    np.testing.assert_allclose(list(vars(found.t2i).values()), numbers["t2i"])
    assert found.rsum == pytest.approx(numbers["i2t"][:3].sum() + numbers["t2i"][:3].sum())


def test_a_perfect_model_has_every_item_in_the_first_place() -> None:
    image_of_text = np.array([2, 0, 1, 2, 0])
    sims = (np.arange(3)[:, None] == image_of_text).astype(np.float32)
    found = metrics.retrieval(sims, image_of_text)
    assert found.i2t == found.t2i == metrics.Recall(100, 100, 100, 1, 1)
    assert found.rsum == 600


def test_a_model_that_gives_everything_the_same_score_finds_nothing() -> None:
    image_of_text = np.repeat(np.arange(20), 3)
    sims = np.zeros((20, 60), dtype=np.float32)
    i2t, t2i = metrics.ranks(sims, image_of_text)
    assert set(t2i.tolist()) == {19}
    assert set(i2t.tolist()) == {57}  # the texts of the other images
    assert metrics.retrieval(sims, image_of_text).rsum == 0


def test_a_tie_counts_against_the_model_but_not_among_an_images_own_texts() -> None:
    sims = np.array([[0.5, 0.5, 0.5, 0.1], [0.2, 0.9, 0.5, 0.9]])
    i2t, t2i = metrics.ranks(sims, np.array([0, 0, 1, 1]))
    assert i2t.tolist() == [1, 1]
    assert t2i.tolist() == [0, 1, 1, 0]


def test_recall_is_in_percent_and_ranks_are_told_from_one() -> None:
    found = metrics.recall(np.array([0, 4, 5, 9, 10, 2]))
    assert list(vars(found).values()) == pytest.approx([100 / 6, 50, 500 / 6, 5, 6])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (2, 1)], ids=["own", "other"])
def test_similarities_that_are_not_finite_are_refused(bad: float, place: tuple[int, int]) -> None:
    sims = np.eye(3)
    sims[place] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        metrics.retrieval(sims, np.arange(3))


def test_scores_print_as_percents_in_both_directions() -> None:
    recall = metrics.Recall(12.345, 50.0, 100.0, 5.0, 6.0)
    one = "R@1 12.3, R@5 50.0, R@10 100.0"
    assert repr(metrics.Retrieval(recall, recall)) == f"Retrieval(image to text {one}; text to image {one}; rSum 324.7)"


def test_a_map_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 columns of similarities, but 2 texts"):
        metrics.ranks(np.eye(3), np.array([0, 1]))


def test_recall_of_no_queries_is_refused() -> None:
    with pytest.raises(ValueError, match="no queries"):
        metrics.recall(np.array([], dtype=np.int64))


def test_folds_are_averaged_score_by_score() -> None:
    one = metrics.Retrieval(metrics.Recall(10, 20, 30, 4, 5.5), metrics.Recall(1, 2, 3, 40, 50))
    two = metrics.Retrieval(metrics.Recall(30, 40, 50, 2, 4.5), metrics.Recall(3, 4, 5, 20, 30))
    average = metrics.mean([one, two])
    assert average == metrics.Retrieval(metrics.Recall(20, 30, 40, 3, 5), metrics.Recall(2, 3, 4, 30, 40))
    assert average.rsum == pytest.approx((one.rsum + two.rsum) / 2)
    assert metrics.mean([one]) == one


def test_detection_by_hand() -> None:
    """Of the four orders of a mismatched and a matched pair three are right; the suspects found are 1 of 1, 2 of 3."""
    correspondence, truth = np.array([0.9, 0.6, 0.65, 0.2]), np.array([True, True, False, False])
    found = metrics.detection(correspondence, truth, threshold=0.7)
    assert found is not None
    assert found.auroc == pytest.approx(3 / 4)
    assert found.average_precision == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert (found.precision, found.recall, found.f1) == pytest.approx((2 / 3, 1, 0.8))


def test_a_pair_at_the_threshold_is_no_suspect() -> None:
    found = metrics.detection(np.array([0.5, 0.5, 0.4]), np.array([True, False, False]), threshold=0.5)
    assert found is not None
    assert (found.precision, found.recall) == pytest.approx((1, 0.5))


def test_low_correspondences_of_mismatched_pairs_are_the_best_detection() -> None:
    found = metrics.detection(np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1]), threshold=0.5)
    assert found == metrics.Detection(1, 1, 1, 1, 1)


@pytest.mark.parametrize("threshold", [0.0, 0.25])
def test_detection_that_finds_nothing_has_no_precision(threshold: float) -> None:
    found = metrics.detection(np.array([0.2, 0.8]), np.array([True, False]), threshold=threshold)
    assert found is not None
    assert (found.auroc, found.precision, found.recall, found.f1) == (0, 0, 0, 0)


@pytest.mark.parametrize("truth", [True, False])
def test_detection_is_not_defined_where_all_pairs_are_of_one_kind(truth: bool) -> None:
    assert metrics.detection(np.array([0.2, 0.8]), np.full(2, truth), threshold=0.5) is None
