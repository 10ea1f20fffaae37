"""Generalised pooling (GPO): sort each dimension over the positions, then take a learned weighted sum.

The weights depend on the number of positions alone, so they are computed once per distinct length, not per sample.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding

from crcl.matchers.kernels.products import single
from crcl.matchers.kernels.recurrent import averaged_directions, uses_cpu_kernels

_TEMPERATURE = 0.1
PADDING_VALUE = -10000.0  # sorted last, weighted 0


class GPO(nn.Module):
    """Pooling by sorted positions, `(B, L, D)` and lengths `(B,)` -> `(B, D)`; `size` is that of the position codes."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.gru = nn.GRU(size, size, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(size, 1, bias=False)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        longest = int(lengths.max())
        positions = torch.arange(longest, device=x.device)
        x = single(x)[:, :longest].masked_fill((positions >= lengths[:, None])[..., None], PADDING_VALUE)
        with torch.autocast(x.device.type, enabled=False):  # a low temperature magnifies rounding errors
            weights = self.weights(lengths)
        return sorted_sum(x, weights.to(x.dtype))

    def weights(self, lengths: Tensor) -> Tensor:
        """Weight of each sorted position, for samples of these lengths. (B, longest), 0 beyond a sample's length"""
        distinct, which = lengths.unique(return_inverse=True)
        codes = position_codes(int(distinct[-1]), self.gru.input_size).to(lengths.device, self.linear.weight.dtype)
        same = torch.arange(len(codes), device=codes.device).expand(len(distinct), -1)
        hidden = averaged_directions(self.gru, codes, same, distinct)  # (distinct, longest, size)
        scores = self.linear(hidden).float().squeeze(2)
        positions = torch.arange(codes.shape[0], device=lengths.device)
        scores = scores.masked_fill(positions >= distinct[:, None], PADDING_VALUE)
        return embedding(which, (scores / _TEMPERATURE).softmax(1))


@lru_cache(maxsize=8)
def position_codes(length: int, size: int) -> Tensor:
    """Sine and cosine codes of positions 0, 1, …, interleaved. (length, size)"""
    with torch.inference_mode(False):  # codes cached during evaluation are used in training too
        frequencies = torch.exp(torch.arange(0, size, 2) * (-math.log(10000.0) / size))
        angles = torch.arange(length)[:, None] * frequencies
        return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


def sorted_sum(x: Tensor, weights: Tensor) -> Tensor:
    """Sort `(B, L, D)` over L in descending order, each dimension on its own, and sum with weights `(B, L)`. (B, D)"""
    if uses_cpu_kernels(x) and x.shape[1] <= _INDEX_MASK + 1:
        with torch.autocast("cpu", enabled=False):
            return _SortedSum.apply(x, weights)
    return torch.einsum("bld,bl->bd", x.sort(dim=1, descending=True).values, weights)


_INDEX_MASK = 0xFF


class _SortedSum(torch.autograd.Function):
    """`sorted_sum` on CPU, where `torch.sort` takes longer than the matrix products around it.

    Sorts by a sorting network of elementwise maxima and minima of whole arrays. The gradient needs the original
    position of each value: a float32 converted to float64 leaves 29 bits of its mantissa unused, which hold it.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weights: Tensor) -> Tensor:
        if any(ctx.needs_input_grad):  # type: ignore[attr-defined]
            tagged = x.transpose(0, 1).contiguous().double()  # (L, B, D)
            tagged.view(torch.int64).bitwise_or_(torch.arange(x.shape[1])[:, None, None])
            keys = _network_sort(tagged)
            values = keys.float()  # the tag is far below half a unit in the last place: rounding removes it
            origins = keys.view(torch.int64).bitwise_and_(_INDEX_MASK)
            ctx.save_for_backward(values, origins, weights)
        else:
            values = _network_sort(x.transpose(0, 1).clone(memory_format=torch.contiguous_format))
        return torch.bmm(weights[:, None], values).squeeze(1)

    @staticmethod
    @once_differentiable  # the sorted values are saved without their history
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
        values, origins, weights = ctx.saved_tensors  # type: ignore[attr-defined]
        spread = weights[..., None] * grad[:, None]  # (B, L, D), in sorted order
        grad_x = torch.empty_like(spread).scatter_(1, origins, spread)
        return grad_x, torch.bmm(values, grad[..., None]).squeeze(2)


def _network_sort(rows: Tensor) -> Tensor:
    """Sort `(L, B, D)` over L in descending order, overwriting `rows`. (B, L, D)"""
    values = list(rows.unbind(0))
    spare = torch.empty_like(values[0])
    for high, low in _comparators(len(values)):
        torch.minimum(values[high], values[low], out=spare)
        torch.maximum(values[high], values[low], out=values[high])
        values[low], spare = spare, values[low]
    return torch.stack(values, dim=1)


@lru_cache(maxsize=512)
def _comparators(n: int) -> tuple[tuple[int, int], ...]:
    """Batcher's odd-even merge sorting network for n values."""
    pairs = []
    p = 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(min(k, n - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    return tuple(pairs)
