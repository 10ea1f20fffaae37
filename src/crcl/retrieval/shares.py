"""Chooses how much each of the two parts of an ensemble counts, by retrieval on dev pairs."""

from dataclasses import replace

import numpy as np

from crcl import metrics
from crcl.data.split import Split
from crcl.data.text.vectors import Texts
from crcl.matchers import Ensemble
from crcl.retrieval.scoring import Scorer

CANDIDATES = (0.5, 0.75, 0.25, 1.0, 0.0)
"""Shares of the first part to choose from; the first of those that are equally good is taken."""


def choose_shares(ensemble: Ensemble, scorer: Scorer, dev: Split, tokens: Texts) -> metrics.Retrieval:
    """Give an ensemble of two the shares that retrieve best on these pairs, and return its scores.

    Args:
        ensemble: The ensemble; its `shares` are overwritten.
        scorer: Scores with the ensemble.
        dev: Pairs that are not trained on.
        tokens: Their captions, encoded.
    """
    if ensemble.shares is None or len(ensemble.shares) != 2:
        raise ValueError("only an ensemble of two matchers with shares has something to choose")
    first, second = (replace(scorer, matcher=part).similarities(dev, tokens=tokens) for part in ensemble.matchers)
    tried = []
    for share in CANDIDATES:
        sims = np.float32(share) * first + np.float32(1 - share) * second
        tried.append((share, metrics.retrieval(sims, dev.image_index)))
    best, scores = max(tried, key=lambda one: one[1].rsum)
    ensemble.shares.copy_(ensemble.shares.new_tensor([best, 1 - best]))
    return scores
