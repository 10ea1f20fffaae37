"""CHAN: the authors' numbers, and words one at a time."""

import unittest.mock
from collections.abc import Callable

import numpy as np
import pytest
import torch
from published_weights import assert_same_gradients, encoded, with_weights
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from crcl.matchers import CHAN, Encoded

Numbers = Callable[[str], dict[str, np.ndarray]]


@pytest.mark.parametrize(
    ("name", "similarities", "options"),
    [
        ("chan_lse", "similarities", {}),
        ("chan_mean", "similarities", {"pooling": "mean"}),
        ("chan_plain", "similarities", {"context": False}),
        ("chan_plain", "similarities_mean", {"context": False, "pooling": "mean"}),
    ],
)
def test_equals_the_authors_implementation(
    recorded: Numbers, name: str, similarities: str, options: dict[str, bool | str]
) -> None:
    """Pooled by LogSumExp, theirs are ten times ours."""
    numbers = recorded(f"zoo/{name}")
    matcher = with_weights(CHAN, numbers, unused=("txt.fc.",), **options)
    images, texts = encoded(matcher, numbers)
    real = images.mask[..., None].numpy()
    np.testing.assert_allclose(images.features, numbers["image_embeddings"] * real, atol=1e-5)
    np.testing.assert_allclose(texts.features, numbers["text_embeddings"], atol=1e-5)
    scale = matcher.sharp if matcher.pooling == "lse" else 1
    np.testing.assert_allclose(scale * matcher.similarity(images, texts).detach(), numbers[similarities], atol=1e-5)


def test_padding_that_the_authors_attend_to_in_training_is_left_out(recorded: Numbers) -> None:
    numbers = recorded("zoo/chan_mean")
    matcher = with_weights(CHAN, numbers, unused=("txt.fc.",), pooling="mean")
    sims = matcher.similarity(*encoded(matcher, numbers)).detach().numpy()
    assert np.abs(sims - numbers["similarities_padding_read"]).max() > 0.01


def batch() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    mask = torch.arange(4) < torch.tensor([4, 2, 1, 4, 3])[:, None]
    lengths = torch.tensor([4, 7, 2, 7, 1])
    tokens = torch.randint(1, 12, (5, 7)) * (torch.arange(7) < lengths[:, None])
    return (torch.randn(5, 4, 6), mask), (tokens, lengths)


def looped(matcher: CHAN, images: Encoded, texts: Encoded) -> Tensor:
    """Pair by pair and word by word."""
    rows = []
    for v, seen in zip(images.features, images.mask, strict=True):
        for t, read in zip(texts.features, texts.mask, strict=True):
            best = torch.stack([max(region @ word for region in v[seen]) for word in t[read]])
            rows.append(best.mean() if matcher.pooling == "mean" else (best / 0.1).exp().sum().log() * 0.1)
    return torch.stack(rows).view(len(images), len(texts))


@pytest.mark.parametrize("memory", [4.0, 1e-9], ids=["kept", "computed again"])
@pytest.mark.parametrize("pooling", ["lse", "mean"])
def test_gradients_equal_those_of_a_loop_over_pairs_and_words(pooling: str, memory: float) -> None:
    torch.manual_seed(0)
    matcher = CHAN(features=6, vocabulary=12, embedding=8, word=5, pooling=pooling, memory=memory)
    seen, read = batch()
    images, texts = matcher.encode_images(*seen), matcher.encode_texts(*read)
    with unittest.mock.patch("crcl.matchers.kernels.tiles.checkpoint", side_effect=checkpoint) as again:
        sims = matcher.similarity(images, texts)
    assert again.called == (memory < 1)
    assert_same_gradients(sims, looped(matcher, images, texts), list(matcher.parameters()))


def test_each_word_names_the_real_region_that_it_is_matched_with() -> None:
    torch.manual_seed(0)
    matcher = CHAN(features=6, vocabulary=12, embedding=8, word=5, pooling="mean").eval()
    seen, read = batch()
    images, texts = matcher.encode_images(*seen), matcher.encode_texts(*read)
    regions = matcher.best_regions(images, texts)
    assert regions.shape == (5, 5, 7)
    assert bool((regions.masked_select(~texts.mask) == -1).all())
    for i, (v, real) in enumerate(zip(images.features, images.mask, strict=True)):
        for j, (t, words) in enumerate(zip(texts.features, texts.mask, strict=True)):
            assert torch.equal(regions[i, j][words], (v[real] @ t[words].T).argmax(0))
