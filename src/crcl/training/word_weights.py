"""Inverse document frequencies of the words of the vocabulary."""

import numpy as np
import torch

from crcl.data.text.vocabulary import Tokens
from crcl.training.training_data import TrainingData


def inverse_document_frequency(data: TrainingData) -> torch.Tensor | None:
    """Inverse document frequency of each word in the training captions; None if captions are vectors. (vocabulary,)"""
    if not isinstance(data.tokens, Tokens):
        return None
    captions = np.repeat(np.arange(len(data.tokens)), data.tokens.lengths)
    seen = np.unique(captions * len(data.vocabulary) + data.tokens.flat) % len(data.vocabulary)
    documents = np.bincount(seen, minlength=len(data.vocabulary))
    weights = np.log((1 + len(data.tokens)) / (1 + documents)).astype(np.float32) + 1
    weights[documents == 0] = weights[documents > 0].mean()  # <mask> is in no caption, but in many augmented ones
    return torch.from_numpy(weights)
