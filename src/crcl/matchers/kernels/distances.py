"""The most expensive part of SAF and SGR: a linear layer of the squared difference of each word and its context.

The differences form an array of (images, words of all captions, D), which fits in no cache. Here they are computed for
a small group of images at a time and used immediately; the backward pass recomputes them, for a tenth of the layer's
work, instead of storing them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from crcl.matchers.kernels.products import cpu_product_type

ROWS = 512
"""(image, word) rows at a time: 2 MiB of differences at D 1024."""


def squared_distances(attention: Tensor, regions: Tensor, words: Tensor, layer: nn.Linear) -> Tensor:
    """`layer((attention @ regions - words)²)` for `(images, words, R)`, `(images, R, D)`, `(words, D)`. Float32 on CPU.

    Within autocast on a CPU the differences and their squares have its number type, and sums over images are float32.
    """
    if attention.device.type != "cpu":  # on a GPU groups would be many small kernels
        return reference(attention, regions, words, layer.weight, layer.bias)
    rounded = None if cpu_product_type() == torch.float32 else cpu_product_type()
    parts = (part.float() for part in (attention, regions, words, layer.weight, layer.bias))
    with torch.autocast("cpu", enabled=False):  # it would cast the inputs of each product, but not its output
        out: Tensor = _SquaredDistances.apply(*parts, rounded)
    return out


def reference(attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`squared_distances` without groups."""
    difference = torch.baddbmm(words.expand(len(attention), -1, -1), attention, regions, beta=-1)
    return nn.functional.linear(difference.square(), weight, bias)


class _SquaredDistances(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        attention: Tensor,
        regions: Tensor,
        words: Tensor,
        weight: Tensor,
        bias: Tensor,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        ctx.save_for_backward(attention, regions, words, weight, bias)
        ctx.dtype = dtype
        attention, regions, words, weight = _rounded((attention, regions, words, weight), dtype)
        out = bias.new_empty(*attention.shape[:2], len(weight))
        for group, difference in _differences(attention, regions, words):
            rows, place = difference.square_().flatten(0, 1), out[group].flatten(0, 1)
            if dtype is None:
                torch.addmm(bias, rows, weight.T, out=place)
            else:
                torch.add(rows @ weight.T, bias, out=place)
        return out

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inputs = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives
            return *torch.autograd.grad(reference(*inputs), inputs, gradient, create_graph=True), None
        attention, regions, words, weight = _rounded(inputs[:4], ctx.dtype)
        bias = inputs[4]
        gradient = gradient.contiguous()
        (rounded,) = _rounded((gradient,), ctx.dtype)
        exact = ctx.dtype is None
        # a product in bfloat16 that is written to a transposed array is a hundred times slower
        to_attention = torch.empty_like(
            attention, memory_format=torch.preserve_format if exact else torch.contiguous_format
        )
        to_regions = torch.empty_like(regions)
        to_words, to_weight = (torch.zeros_like(part, dtype=bias.dtype) for part in (words, weight))
        size = _group(attention)
        squares, to_difference = (words.new_empty(size, *words.shape) for _ in range(2))
        for group, difference in _differences(attention, regions, words):
            above = rounded[group].flatten(0, 1)
            square = torch.mul(difference, difference, out=squares[: len(difference)])
            if exact:
                to_weight.addmm_(above.T, square.flatten(0, 1))
            else:
                to_weight.add_(above.T @ square.flatten(0, 1))
            down = to_difference[: len(difference)]
            torch.mm(above, weight, out=down.flatten(0, 1))
            down.mul_(difference)
            torch.bmm(down, regions[group].mT, out=to_attention[group])
            torch.bmm(attention[group].mT, down, out=to_regions[group])
            to_words.sub_(down.sum(0, dtype=bias.dtype))
        halves = (part.to(bias.dtype).mul_(2) for part in (to_attention, to_regions, to_words))
        return *halves, to_weight, gradient.sum((0, 1)), None


def _rounded(parts: tuple[Tensor, ...], dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    return parts if dtype is None else tuple(part.to(dtype) for part in parts)


def _differences(attention: Tensor, regions: Tensor, words: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Groups of images with the differences of their words, in a buffer that the next group overwrites."""
    size = _group(attention)
    buffer = words.new_empty(size, *words.shape)
    for start in range(0, len(attention), size):
        group = slice(start, start + size)
        part = buffer[: len(attention[group])]
        torch.baddbmm(words.expand_as(part), attention[group], regions[group], beta=-1, out=part)
        yield group, part


def _group(attention: Tensor) -> int:
    return min(max(ROWS // attention.shape[1], 1), len(attention))
