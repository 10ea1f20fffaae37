"""What the linear model reads: pooled regions and bags of words, against loops."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from embedded import made_up

from crcl.data.batches import Batches, Standardize
from crcl.data.maps.shards import Shards
from crcl.data.split import Split
from crcl.data.text.frequencies import inverse_document_frequency
from crcl.data.text.vectors import TextVectors
from crcl.data.text.vocabulary import Tokens, Vocabulary
from crcl.methods.relink import inputs
from crcl.methods.relink.inputs import bag_weights, bags, blocks, image_rows, text_rows, unit

Tiny = Callable[..., Split]


def batches_of(pairs: Split, **options: object) -> Batches:
    words = Vocabulary.build(pairs.captions, minimum=1)
    tokens = words.encode(pairs.captions)
    return Batches(pairs, tokens, vocabulary=len(words), mask_token=words.mask, **options)  # type: ignore[arg-type]


def encoded(*captions: str) -> tuple[Tokens, Vocabulary]:
    words = Vocabulary.build(captions, minimum=1)
    return words.encode(captions), words


def test_a_bag_has_every_word_as_often_as_the_caption_and_length_one() -> None:
    captions = ["a dog and a dog and a dog", "a cat", "the red dog", "a cat near the red cat"]
    tokens, words = encoded(*captions)
    found = bags(tokens, len(words)).toarray()
    weights = bag_weights(tokens, len(words))
    for row in range(len(captions)):
        counts = Counter(tokens[row].tolist())
        bag = np.array([counts[number] * weights[number] for number in range(len(words))])
        np.testing.assert_allclose(found[row], bag / np.sqrt((bag**2).sum()), atol=1e-6)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_a_word_of_every_caption_weighs_nothing_and_a_rare_one_most() -> None:
    tokens, words = encoded("a dog", "a dog and a cat", "a dog in the snow", "a bird")
    weights = dict(zip(words.words, bag_weights(tokens, len(words)), strict=True))
    assert weights["a"] == weights["<start>"] == weights["<end>"] == 0
    assert 0 < weights["dog"] < weights["cat"]
    idf = inverse_document_frequency(tokens, len(words))
    np.testing.assert_allclose(bag_weights(tokens, len(words)), np.maximum(idf - 1, 0), atol=1e-6)


def test_of_a_large_vocabulary_the_words_of_the_most_captions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, words = encoded("dog cat", "dog cat bird", "dog cat tree", "red")
    monkeypatch.setattr(inputs, "MOST_WORDS", 4)  # <start> and <end> are in every caption
    weights = dict(zip(words.words, bag_weights(tokens, len(words)), strict=True))
    assert {word for word, weight in weights.items() if weight > 0} == {"dog", "cat"}


def test_a_caption_of_words_without_weight_is_a_bag_of_zeros() -> None:
    tokens, words = encoded("a", "a")
    assert not bags(tokens, len(words)).toarray().any()


def test_an_image_is_the_mean_and_the_maximum_of_its_regions_standardised(tiny: Tiny) -> None:
    pairs = tiny(images=9)
    standardize = Standardize.measure(pairs)
    found = image_rows(batches_of(pairs, standardize=standardize))
    assert (len(found), found.size, found.sparse) == (9, 10, False)
    for row in (3, 8, 0):
        regions = standardize(pairs.features[row].copy())
        expected = [*regions.mean(0), *regions.max(0)]
        np.testing.assert_allclose(found.read(np.array([row]))[0], expected, atol=1e-5)


def test_an_image_of_one_region_is_that_region_with_length_one(tiny: Tiny) -> None:
    pairs = tiny(images=9, regions=1)
    found = image_rows(batches_of(pairs))
    assert (len(found), found.size) == (9, 5)
    rows = np.array([4, 2])
    np.testing.assert_allclose(found.read(rows), unit(pairs.features[rows, 0]), atol=1e-6)


def test_captions_with_vectors_are_these_with_length_one_and_others_are_bags(tiny: Tiny) -> None:
    images, texts = made_up(6, image=5, text=4)
    names = [str(row) for row in range(6)]
    pairs = Split(names, np.arange(6), images[:, None], names, text_features=Shards([texts]))
    found = text_rows(Batches(pairs, TextVectors(pairs), vocabulary=5, mask_token=4))
    assert (len(found), found.size, found.sparse) == (6, 4, False)
    np.testing.assert_allclose(found.read(np.array([5, 0])), unit(texts[[5, 0]].astype(np.float32)), atol=1e-3)
    batches = batches_of(tiny())
    words = text_rows(batches)
    assert (len(words), words.size, words.sparse) == (12, batches.vocabulary, True)


def test_features_in_half_precision_become_float32(tiny: Tiny) -> None:
    pairs = tiny(images=4)
    half = replace(pairs, features=pairs.features.astype(np.float16))
    assert image_rows(batches_of(half)).read(np.arange(4)).dtype == np.float32


def test_unit_vectors_leave_zeros_as_they_are() -> None:
    np.testing.assert_allclose(unit(np.array([[3.0, 4.0], [0.0, 0.0]])), [[0.6, 0.8], [0, 0]])


def test_blocks_hold_every_number_once() -> None:
    assert np.concatenate(list(blocks(10, 4))).tolist() == list(range(10))
    assert [len(block) for block in blocks(10, 4)] == [4, 4, 2]
    assert list(blocks(0)) == []
