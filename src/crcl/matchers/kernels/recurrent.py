"""A bidirectional GRU over captions of different lengths, its two directions averaged.

A GPU uses cuDNN. On CPU `nn.GRU` computes and accumulates weight gradients time step by time step, once per direction;
here both directions run together, each weight gradient is one product over all time steps, and the input gates are
computed once per distinct word, of which a batch has far fewer than tokens. Neither can be differentiated twice;
`twice_differentiable()` switches to `nn.GRU` without cuDNN, which can. Shared word vectors are gathered by `embedding`
instead of an index, because its gradients are summed in the same order with any number of threads.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from crcl.matchers.kernels.products import cpu_product_type

_TWICE: ContextVar[bool] = ContextVar("twice_differentiable", default=False)


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Make forward passes in this context twice differentiable, by torch's own operations instead of faster kernels."""
    token = _TWICE.set(True)
    try:
        yield
    finally:
        _TWICE.reset(token)


def uses_cpu_kernels(x: Tensor) -> bool:
    """Whether to use the CPU kernels for this input: they need float32 and can be differentiated once."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or _TWICE.get():
        return False
    return cpu_product_type() in (torch.float32, torch.bfloat16)


def averaged_directions(rnn: nn.GRU, inputs: Tensor, which: Tensor, lengths: Tensor) -> Tensor:
    """Mean of both directions of a batch-first GRU, `(B, longest, D)`, 0 for padding.

    `inputs` are distinct vectors `(V, E)`, and `which` `(B, W)` the number of the vector at each position.
    """
    if uses_cpu_kernels(inputs):
        dtype = cpu_product_type()
        with torch.autocast("cpu", enabled=False):
            return _averaged_on_cpu(rnn, inputs, which, lengths, dtype)
    packed = pack_padded_sequence(
        embedding(which, inputs).float(), lengths.cpu(), batch_first=True, enforce_sorted=False
    )
    without_cudnn = torch.backends.cudnn.flags(enabled=False) if _TWICE.get() else nullcontext()
    # with autocast cuDNN would compute in float16, whatever the requested precision
    with torch.autocast(inputs.device.type, enabled=False), without_cudnn:
        both, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True)
    forward, backward = both.chunk(2, dim=2)
    return (forward + backward) / 2


@dataclass(frozen=True)
class _Packing:
    """Tokens sorted by time step, longest caption first, so that the captions active at a time step are a prefix."""

    places: Tensor
    """(tokens,) index of each token in a flat `(B * longest)` array"""
    mirrored: Tensor
    """(tokens,) packed index of the token of the same caption that is as far from its end as this one from its start"""
    sizes: list[int]
    """Number of captions active at each time step"""
    longest: int

    @classmethod
    def of(cls, lengths: Tensor) -> "_Packing":
        longest = int(lengths.max())
        ordered, captions = lengths.sort(descending=True, stable=True)
        running = torch.arange(longest)[:, None] < ordered  # (time, captions)
        sizes = running.sum(1)
        time, rank = running.nonzero(as_tuple=True)
        starts = sizes.cumsum(0) - sizes
        mirrored = starts[ordered[rank] - 1 - time] + rank
        return cls(captions[rank] * longest + time, mirrored, sizes.tolist(), longest)


def _averaged_on_cpu(rnn: nn.GRU, inputs: Tensor, which: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    packing = _Packing.of(lengths)
    tokens = which[:, : packing.longest].flatten()[packing.places]  # (tokens,)
    w_in, w_hidden, b_in, b_hidden = (
        torch.stack([getattr(rnn, name), getattr(rnn, f"{name}_reverse")])
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    )
    of_inputs = _plus_product(b_in[:, None], inputs.expand(2, -1, -1), w_in.mT, dtype)  # (2, V, 3D)
    gates = torch.stack(  # (2, tokens, 3D)
        [embedding(tokens, of_inputs[0]), embedding(tokens[packing.mirrored], of_inputs[1])]
    )
    hidden = _TwoGRUs.apply(gates, w_hidden, b_hidden, packing.sizes, dtype)  # (2, tokens, D)
    mean = (hidden[0] + hidden[1][packing.mirrored]) / 2
    flat = mean.new_zeros(len(which) * packing.longest, mean.shape[1])
    return flat.index_copy(0, packing.places, mean).view(len(which), packing.longest, -1)


def _plus_product(x: Tensor, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """`x + a @ b` in float32, the product of these rounded to `dtype`."""
    if dtype == torch.float32:
        return torch.baddbmm(x, a, b)
    return x + torch.bmm(a.to(dtype), b.to(dtype))


class _TwoGRUs(torch.autograd.Function):
    """Two GRUs at once, from the packed inputs' part of the gates r, z, n. `(2, tokens, 3D)` -> `(2, tokens, D)`

    Overwrites its first argument. States and gates are float32, whatever the `dtype` of products.
    """

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, w_hidden: Tensor, b_hidden: Tensor, sizes: list[int], dtype: torch.dtype
    ) -> Tensor:
        size = w_hidden.shape[2]
        w_hidden = w_hidden.to(dtype)
        hidden = torch.empty(*gates.shape[:2], size)
        inner = torch.empty_like(hidden)  # W_hn h + b_hn, which r gates
        before, start = hidden.new_zeros(2, sizes[0], size), 0
        for running in sizes:
            now = slice(start, start + running)
            before = before[:, :running]
            if start:
                recurrent = _plus_product(b_hidden[:, None], before, w_hidden.mT, dtype)
            else:  # the state before the first word is 0
                recurrent = b_hidden[:, None].expand(-1, running, -1)
            rz = gates[:, now, : 2 * size].add_(recurrent[..., : 2 * size]).sigmoid_()
            inner[:, now] = recurrent[..., 2 * size :]
            n = gates[:, now, 2 * size :].addcmul_(rz[..., :size], recurrent[..., 2 * size :]).tanh_()
            before = torch.lerp(n, before, rz[..., size:], out=hidden[:, now])
            start += running
        ctx.save_for_backward(w_hidden, gates, inner, hidden)
        ctx.sizes = sizes
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        w_hidden, gates, inner, hidden = ctx.saved_tensors
        sizes: list[int] = ctx.sizes
        size = hidden.shape[2]
        r, z, n = gates.split(size, dim=2)
        before = _previous(hidden, sizes)
        of_n = (1 - z) * (1 - n * n)
        of_z = (before - n) * z * (1 - z)
        of_r = inner * r * (1 - r)
        to_input = torch.empty_like(gates)
        to_hidden = torch.empty_like(gates)
        carried = grad.new_zeros(2, 0, size)
        end = grad.shape[1]
        for running in reversed(sizes):
            now = slice(end - running, end)
            d = grad[:, now].clone()
            d[:, : carried.shape[1]] += carried
            d_n = torch.mul(d, of_n[:, now], out=to_input[:, now, 2 * size :])
            torch.mul(d_n, of_r[:, now], out=to_hidden[:, now, :size])
            torch.mul(d, of_z[:, now], out=to_hidden[:, now, size : 2 * size])
            torch.mul(d_n, r[:, now], out=to_hidden[:, now, 2 * size :])
            end -= running
            if end:
                carried = _plus_product(d.mul_(z[:, now]), to_hidden[:, now], w_hidden, w_hidden.dtype)
        to_input[..., : 2 * size] = to_hidden[..., : 2 * size]
        first = sizes[0]  # before the first words the state is 0: no gradient of the weights
        above, states = (part[:, first:].to(w_hidden.dtype) for part in (to_hidden, before))
        return to_input, torch.bmm(above.mT, states).float(), to_hidden.sum(1), None, None


def _previous(hidden: Tensor, sizes: list[int]) -> Tensor:
    """Hidden state before each packed token, 0 at the start of a caption."""
    before = torch.zeros_like(hidden)
    start = sizes[0]
    for earlier, running in pairwise(sizes):
        before[:, start : start + running] = hidden[:, start - earlier : start - earlier + running]
        start += running
    return before
