"""Suggestions: the same as by looking at the whole matrix, whatever the blocks."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from crcl.auditing.suggestions import join, suggest, suggest_believed
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.matchers import VSE
from crcl.methods.base import Partners
from crcl.retrieval.scoring import Scorer

Tiny = Callable[..., Split]


def scorer_for(pairs: Split, *, batch_size: int = 5, memory: float = 4.0) -> Scorer:
    vocabulary = Vocabulary.build(pairs.captions, minimum=1)
    torch.manual_seed(0)
    matcher = VSE(features=pairs.features.shape[2], vocabulary=len(vocabulary), embedding=8, word=6)
    return Scorer(matcher, vocabulary, batch_size=batch_size, memory=memory)


def by_hand(scorer: Scorer, pairs: Split, row: int, most: int) -> tuple[list[float], list[float]]:
    """Similarities of the best other captions and of the best other images, one pair at a time."""
    sims = scorer.similarities(pairs)
    image, caption = pairs.image_index[row], pairs.captions[row]
    own_texts = {pairs.captions[i] for i in range(len(pairs)) if pairs.image_index[i] == image}
    own_images = {pairs.image_index[i] for i in range(len(pairs)) if pairs.captions[i] == caption}
    texts = {text: sims[image, i] for i, text in enumerate(pairs.captions) if text not in own_texts}
    images = [sims[i, row] for i in range(pairs.images) if i not in own_images]
    return sorted(texts.values(), reverse=True)[:most], sorted(images, reverse=True)[:most]


@pytest.mark.parametrize("memory", [4.0, 1e-6])
@pytest.mark.parametrize("batch_size", [2, 64])
def test_suggestions_are_the_best_of_the_whole_matrix(tiny: Tiny, batch_size: int, memory: float) -> None:
    pairs = tiny(images=9, captions=3, seed=3)
    captions = list(pairs.captions)
    captions[20] = captions[4]  # a text of two images
    pairs = replace(pairs, captions=captions)
    scorer = scorer_for(pairs, batch_size=batch_size, memory=memory)
    rows = np.array([4, 0, 20, 26, 5])
    found = suggest(scorer, pairs, rows)
    sims = scorer.similarities(pairs)
    for place, row in enumerate(rows):
        texts, images = by_hand(scorer, pairs, int(row), 3)
        np.testing.assert_allclose(found.caption_fit[place], texts, atol=1e-6)
        np.testing.assert_allclose(found.image_fit[place], images, atol=1e-6)
        image = pairs.image_index[row]
        np.testing.assert_allclose(found.caption_fit[place], sims[image, found.captions[place]], atol=1e-6)
        np.testing.assert_allclose(found.image_fit[place], sims[found.images[place], row], atol=1e-6)


def test_fewer_suggestions_where_there_are_no_more_candidates(tiny: Tiny) -> None:
    pairs = tiny(images=2, captions=2)
    found = suggest(scorer_for(pairs), pairs, np.array([1]))
    assert (found.images == [[1, -1, -1]]).all()
    assert found.captions[0, 2] == -1
    assert np.isneginf(found.image_fit[0, 1:]).all()


def test_a_text_that_occurs_many_times_is_suggested_once(tiny: Tiny) -> None:
    pairs = tiny(images=8, captions=1)
    pairs = replace(pairs, captions=["a dog", *["the cat"] * 6, "one bird"])
    found = suggest(scorer_for(pairs), pairs, np.array([0]))
    assert sorted(found.captions[0].tolist()) == [-1, 1, 7]


def test_progress_goes_from_nothing_to_all(tiny: Tiny) -> None:
    pairs = tiny(images=6, captions=2)
    seen: list[tuple[int, int]] = []
    suggest(scorer_for(pairs, batch_size=2), pairs, np.array([0, 5]), advance=lambda *now: seen.append(now))
    done = [now for now, _ in seen]
    assert done == sorted(done)
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1]


def believed_by_hand(partners: Partners, pairs: Split, row: int, most: int) -> tuple[list[float], list[float]]:
    """The highest beliefs that other captions belong to the pair's image, and that its caption belongs to others."""
    known = {(text, image) for text, image in zip(pairs.captions, pairs.image_index.tolist(), strict=True)}
    texts: dict[str, float] = {}
    images: dict[int, float] = {}
    for other, (numbers, beliefs) in enumerate(zip(partners.images.tolist(), partners.beliefs.tolist(), strict=True)):
        for image, belief in zip(numbers, beliefs, strict=True):
            text = pairs.captions[other]
            if (text, image) in known:
                continue
            if image == pairs.image_index[row]:
                texts[text] = max(belief, texts.get(text, 0))
            if other == row:
                images[image] = max(belief, images.get(image, 0))
    best = [sorted(found.values(), reverse=True)[:most] for found in (texts, images)]
    return best[0], best[1]


def test_believed_suggestions_are_the_highest_beliefs_of_other_captions_and_images(tiny: Tiny) -> None:
    pairs = tiny(images=9, captions=3, seed=3)
    captions = list(pairs.captions)
    captions[20] = captions[4]  # a text of two images
    pairs = replace(pairs, captions=captions)
    rng = np.random.default_rng(0)
    images = np.stack([rng.permutation(9)[:4] for _ in range(27)])
    partners = Partners(images, rng.random((27, 4), dtype=np.float32))
    rows = np.array([4, 0, 20, 26, 5])
    found = suggest_believed(partners, pairs, rows)
    assert found.fit == "belief"
    for place, row in enumerate(rows):
        for numbers, fit, expected in zip(
            (found.captions, found.images),
            (found.caption_fit, found.image_fit),
            believed_by_hand(partners, pairs, int(row), 3),
            strict=True,
        ):
            np.testing.assert_allclose(fit[place][: len(expected)], expected, atol=1e-6)
            assert (numbers[place][len(expected) :] == -1).all()
        for image, belief in zip(found.images[place], found.image_fit[place], strict=True):
            assert image < 0 or belief == partners.beliefs[row, partners.images[row] == image]
    both = join(suggest_believed(partners, pairs, rows[:2]), suggest_believed(partners, pairs, rows[2:]))
    np.testing.assert_array_equal(both.images, found.images)
    np.testing.assert_array_equal(both.caption_fit, found.caption_fit)
    assert both.fit == "belief"


def test_what_is_not_believed_at_all_is_not_suggested(tiny: Tiny) -> None:
    pairs = tiny(images=3, captions=1)
    partners = Partners(np.array([[1, 2], [2, 0], [0, 1]]), np.array([[0.5, 0], [0, 0], [0, 0]], np.float32))
    found = suggest_believed(partners, pairs, np.arange(3))
    assert found.images.tolist() == [[1, -1, -1], [-1, -1, -1], [-1, -1, -1]]
    assert found.captions.tolist() == [[-1, -1, -1], [0, -1, -1], [-1, -1, -1]]


def test_nothing_is_suggested_where_no_other_image_is_known(tiny: Tiny) -> None:
    pairs = tiny(images=2, captions=1)
    nothing = Partners(np.empty((2, 0), np.int64), np.empty((2, 0), np.float32))
    found = suggest_believed(nothing, pairs, np.array([0, 1]))
    assert (found.images == -1).all()
    assert (found.captions == -1).all()
