"""Inverse document frequencies of the words of a vocabulary."""

import numpy as np

from crcl.data.text.vocabulary import Tokens


def inverse_document_frequency(tokens: Tokens, vocabulary: int) -> np.ndarray:
    """Inverse document frequency of each word in these captions; a word in none has the mean. (vocabulary,) float32"""
    weights = np.log((1 + len(tokens)) / (1 + document_counts(tokens, vocabulary))).astype(np.float32) + 1
    absent = document_counts(tokens, vocabulary) == 0
    weights[absent] = weights[~absent].mean()  # <mask> is in no caption, but in many augmented ones
    return weights


def document_counts(tokens: Tokens, vocabulary: int) -> np.ndarray:
    """In how many of these captions each word is. (vocabulary,) int64"""
    captions = np.repeat(np.arange(len(tokens)), tokens.lengths)
    seen = np.unique(captions * vocabulary + tokens.flat) % vocabulary
    return np.bincount(seen, minlength=vocabulary)
