"""Two stages: candidates, ranks and scores as a slow loop gives them."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scorers import Kind, scorer_for

from crcl import metrics
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.matchers import SAF, SCAN, SGR, VSE, Bow
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.two_stages import evaluate_in_stages, find_candidates, rank_again, ranks

Tiny = Callable[..., Split]


def slow_ranks(coarse: np.ndarray, fine: np.ndarray, right: np.ndarray, count: int) -> list[int]:
    """Rank of the best right item of each query (row): candidates by `fine`, then the rest; ties count against."""
    found = []
    for first, second, own in zip(coarse, fine, right, strict=True):
        order = sorted(range(len(first)), key=lambda item: (-first[item], item))
        candidates, rest = order[:count], order[count:]
        again = sorted(candidates, key=lambda item: (-second[item], own[item]))
        after = sorted(rest, key=lambda item: (-first[item], own[item]))
        ordered = again + after
        values = [second[item] for item in again] + [first[item] for item in after]
        place = next(at for at, item in enumerate(ordered) if own[item])
        stage = range(len(again)) if place < len(again) else range(len(again), len(ordered))
        tied = [at for at in stage if values[at] == values[place] and not own[ordered[at]]]
        before = [at for at in range(place) if not own[ordered[at]]]
        found.append(len({*before, *tied}))
    return found


@given(st.integers(0, 10**6), st.integers(1, 30), st.sampled_from([3, 1000]))
def test_ranks_are_those_of_a_slow_loop(seed: int, count: int, values: int) -> None:
    rng = np.random.default_rng(seed)
    images, texts = rng.integers(1, 8), rng.integers(1, 20)
    coarse, fine = (rng.integers(0, values, (images, texts)).astype(np.float32) for _ in range(2))
    image_of_text = rng.integers(0, images, texts)
    candidates = find_candidates(coarse, count)
    i2t, t2i = ranks(coarse, image_of_text, candidates, fine[candidates.images, candidates.captions])
    right = np.arange(images)[:, None] == image_of_text
    shown = right.any(1)
    assert i2t.tolist() == slow_ranks(coarse[shown], fine[shown], right[shown], count)
    assert t2i.tolist() == slow_ranks(coarse.T, fine.T, right.T, count)


def test_each_pair_of_both_candidate_sets_is_listed_once() -> None:
    coarse = np.random.default_rng(0).random((7, 20))
    found = find_candidates(coarse, 3)
    listed = set(zip(found.images.tolist(), found.captions.tolist(), strict=True))
    assert len(listed) == len(found.images)
    of_captions = {(image, text) for text, row in enumerate(found.images_of.tolist()) for image in row}
    of_images = {(image, text) for image, row in enumerate(found.captions_of.tolist()) for text in row}
    assert listed == of_captions | of_images
    np.testing.assert_array_equal(found.images[found.of_captions], found.images_of)
    np.testing.assert_array_equal(found.captions[found.of_images], found.captions_of)


def test_a_perfect_second_stage_finds_what_is_among_the_candidates() -> None:
    rng, image_of_text = np.random.default_rng(0), np.arange(20).repeat(2)
    right = (np.arange(20)[:, None] == image_of_text).astype(np.float32)
    found = rank_again(rng.random((20, 40), np.float32), image_of_text, 5, lambda images, texts: right[images, texts])
    assert found.scores.t2i.r1 == pytest.approx(found.t2i_found)
    assert found.scores.i2t.r1 == pytest.approx(found.i2t_found)
    assert found.first.t2i.r5 == pytest.approx(found.t2i_found)
    assert found.compared < 100 * (5 / 20 + 5 / 40)


@pytest.mark.parametrize("matcher_class", [SAF, SGR, SCAN])
@pytest.mark.parametrize("folds", [1, 3])
def test_with_all_candidates_the_scores_are_those_of_the_second_stage(
    tiny: Tiny, matcher_class: Kind, folds: int
) -> None:
    pairs = tiny(images=12)
    second = scorer_for(pairs, matcher_class)
    found = evaluate_in_stages([scorer_for(pairs, VSE)], [second], pairs, candidates=1000, folds=folds)
    assert found.scores == evaluate([second], pairs, folds=folds)
    assert found.i2t_found == found.t2i_found == found.compared == 100


def test_with_one_candidate_the_first_answer_is_that_of_the_first_stage(tiny: Tiny) -> None:
    pairs = tiny(images=12)
    first = [scorer_for(pairs, VSE)]
    found = evaluate_in_stages(first, [scorer_for(pairs, SGR)], pairs, candidates=1)
    assert found.scores == found.first == evaluate(first, pairs)


def test_several_runs_of_a_stage_are_averaged(tiny: Tiny) -> None:
    pairs = tiny(images=12)
    first, second = [scorer_for(pairs, VSE), scorer_for(pairs, Bow)], [scorer_for(pairs, SGR), scorer_for(pairs, SAF)]
    coarse, fine = (sum(each.similarities(pairs) for each in stage) / 2 for stage in (first, second))
    expected = rank_again(coarse, pairs.image_index, 4, lambda images, captions: fine[images, captions])
    heard: list[tuple[int, int]] = []
    found = evaluate_in_stages(first, second, pairs, candidates=4, advance=lambda *now: heard.append(now))
    assert found == expected
    assert heard == sorted(heard)
    assert heard[-1][0] == heard[-1][1]


def test_the_image_without_captions_is_no_query() -> None:
    image_of_text = np.array([0, 0, 2])
    coarse = np.random.default_rng(0).random((3, 3), np.float32)
    found = rank_again(coarse, image_of_text, 3, lambda images, texts: coarse[images, texts])
    assert found.scores == metrics.retrieval(coarse, image_of_text)
    assert found.i2t_found == 100


@pytest.mark.parametrize("count", [0, -3])
def test_less_than_one_candidate_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="at least one is needed"):
        find_candidates(np.zeros((2, 2)), count)
