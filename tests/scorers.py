"""Untrained matchers that score the tiny pairs."""

import torch

from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.matchers import SAF, SCAN, SGR, VSE, Bow
from crcl.retrieval.scoring import Scorer

Kind = type[VSE] | type[Bow] | type[SAF] | type[SGR] | type[SCAN]


def scorer_for(
    pairs: Split,
    matcher_class: Kind = Bow,
    *,
    seed: int = 0,
    batch_size: int = 5,
    vocabulary: Vocabulary | None = None,
) -> Scorer:
    vocabulary = vocabulary or Vocabulary.build(pairs.captions, minimum=1)
    torch.manual_seed(seed)
    _, regions, features = pairs.features.shape
    own = {"regions": regions, "similarity": 6} if matcher_class in (SAF, SGR) else {}
    matcher = matcher_class(features=features, vocabulary=len(vocabulary), embedding=8, word=6, **own)
    return Scorer(matcher, vocabulary, batch_size=batch_size)
