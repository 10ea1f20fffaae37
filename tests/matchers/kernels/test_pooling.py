"""Pooling: the quick sorted sum against a plain sort, and GPO against one sample at a time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crcl.matchers.kernels.pooling import GPO, position_codes, sorted_sum


def plain_sorted_sum(x: Tensor, weights: Tensor) -> Tensor:
    return (x.sort(dim=1, descending=True).values * weights[..., None]).sum(1)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_codes(length: int, size: int) -> list[list[float]]:
    """P[t, 2k] = sin(t w_k), P[t, 2k + 1] = cos(t w_k), w_k = 10000^(-2k / size)."""
    codes = [[0.0] * size for _ in range(length)]
    for t in range(length):
        for k in range(size // 2):
            angle = t * 10000 ** (-2 * k / size)
            codes[t][2 * k], codes[t][2 * k + 1] = math.sin(angle), math.cos(angle)
    return codes


def slow_weights(gpo: GPO, length: int) -> Tensor:
    """The weights of one sample: its own position codes through the GRU, directions averaged, softmax at 0.1."""
    codes = torch.tensor(slow_codes(length, gpo.gru.input_size))
    forward, backward = gpo.gru(codes[None])[0][0].chunk(2, dim=1)
    return (gpo.linear((forward + backward) / 2)[:, 0] / 0.1).softmax(0)


def gradients(output: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a sum that weighs every entry of the output differently."""
    return torch.autograd.grad((output * random(*output.shape, seed=9)).sum(), inputs)


@given(batch=st.integers(1, 4), length=st.integers(1, 40), size=st.integers(1, 5), seed=st.integers(0, 99))
def test_sorted_sum_and_its_gradients_are_those_of_a_plain_sort(batch: int, length: int, size: int, seed: int) -> None:
    x, weights = random(batch, length, size, seed=seed).requires_grad_(), random(batch, length, seed=seed + 1)
    weights.requires_grad_()
    quick, plain = sorted_sum(x, weights), plain_sorted_sum(x, weights)
    torch.testing.assert_close(quick, plain)
    for found, expected in zip(gradients(quick, x, weights), gradients(plain, x, weights), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("length", [255, 256, 257, 300])
def test_sorted_sum_of_many_positions_is_that_of_a_plain_sort(length: int) -> None:
    x, weights = random(2, length, 3).requires_grad_(), random(2, length, seed=1)
    quick, plain = sorted_sum(x, weights), plain_sorted_sum(x, weights)
    torch.testing.assert_close(quick, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients(quick, x), gradients(plain, x))


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1.0, 1e30])
def test_sorted_sum_gives_back_the_very_values_whatever_their_size(scale: float) -> None:
    """One weight is 1, the others 0: what comes out is an entry, bit by bit."""
    x = (random(3, 36, 4) * scale).requires_grad_()
    for place in (0, 17, 35):
        weights = torch.zeros(3, 36)
        weights[:, place] = 1
        expected = x.sort(dim=1, descending=True).values[:, place]
        assert torch.equal(sorted_sum(x, weights), expected)
        assert torch.equal(sorted_sum(x.detach(), weights), expected)


def test_of_equal_values_each_gets_one_places_share_of_the_gradient() -> None:
    """With ties the order is free, but the shares of the tied places must go to the tied entries, each once."""
    x = torch.tensor([2.0, 1.0, 2.0, 0.0, -0.0, 2.0, -1.0, -1.0])[None, :, None].requires_grad_()
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]])
    pooled = sorted_sum(x, weights)
    torch.testing.assert_close(pooled, plain_sorted_sum(x, weights))
    (gradient,) = torch.autograd.grad(pooled.sum(), x)
    shares = gradient.flatten()
    torch.testing.assert_close(shares[[0, 2, 5]].sort().values, torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(shares[[3, 4]].sort().values, torch.tensor([0.5, 0.6]))
    torch.testing.assert_close(shares[[6, 7]].sort().values, torch.tensor([0.7, 0.8]))
    assert shares[1] == pytest.approx(0.4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_sorted_sum_keeps_other_precisions(dtype: torch.dtype) -> None:
    x, weights = random(2, 7, 3).to(dtype), random(2, 7).to(dtype)
    pooled = sorted_sum(x, weights)
    assert pooled.dtype == dtype
    torch.testing.assert_close(pooled, plain_sorted_sum(x, weights), rtol=2e-2, atol=2e-2)


def test_a_second_derivative_of_the_quick_sorted_sum_is_refused_rather_than_wrong() -> None:
    x, weights = random(2, 7, 3).requires_grad_(), random(2, 7).requires_grad_()
    (gradient,) = torch.autograd.grad(sorted_sum(x, weights).square().sum(), weights, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


def test_sorted_sum_changes_nothing_it_was_given() -> None:
    x, weights = random(2, 7, 3), random(2, 7)
    before = x.clone(), weights.clone()
    sorted_sum(x, weights)
    sorted_sum(x.requires_grad_(), weights).sum().backward()
    assert torch.equal(x, before[0])
    assert torch.equal(weights, before[1])


def test_position_codes_are_interleaved_sines_and_cosines() -> None:
    torch.testing.assert_close(position_codes(9, 32), torch.tensor(slow_codes(9, 32)), rtol=1e-5, atol=1e-5)


def test_gpo_weights_are_those_of_each_sample_alone() -> None:
    torch.manual_seed(0)
    gpo = GPO(8)
    lengths = torch.tensor([5, 1, 9, 5, 2, 9, 36])
    weights = gpo.weights(lengths)
    assert weights.shape == (7, 36)
    for row, length in zip(weights, lengths.tolist(), strict=True):
        torch.testing.assert_close(row[:length], slow_weights(gpo, length), rtol=1e-4, atol=1e-6)
        assert not row[length:].any()
        assert row.sum().item() == pytest.approx(1, abs=1e-6)


def test_gpo_trains_as_if_each_sample_were_pooled_alone() -> None:
    torch.manual_seed(0)
    gpo = GPO(8)
    x, lengths = random(5, 11, 4).requires_grad_(), torch.tensor([3, 11, 1, 3, 8])
    pooled = gpo(x, lengths)
    alone = torch.stack(
        [
            plain_sorted_sum(sample[None, :length], slow_weights(gpo, length)[None])[0]
            for sample, length in zip(x, lengths.tolist(), strict=True)
        ]
    )
    torch.testing.assert_close(pooled, alone, rtol=1e-4, atol=1e-6)
    for found, expected in zip(
        gradients(pooled, x, *gpo.parameters()), gradients(alone, x, *gpo.parameters()), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_gpo_does_not_look_behind_a_samples_length() -> None:
    gpo, x, lengths = GPO(8), random(3, 6, 4), torch.tensor([2, 4, 3])
    other = x.clone()
    for sample, length in enumerate(lengths.tolist()):
        other[sample, length:] = 1e6
    assert torch.equal(gpo(x, lengths), gpo(other, lengths))


def test_gpo_can_be_trained_after_it_has_scored() -> None:
    """What is kept between calls must not have been made for scoring only."""
    position_codes.cache_clear()
    gpo, x, lengths = GPO(8), random(2, 6, 4).requires_grad_(), torch.tensor([6, 4])
    with torch.inference_mode():
        scored = gpo(x, lengths)
    pooled = gpo(x, lengths)
    pooled.sum().backward()
    torch.testing.assert_close(pooled, scored)
    assert all(parameter.grad is not None for parameter in gpo.parameters())
