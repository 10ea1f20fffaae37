"""Shares of an ensemble's two parts: the ones that retrieve best on dev pairs are chosen and kept."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from crcl import metrics
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.matchers import Bow, Encoded, Ensemble
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.scoring import Scorer
from crcl.retrieval.shares import CANDIDATES, choose_shares
from crcl.retrieval.vectors import image_vectors, text_vectors

Tiny = Callable[..., Split]


def bow(pairs: Split, seed: int) -> Bow:
    torch.manual_seed(seed)
    words = Vocabulary.build(pairs.captions, minimum=1)
    return Bow(features=pairs.features.shape[2], vocabulary=len(words), embedding=16, word=8)


class Constant(nn.Module):
    """The same similarity for every image and text."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded(torch.zeros(len(regions), 2))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(torch.zeros(len(tokens), 2))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.features @ texts.features.T


def scorer_of(pairs: Split, *members: nn.Module) -> tuple[Ensemble, Scorer]:
    ensemble = Ensemble(members, shares=torch.full((len(members),), 1 / len(members)))
    return ensemble, Scorer(ensemble, Vocabulary.build(pairs.captions, minimum=1))


def test_the_shares_with_the_best_rsum_are_chosen_and_scored_with(tiny: Tiny) -> None:
    pairs = tiny(images=40)
    ensemble, scorer = scorer_of(pairs, bow(pairs, 1), bow(pairs, 2))
    sims = [Scorer(part, scorer.vocabulary).similarities(pairs) for part in ensemble.matchers]
    by_hand = {
        share: metrics.retrieval(np.float32(share) * sims[0] + np.float32(1 - share) * sims[1], pairs.image_index).rsum
        for share in CANDIDATES
    }
    found = choose_shares(ensemble, scorer, pairs, scorer.tokens(pairs))
    assert ensemble.shares is not None
    assert found.rsum == max(by_hand.values()) > by_hand[0.5]
    assert by_hand[round(float(ensemble.shares[0]), 3)] == found.rsum
    assert float(ensemble.shares.sum()) == pytest.approx(1)
    assert evaluate([scorer], pairs) == found


def test_equal_parts_are_kept_where_no_share_is_better(tiny: Tiny) -> None:
    pairs = tiny(images=20)
    same = bow(pairs, 1)
    ensemble, scorer = scorer_of(pairs, same, same)
    choose_shares(ensemble, scorer, pairs, scorer.tokens(pairs))
    assert ensemble.shares is not None
    assert ensemble.shares.tolist() == [0.5, 0.5]


def test_only_two_parts_with_shares_can_be_weighed(tiny: Tiny) -> None:
    pairs = tiny()
    ensemble, scorer = scorer_of(pairs, bow(pairs, 1), bow(pairs, 2), bow(pairs, 3))
    with pytest.raises(ValueError, match="of two matchers"):
        choose_shares(ensemble, scorer, pairs, scorer.tokens(pairs))
    with pytest.raises(ValueError, match="of two matchers"):
        choose_shares(Ensemble([bow(pairs, 1), bow(pairs, 2)]), scorer, pairs, scorer.tokens(pairs))


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.7, 0.3), (1.0, 0.0)])
def test_inner_products_of_joined_vectors_are_the_weighted_similarities(
    tiny: Tiny, shares: tuple[float, float]
) -> None:
    pairs = tiny(images=9)
    ensemble, scorer = scorer_of(pairs, bow(pairs, 1), bow(pairs, 2))
    assert ensemble.shares is not None
    ensemble.shares.copy_(torch.tensor(shares))
    images = image_vectors(scorer, pairs, np.arange(9))
    texts = text_vectors(scorer, scorer.tokens(pairs), np.arange(len(pairs)))
    np.testing.assert_allclose(images @ texts.T, scorer.similarities(pairs), atol=1e-6)


def test_a_part_that_tells_nothing_changes_no_ranking(tiny: Tiny) -> None:
    pairs = tiny(images=20)
    useful = bow(pairs, 1)
    ensemble, scorer = scorer_of(pairs, useful, Constant())
    alone = evaluate([Scorer(useful, scorer.vocabulary)], pairs)
    assert choose_shares(ensemble, scorer, pairs, scorer.tokens(pairs)).rsum >= alone.rsum
