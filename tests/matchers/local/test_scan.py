"""SCAN: the authors' numbers, and captions one at a time."""

import unittest.mock
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

from crcl.matchers import SCAN, Encoded

Numbers = Callable[[str], dict[str, np.ndarray]]
each = pytest.mark.parametrize("direction", ["t2i", "i2t"])
pooled = pytest.mark.parametrize(("pooling", "recorded_name"), [("lse", "LogSumExp"), ("mean", "Mean")])


@each
@pooled
def test_equals_the_authors_implementation(recorded: Numbers, direction: str, pooling: str, recorded_name: str) -> None:
    numbers = recorded("peer_losses")
    words, lengths = torch.tensor(numbers["scan_words"]), torch.tensor(numbers["scan_lengths"])
    real = torch.arange(words.shape[1]) < lengths[:, None]
    matcher = SCAN(features=3, vocabulary=5, embedding=10, direction=direction, pooling=pooling)
    with torch.no_grad():
        regions = Encoded(torch.tensor(numbers["scan_regions"]))
        sims = matcher.similarity(regions, Encoded(words * real[..., None], real))
    np.testing.assert_allclose(sims, numbers[f"scan_{direction}_{recorded_name}"], atol=1e-5)


@each
@pytest.mark.parametrize(("pooling", "own"), [("max", lambda r: r.max()), ("sum", lambda r: r.sum())])
def test_maximum_and_sum_are_over_real_words_and_all_regions(
    recorded: Numbers, direction: str, pooling: str, own: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Against cosines computed pair by pair, with the context vectors formed."""
    numbers = recorded("peer_losses")
    words, lengths = torch.tensor(numbers["scan_words"]), torch.tensor(numbers["scan_lengths"])
    regions = torch.tensor(numbers["scan_regions"])
    real = torch.arange(words.shape[1]) < lengths[:, None]
    matcher = SCAN(features=3, vocabulary=5, embedding=10, direction=direction, pooling=pooling)
    with torch.no_grad():
        sims = matcher.similarity(Encoded(regions), Encoded(words * real[..., None], real))
    for i, v in enumerate(regions):
        for j, length in enumerate(lengths.tolist()):
            t = words[j, :length]
            asking, asked, smooth = (t, v, 9) if direction == "t2i" else (v, t, 4)
            s = torch.nn.functional.leaky_relu(asking @ asked.T, 0.1)
            attention = (smooth * s / (s.norm(dim=0, keepdim=True) + 1e-8)).softmax(1)
            cosines = torch.nn.functional.cosine_similarity(asking, attention @ asked)
            torch.testing.assert_close(sims[i, j], own(cosines), atol=1e-5, rtol=0)


def small(direction: str, pooling: str = "lse", **options: float) -> SCAN:
    torch.manual_seed(0)
    return SCAN(features=6, vocabulary=12, embedding=8, word=5, direction=direction, pooling=pooling, **options)


def captions(lengths: list[int]) -> tuple[Tensor, Tensor]:
    counts = torch.tensor(lengths)
    tokens = torch.randint(1, 12, (len(lengths), max(lengths)))
    return tokens * (torch.arange(max(lengths)) < counts[:, None]), counts


@pytest.mark.slow
@each
@pooled
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_batched_captions_equal_one_at_a_time(
    direction: str, pooling: str, recorded_name: str, lengths: list[int]
) -> None:
    matcher = small(direction, pooling).eval()
    tokens, counts = captions(lengths)
    with torch.no_grad():
        seen = matcher.encode_images(torch.randn(4, 5, 6), torch.ones(4, 5, dtype=torch.bool))
        together = matcher.similarity(seen, matcher.encode_texts(tokens, counts))
        for column, length in enumerate(lengths):
            alone = matcher.encode_texts(tokens[column : column + 1, :length], counts[column : column + 1])
            expected = matcher.similarity(seen, alone)
            torch.testing.assert_close(together[:, column : column + 1], expected, rtol=1e-5, atol=1e-5)


def looped(matcher: SCAN, v: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
    """Caption by caption, with the context vectors formed, pooled by LogSumExp."""
    columns = []
    for t in (words[row, :length] for row, length in enumerate(lengths.tolist())):
        asking, asked = (t.expand(len(v), -1, -1), v) if matcher.direction == "t2i" else (v, t.expand(len(v), -1, -1))
        s = leaky_relu(asking @ asked.mT, 0.1)
        attention = (matcher.smooth * s / (s.norm(dim=1, keepdim=True) + 1e-8)).softmax(2)
        cosines = torch.nn.functional.cosine_similarity(asking, attention @ asked, dim=2)
        columns.append((matcher.sharp * cosines).logsumexp(1) / matcher.sharp)
    return torch.stack(columns, dim=1)


@each
@pytest.mark.parametrize("memory", [4.0, 1e-9], ids=["kept", "computed again"])
def test_gradients_equal_those_of_a_loop_over_captions(direction: str, memory: float) -> None:
    matcher = small(direction, memory=memory)
    regions, mask = torch.randn(5, 4, 6), torch.ones(5, 4, dtype=torch.bool)
    tokens, counts = captions([4, 7, 2, 7, 1])

    def gradients(scores: Tensor) -> tuple[Tensor, ...]:
        weighed = (scores * torch.linspace(-1, 1, scores.numel()).view_as(scores)).sum()
        return torch.autograd.grad(weighed, list(matcher.parameters()))

    sims = matcher.similarity(matcher.encode_images(regions, mask), matcher.encode_texts(tokens, counts))
    expected = looped(
        matcher,
        matcher.encode_images(regions, mask).features,
        matcher.encode_texts(tokens, counts).features,
        counts,
    )
    torch.testing.assert_close(sims, expected, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(gradients(sims), gradients(expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@each
def test_a_step_that_would_keep_too_much_is_computed_in_parts(direction: str) -> None:
    matcher = small(direction, memory=1e-9)
    seen = matcher.encode_images(torch.randn(5, 4, 6), torch.ones(5, 4, dtype=torch.bool))
    read = matcher.encode_texts(*captions([4, 7, 2]))
    with unittest.mock.patch("crcl.matchers.kernels.tiles.checkpoint", side_effect=checkpoint) as again:
        matcher.similarity(seen, read)
    assert again.called


@each
def test_an_image_of_zeros_has_a_finite_gradient(direction: str) -> None:
    matcher = small(direction)
    torch.nn.init.zeros_(matcher.img["fc"].bias)
    seen = matcher.encode_images(torch.zeros(2, 4, 6), torch.ones(2, 4, dtype=torch.bool))
    matcher.similarity(seen, matcher.encode_texts(*captions([3, 2]))).sum().backward()
    gradients = [parameter.grad for parameter in matcher.parameters() if parameter.grad is not None]
    assert gradients
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
