"""Inverse document frequencies: against a loop over captions."""

import math

import numpy as np

from crcl.data.text.frequencies import document_counts, inverse_document_frequency
from crcl.data.text.vocabulary import SPECIALS, Vocabulary

CAPTIONS = ["a dog and a dog", "a red ball", "the dog", "a cat"]
WORDS = Vocabulary([*SPECIALS, "a", "dog", "and", "red", "ball", "the", "cat", "unseen"])


def test_a_caption_counts_once_for_each_of_its_words() -> None:
    counts = document_counts(WORDS.encode(CAPTIONS), len(WORDS))
    assert counts.shape == (len(WORDS),)
    for number, word in enumerate(WORDS.words[4:], 4):
        assert counts[number] == sum(word in caption.split() for caption in CAPTIONS), word
    assert dict(zip(WORDS.words, counts, strict=True))["<start>"] == 4


def test_weights_fall_with_the_number_of_captions_and_absent_words_have_the_mean() -> None:
    weights = inverse_document_frequency(WORDS.encode(CAPTIONS), len(WORDS))
    found = dict(zip(WORDS.words, weights.tolist(), strict=True))
    present = []
    for word in WORDS.words[4:-2]:
        having = sum(word in caption.split() for caption in CAPTIONS)
        np.testing.assert_allclose(found[word], math.log((1 + 4) / (1 + having)) + 1, rtol=1e-6)
        present.append(found[word])
    assert found["<start>"] == found["<end>"] == 1  # in every caption
    np.testing.assert_allclose(found["unseen"], np.mean([*present, 1, 1]), rtol=1e-5)
    assert found["unseen"] == found["<mask>"] == found["<unk>"]
    assert weights.dtype == np.float32
