"""Similarities of listed pairs: those of the whole matrix, however they are grouped and held."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scorers import Kind, scorer_for

from crcl.data.split import Split
from crcl.errors import TrainingError
from crcl.matchers import SAF, SCAN, SGR, VSE, Bow, Ensemble
from crcl.retrieval.listed import listed_similarities

Tiny = Callable[..., Split]
each_matcher = pytest.mark.parametrize("matcher_class", [VSE, Bow, SAF, SGR, SCAN])


def listed(pairs: Split, count: int, *, images: int | None = None, captions: int | None = None) -> tuple:
    """So many random pairs of the first images and captions, each once, in no order."""
    rng = np.random.default_rng(0)
    images, captions = images or pairs.images, captions or len(pairs)
    keys = rng.choice(images * captions, count, replace=False)
    return keys // captions, keys % captions


@each_matcher
@pytest.mark.parametrize(("images", "captions"), [(None, None), (None, 3), (2, None), (1, 1)])
def test_listed_pairs_have_the_similarities_of_the_matrix(
    tiny: Tiny, matcher_class: Kind, images: int | None, captions: int | None
) -> None:
    pairs = tiny(images=9, captions=3)
    scorer = scorer_for(pairs, matcher_class)
    rows = listed(pairs, 1 if images == captions == 1 else 15, images=images, captions=captions)
    found = listed_similarities(scorer, pairs, *rows)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, scorer.similarities(pairs)[rows], atol=1e-6)


@each_matcher
@pytest.mark.parametrize("captions", [1, 4])
def test_what_does_not_fit_into_memory_is_held_part_by_part(tiny: Tiny, matcher_class: Kind, captions: int) -> None:
    pairs = tiny(images=9, captions=captions)
    scorer = scorer_for(pairs, matcher_class)
    rows = listed(pairs, 40, captions=min(len(pairs), 8))
    tight = replace(scorer, memory=1e-9, batch_size=2)
    np.testing.assert_allclose(listed_similarities(tight, pairs, *rows), scorer.similarities(pairs)[rows], atol=1e-6)


def test_cores_side_by_side_give_the_same(tiny: Tiny) -> None:
    pairs = tiny(images=9, captions=3)
    scorer, rows = scorer_for(pairs, SGR, batch_size=2), listed(tiny(images=9, captions=3), 60)
    alone = listed_similarities(scorer, pairs, *rows)
    torch.set_num_threads(3)
    try:
        np.testing.assert_allclose(listed_similarities(scorer, pairs, *rows), alone, atol=1e-6)
    finally:
        torch.set_num_threads(1)


def test_an_ensemble_of_networks_scores_listed_pairs(tiny: Tiny) -> None:
    pairs = tiny(images=9)
    one, other = scorer_for(pairs, SGR), scorer_for(pairs, SGR, seed=1)
    both = replace(one, matcher=Ensemble([one.matcher, other.matcher]))
    rows = listed(pairs, 20)
    mean = (one.similarities(pairs) + other.similarities(pairs))[rows] / 2
    np.testing.assert_allclose(listed_similarities(both, pairs, *rows), mean, atol=1e-6)


def test_long_lists_are_cut_into_tiles_by_words(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = tiny(images=3, captions=12)
    scorer, rows = scorer_for(pairs, SAF), listed(tiny(images=3, captions=12), 90)
    monkeypatch.setattr("crcl.retrieval.listed.ROWS", 16)
    np.testing.assert_allclose(listed_similarities(scorer, pairs, *rows), scorer.similarities(pairs)[rows], atol=1e-6)


def test_nothing_listed_gives_nothing_and_progress_counts_the_pairs(tiny: Tiny) -> None:
    pairs, told = tiny(), []
    scorer, none = scorer_for(pairs), np.empty(0, dtype=np.int64)
    assert not len(listed_similarities(scorer, pairs, none, none))
    rows = listed(pairs, 30)
    listed_similarities(scorer, pairs, *rows, advance=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (30, 30)


def test_weights_that_are_no_numbers_are_refused(tiny: Tiny) -> None:
    pairs = tiny()
    scorer = scorer_for(pairs, VSE)
    scorer.matcher.txt.embed.weight.data.fill_(float("nan"))
    with pytest.raises(TrainingError, match="NaN"):
        listed_similarities(scorer, pairs, *listed(pairs, 5))
