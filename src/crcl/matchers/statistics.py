"""BatchNorm, dropout and padding of a whole batch, of which a process or a forward pass has some pairs only.

Several processes may share a batch (`distributed.dividing`), and a process may encode its pairs chunk by chunk: then
`measure` has the statistics of all chunks computed first, and `given` has every chunk use them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from torch.utils.checkpoint import checkpoint

from crcl import distributed
from crcl.distributed import Part, current_part, gather
from crcl.matchers.kernels.products import single

Chunk = TypeVar("Chunk")


@dataclass(frozen=True)
class Moments:
    """Mean and variance of all rows of a batch, `(C,)` each, and the number of these rows."""

    mean: Tensor
    variance: Tensor
    count: int


@dataclass(frozen=True)
class _Asked:
    """What a BatchNorm does with a chunk: use these moments, or else sum its rows, or their squares about `mean`."""

    moments: Moments | None = None
    mean: Tensor | None = None


class _Measured(Exception):  # noqa: N818 - raised to end a forward pass at its BatchNorm
    def __init__(self, total: Tensor, rows: int) -> None:
        super().__init__()
        self.total = total
        self.rows = rows


_asked: ContextVar[_Asked | None] = ContextVar("asked", default=None)


def beyond_the_rows() -> bool:
    """Whether the statistics of a batch are of more rows than a forward pass has."""
    return current_part() is not None or _asked.get() is not None


@contextmanager
def given(moments: Moments | None) -> Iterator[None]:
    """Have BatchNorm use these moments in training, within this context."""
    with _asking(None if moments is None else _Asked(moments)):
        yield


@contextmanager
def _asking(asked: _Asked | None) -> Iterator[None]:
    before = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(before)


def measure(module: nn.Module, forward: Callable[[Chunk], Any], chunks: Sequence[Chunk]) -> Moments | None:
    """The moments of all chunks of a batch at the module's BatchNorm, with gradients; None if it has none.

    The running statistics are updated. Nothing but sums is kept for the backward pass, which computes them again.
    """
    norms = [part for part in module.modules() if isinstance(part, BatchNorm)]
    if not norms or not module.training:
        return None
    if len(norms) > 1:
        raise TypeError(f"{type(module).__name__} has {len(norms)} BatchNorms, expected one at most")

    def total(chunk: Chunk, mean: Tensor | None) -> tuple[Tensor, int]:
        try:
            with _asking(_Asked(mean=mean)):
                forward(chunk)
        except _Measured as measured:
            return measured.total, measured.rows
        raise TypeError(f"{type(module).__name__} did not use its BatchNorm")

    def over_all(mean: Tensor | None) -> tuple[Tensor, int]:
        parts: list[Any] = [checkpoint(total, chunk, mean, use_reentrant=False) for chunk in chunks]
        found = torch.stack([part for part, _ in parts]).sum(0)
        return _everywhere(found), int(_everywhere(torch.tensor(sum(rows for _, rows in parts))))

    whole, count = over_all(None)
    mean = whole / count
    moments = Moments(mean, over_all(mean)[0] / count, count)
    _track(norms[0], moments)
    return moments


def normalise(x: Tensor, norm: nn.BatchNorm1d, *, pad: Tensor | None = None, padding: int = 0) -> Tensor:
    """BatchNorm in training of the rows x and `padding` further rows that all equal `pad`; returns the rows of x.

    If several processes share the batch, its statistics are those of the rows of all of them.
    """
    pad = x.new_zeros(x.shape[1]) if pad is None else pad
    asked = _asked.get()
    if asked is not None and asked.moments is None:
        raise _Measured(_sum(x, pad, padding, asked.mean), len(x) + padding)
    if asked is not None:
        moments = cast(Moments, asked.moments)
        return (x - moments.mean) * (norm.weight * torch.rsqrt(moments.variance + norm.eps)) + norm.bias
    count = int(_everywhere(torch.tensor(len(x) + padding)))
    mean = _everywhere(x.sum(0) + padding * pad) / count
    centred = x - mean
    variance = _everywhere(centred.square().sum(0) + padding * (pad - mean).square()) / count
    _track(norm, Moments(mean, variance, count))
    return centred * (norm.weight * torch.rsqrt(variance + norm.eps)) + norm.bias


def _sum(x: Tensor, pad: Tensor, padding: int, mean: Tensor | None) -> Tensor:
    if mean is None:
        return x.sum(0) + padding * pad
    return (x - mean).square().sum(0) + padding * (pad - mean).square()


def _everywhere(own: Tensor) -> Tensor:
    """The sum over the processes that share the batch."""
    return own if current_part() is None else distributed.total(own)


@torch.no_grad()
def _track(norm: nn.BatchNorm1d, moments: Moments) -> None:
    """Update the running statistics."""
    momentum, count = norm.momentum or 0.1, moments.count
    cast(Tensor, norm.running_mean).lerp_(moments.mean, momentum)
    cast(Tensor, norm.running_var).lerp_(moments.variance * (count / (count - 1)), momentum)
    cast(Tensor, norm.num_batches_tracked).add_(1)


def shared_moments(moments: Tensor, lengths: Tensor, part: Part) -> Tensor:
    """SAF's moments of all captions of a shared batch, longest first, from those of the own ones. (2, K)"""
    order = lengths.argsort(descending=True, stable=True)
    everyone = gather(moments[:, order.argsort()].T, part).T
    return everyone[:, gather(lengths, part).argsort(descending=True, stable=True)]


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm of `(B, C)` or `(B, C, L)` whose statistics are those of the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        x = single(x)
        if not self.training or not beyond_the_rows():
            return super().forward(x)
        if x.ndim == 2:
            return normalise(x.float(), self)
        rows = x.float().mT  # (B, L, C)
        return normalise(rows.flatten(0, 1), self).view_as(rows).mT


class Dropout(nn.Dropout):
    """Dropout that is the same for a pair, whichever of several processes has it."""

    def forward(self, x: Tensor) -> Tensor:
        part = current_part()
        if not self.training or part is None:
            return super().forward(x)
        noise = x.new_empty(part.whole, *x.shape[1:]).bernoulli_(1 - self.p).div_(1 - self.p)
        return x * noise[part.own]


class TransformerLayer(nn.TransformerEncoderLayer):
    """A Transformer layer, batch first, whose dropout is the same for a pair, whichever of several processes has it."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__(size, heads, hidden, batch_first=True)
        self.dropout, self.dropout1, self.dropout2 = (Dropout(self.dropout.p) for _ in range(3))

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        if not self.training:
            return super().forward(src, src_mask, src_key_padding_mask, is_causal)
        x = self.norm1(src + self.dropout1(self._attended(src, cast(Tensor, src_key_padding_mask))))
        return cast(Tensor, self.norm2(x + self.dropout2(self.linear2(self.dropout(self.linear1(x).relu())))))

    def _attended(self, x: Tensor, padding: Tensor) -> Tensor:
        """Self-attention written out: torch's draws dropout by itself, and what follows it in another order."""
        attention = self.self_attn
        every = linear(x, attention.in_proj_weight, attention.in_proj_bias)  # (B, L, 3D)
        q, k, v = every.unflatten(2, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, heads, L, D / heads)
        logits = (q @ k.mT * attention.head_dim**-0.5).masked_fill(padding[:, None, None], -torch.inf)
        weights = self.dropout(logits.softmax(3))
        return cast(Tensor, attention.out_proj((weights @ v).transpose(1, 2).flatten(2)))


def as_wide_as_the_batch(words: Tensor, tokens: Tensor) -> Tensor:
    """Words `(B, W, D)` padded to the width of `tokens`, which is that of the batch, if several processes share it."""
    return words if current_part() is None else pad(words, (0, 0, 0, tokens.shape[1] - words.shape[1]))
