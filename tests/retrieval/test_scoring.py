"""Scoring: the matrix by direct computation, and the matcher left as it was."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scorers import Kind, scorer_for

from crcl.data.batches import Standardize
from crcl.data.split import Split
from crcl.errors import TrainingError
from crcl.matchers import SAF, SCAN, SGR, VSE, Bow
from crcl.matchers.base import device_of, eval_mode
from crcl.retrieval import scoring as score
from crcl.retrieval.scoring import Scorer, _by_length

Tiny = Callable[..., Split]
each_matcher = pytest.mark.parametrize("matcher_class", [VSE, Bow, SAF, SGR, SCAN])


def direct_similarities(scorer: Scorer, pairs: Split) -> np.ndarray:
    """One image and one caption at a time."""
    matcher, tokens = scorer.matcher, scorer.tokens(pairs)
    sims = np.empty((pairs.images, len(pairs)))
    with eval_mode(matcher):
        for image in range(pairs.images):
            regions = torch.from_numpy(pairs.gather(np.array([image])))
            if scorer.standardize is not None:
                regions = torch.from_numpy(scorer.standardize(regions.numpy()))
            encoded = matcher.encode_images(regions, torch.ones(regions.shape[:2], dtype=torch.bool))
            for caption in range(len(pairs)):
                ids = torch.from_numpy(tokens[caption].astype(np.int64))[None]
                text = matcher.encode_texts(ids, torch.tensor([ids.shape[1]]))
                sims[image, caption] = matcher.similarity(encoded, text).item()
    return sims


@each_matcher
@pytest.mark.parametrize("standardized", [False, True])
def test_similarities_are_those_of_each_image_with_each_caption_alone(
    tiny: Tiny, matcher_class: Kind, standardized: bool
) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs, matcher_class)
    if standardized:
        scorer = replace(scorer, standardize=Standardize.measure(pairs))
    sims = scorer.similarities(pairs)
    assert sims.dtype == np.float32
    np.testing.assert_allclose(sims, direct_similarities(scorer, pairs), atol=1e-5)


@each_matcher
def test_the_batch_size_changes_nothing(tiny: Tiny, matcher_class: Kind) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs, matcher_class)
    expected = scorer.similarities(pairs)
    for batch_size in (1, 7, 100):
        np.testing.assert_allclose(replace(scorer, batch_size=batch_size).similarities(pairs), expected, atol=1e-5)


@pytest.mark.parametrize("memory", [1e-9, 1e-6])
def test_images_that_do_not_fit_into_memory_are_scored_part_by_part(tiny: Tiny, memory: float) -> None:
    pairs = tiny(images=7)
    whole = scorer_for(pairs, VSE)
    tight = replace(whole, memory=memory, batch_size=2)
    heard: list[tuple[int, int]] = []
    sims = tight.similarities(pairs, advance=lambda done, total: heard.append((done, total)))
    np.testing.assert_allclose(sims, whole.similarities(pairs), atol=1e-6)
    assert heard == sorted(heard)
    assert heard[-1] == (pairs.images + len(pairs),) * 2


def test_no_block_holds_more_images_than_so_many(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is at hand at a time does not grow with the data, however little memory the images themselves take."""
    pairs = tiny(images=7)
    scorer, seen, heard = scorer_for(pairs), [], []
    expected = scorer.similarities(pairs)
    monkeypatch.setattr(score, "_IMAGES", 4)
    sims = np.zeros_like(expected)

    def see(rows: slice, columns: np.ndarray, block: torch.Tensor) -> None:
        seen.append(len(block))
        sims[rows, columns] = block.numpy()

    tokens, captions = scorer.tokens(pairs), np.arange(len(pairs))
    few = replace(scorer, batch_size=2)
    few.score(pairs, tokens, np.arange(7), captions, see, advance=lambda *now: heard.append(now))
    np.testing.assert_allclose(sims, expected, atol=1e-6)
    assert set(seen) == {4, 3}
    assert heard == sorted(heard)
    assert heard[-1] == (7 + 14, 7 + 14)


def test_progress_counts_comparing_where_there_are_more_images_than_captions(tiny: Tiny) -> None:
    """A million images and ten captions: most of the work is left when the images are encoded."""
    pairs = tiny(images=7)
    scorer, heard = replace(scorer_for(pairs), batch_size=7), []
    captions = np.array([0, 3])
    scorer.score(
        pairs, scorer.tokens(pairs), np.arange(7), captions, lambda *_: None, advance=lambda *now: heard.append(now)
    )
    assert heard[0] == (7, 14)
    assert heard[-1] == (14, 14)


def test_known_tokens_need_not_be_made_again(tiny: Tiny) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs)
    wordless = replace(pairs, captions=["?"] * len(pairs))
    np.testing.assert_array_equal(
        scorer.similarities(wordless, tokens=scorer.tokens(pairs)), scorer.similarities(pairs)
    )


@each_matcher
def test_products_in_bfloat16_give_nearly_the_same_similarities_whatever_the_threads(
    tiny: Tiny, matcher_class: Kind
) -> None:
    """New threads start without autocast."""
    pairs = tiny()
    exact = scorer_for(pairs, matcher_class)
    rough = replace(exact, dtype=torch.bfloat16, batch_size=4)
    sims, own = rough.similarities(pairs), rough.pair_similarities(pairs)
    torch.set_num_threads(2)
    try:
        np.testing.assert_allclose(rough.similarities(pairs), sims, atol=1e-6)
    finally:
        torch.set_num_threads(1)
    for found, expected in ((sims, exact.similarities(pairs)), (own, exact.pair_similarities(pairs))):
        assert found.dtype == np.float32
        assert not np.array_equal(found, expected)
        np.testing.assert_allclose(found, expected, atol=0.02)


@each_matcher
def test_pair_similarities_are_those_of_the_images_that_are_shown(tiny: Tiny, matcher_class: Kind) -> None:
    pairs = tiny(images=25)
    pairs = pairs.show(np.roll(pairs.image_index, 3))
    scorer = scorer_for(pairs, matcher_class, batch_size=64)
    own = scorer.similarities(pairs)[pairs.image_index, np.arange(len(pairs))]
    np.testing.assert_allclose(scorer.pair_similarities(pairs), own, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_matcher_is_left_in_the_mode_it_was_in(tiny: Tiny, training: bool) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs)
    module = scorer.matcher
    assert isinstance(module, torch.nn.Module)
    module.train(training)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first, second = scorer.similarities(pairs), scorer.similarities(pairs)
    assert module.training is training
    assert all(part.training is training for part in module.modules())
    np.testing.assert_array_equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_mode_is_restored_after_an_error_too(tiny: Tiny) -> None:
    matcher = scorer_for(tiny()).matcher
    assert isinstance(matcher, torch.nn.Module)

    def fail() -> None:
        with eval_mode(matcher):
            assert not matcher.training
            assert torch.is_inference_mode_enabled()
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        fail()
    assert matcher.training
    assert not torch.is_inference_mode_enabled()


def test_the_device_is_that_of_the_parameters() -> None:
    assert device_of(torch.nn.Linear(1, 1, device="meta")).type == "meta"
    assert device_of(torch.nn.Identity()).type == "cpu"


def test_progress_is_told_until_all_is_done(tiny: Tiny) -> None:
    pairs = tiny()
    scorer, told = scorer_for(pairs), []
    scorer.similarities(pairs, advance=lambda done, total: told.append((done, total)))
    assert told == [(5, 18), (6, 18), (10, 18), (14, 18), (18, 18)]  # 6 images, 12 captions
    told.clear()
    scorer.pair_similarities(pairs, advance=lambda done, total: told.append((done, total)))
    assert told[-1] == (12, 12)


def test_captions_are_taken_by_length_among_those_side_by_side() -> None:
    lengths = np.random.default_rng(0).integers(3, 20, 1000)
    order = _by_length(lengths, 256)
    assert sorted(order) == list(range(1000))
    for start in range(0, 1000, 256):
        group = order[start : start + 256]
        assert set(group) == set(range(start, min(start + 256, 1000)))
        assert (np.diff(lengths[group]) >= 0).all()
    np.testing.assert_array_equal(_by_length(lengths, 1000), np.argsort(lengths, kind="stable"))


@each_matcher
def test_blocks_side_by_side_give_the_same_in_the_same_order(tiny: Tiny, matcher_class: Kind) -> None:
    pairs = tiny(images=5, captions=7)
    scorer = scorer_for(pairs, matcher_class, batch_size=3)
    alone, seen = scorer.similarities(pairs), []
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        together = scorer.similarities(pairs, advance=lambda done, total: seen.append(done))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(together, alone)
    assert seen == sorted(seen)


def test_an_error_in_a_block_ends_the_scoring_and_leaves_the_threads_as_they_were(tiny: Tiny) -> None:
    pairs = tiny(images=5, captions=7)
    scorer = scorer_for(pairs, VSE, batch_size=3)
    scorer.matcher.txt.embed.weight.data.fill_(float("nan"))
    torch.set_num_threads(2)
    try:
        with pytest.raises(TrainingError, match="NaN"):
            scorer.similarities(pairs)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
