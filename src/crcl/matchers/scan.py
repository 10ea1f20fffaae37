"""SCAN: stacked cross attention between words and regions, t2i and i2t, pooled by LogSumExp, mean, maximum or sum.

The context vectors c are never materialised: ⟨t, c⟩ is the attention-weighted sum of known similarities, and ‖c‖² is a
quadratic form in the Gram matrix of the regions (or words) attended to.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

from crcl.matchers.base import SMALLEST_SQUARE, Encoded, l2
from crcl.matchers.encoders import WordEncoder, xavier_linear
from crcl.matchers.kernels.tiles import ROWS, WORDS, caption_blocks, image_blocks
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings
from crcl.settings import NotNegative

_EPS = 1e-8
_STORED = 7
"""Numbers that the backward pass stores for each combination of image, region and word."""

Direction = Literal["t2i", "i2t"]
Pooling = Literal["lse", "mean", "max", "sum"]


class Settings(MatcherSettings):
    """Attention and pooling of SCAN."""

    direction: Direction = "t2i"
    """Words attend to regions (t2i), or regions to words (scan)."""
    pooling: Pooling = "lse"
    """How relevances become one similarity (scan)."""
    smooth: NotNegative = 0.0
    """Inverse temperature λ of the attention (scan); 0: 9 for t2i, 4 for i2t."""
    sharp: NotNegative = 0.0
    """Sharpness μ of the pooling lse (scan); 0: 6 for t2i, 5 for i2t."""


class SCAN(nn.Module):
    """SCAN; `smooth` is the attention's λ, `sharp` LogSumExp's μ. Parameters are named as in the authors' checkpoints.

    `memory` limits intermediate results, in GiB: a training step that would store more for its backward pass
    recomputes them there instead, block by block (gradient checkpointing).
    """

    def __init__(
        self,
        *,
        features: int,
        vocabulary: int,
        embedding: int = 1024,
        word: int = 300,
        direction: Direction = "t2i",
        pooling: Pooling = "lse",
        smooth: float | None = None,
        sharp: float | None = None,
        memory: float = 4.0,
    ) -> None:
        super().__init__()
        self.memory = memory
        self.direction = direction
        self.pooling = pooling
        self.smooth = smooth if smooth is not None else {"t2i": 9.0, "i2t": 4.0}[direction]
        self.sharp = sharp if sharp is not None else {"t2i": 6.0, "i2t": 5.0}[direction]
        self.img = nn.ModuleDict({"fc": xavier_linear(features, embedding)})
        self.txt = WordEncoder(vocabulary=vocabulary, word=word, embedding=embedding)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded(l2(self.img["fc"](regions)), mask)

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        words = l2(self.txt(tokens, lengths))  # (B, W, D), padding is 0
        return Encoded(words, torch.arange(words.shape[1], device=words.device) < lengths[:, None])

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        v, t, real = images.features, texts.features, cast(Tensor, texts.mask)
        if torch.is_grad_enabled():
            stored = 4 * _STORED * v.shape[1] * len(v) * real.numel()
            if stored <= self.memory * 2**30:
                return self._similarity(v, t, real)
            recomputed = partial(checkpoint, self._similarity, use_reentrant=False)
            return self._tiled(recomputed, v, t, real)
        return self._tiled(self._similarity, v, t, real)

    def _tiled(
        self, similarity: Callable[[Tensor, Tensor, Tensor], Tensor], v: Tensor, t: Tensor, real: Tensor
    ) -> Tensor:
        sizes = caption_blocks([t.shape[1]] * len(t), words=WORDS)
        columns = [
            torch.cat([similarity(v[part], words, mask) for part in image_blocks(len(v), mask.numel(), rows=ROWS)])
            for words, mask in zip(t.split(sizes), real.split(sizes), strict=True)
        ]
        return torch.cat(columns, dim=1)

    def _similarity(self, v: Tensor, t: Tensor, real: Tensor) -> Tensor:
        s = (
            (v.flatten(0, 1) @ t.flatten(0, 1).T).view(*v.shape[:2], *t.shape[:2]).float()
        )  # (images, R, captions, words)
        if self.direction == "t2i":
            relevance = words_relevance(s, v, t, smooth=self.smooth)  # (images, captions, words)
            return pool(relevance, real, self.pooling, self.sharp)
        relevance = regions_relevance(s, v, t, real, smooth=self.smooth)  # (images, captions, R)
        return pool(relevance, torch.ones_like(relevance[0], dtype=torch.bool), self.pooling, self.sharp)


def words_relevance(s: Tensor, v: Tensor, t: Tensor, *, smooth: float) -> Tensor:
    """Cosine of each word with its attention-weighted sum of regions. (images, captions, words)"""
    positive = leaky_relu(s, 0.1)
    scaled = positive * (smooth / (positive.norm(dim=3, keepdim=True) + _EPS))
    attention = scaled.softmax(1)
    inner = (attention * s).sum(1)
    rows = attention.flatten(2).mT  # (images, captions * words, R)
    squares = ((rows @ (v @ v.mT)) * rows).sum(2).view_as(inner)
    return inner / (squares.clamp(min=SMALLEST_SQUARE).sqrt() * t.norm(dim=2)).clamp(min=_EPS)


def regions_relevance(s: Tensor, v: Tensor, t: Tensor, real: Tensor, *, smooth: float) -> Tensor:
    """Cosine of each region with its attention-weighted sum of words. (images, captions, R)"""
    positive = leaky_relu(s, 0.1)
    scaled = positive * (smooth / (positive.norm(dim=1, keepdim=True) + _EPS))
    attention = scaled.masked_fill(~real, -torch.inf).softmax(3)  # (images, R, captions, words)
    inner = (attention * s).sum(3)
    rows = attention.permute(2, 0, 1, 3).flatten(1, 2)  # (captions, images * R, words)
    squares = ((rows @ (t @ t.mT)) * rows).sum(2).view(len(t), *v.shape[:2]).permute(1, 2, 0)
    cosine = inner / (squares.clamp(min=SMALLEST_SQUARE).sqrt() * v.norm(dim=2)[..., None]).clamp(min=_EPS)
    return cosine.mT  # (images, captions, R)


def pool(relevance: Tensor, real: Tensor, how: str, sharp: float) -> Tensor:
    """LogSumExp, mean, maximum or sum over the last dimension without padding. (images, captions)"""
    if how in ("mean", "sum"):
        total = (relevance * real).sum(2)
        return total / real.sum(1) if how == "mean" else total
    if how == "max":
        return relevance.masked_fill(~real, -torch.inf).amax(2)
    return (sharp * relevance).masked_fill(~real, -torch.inf).logsumexp(2) / sharp


def _make(settings: Settings, context: BuildContext) -> SCAN:
    return SCAN(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.embedding,
        word=settings.word,
        direction=settings.direction,
        pooling=settings.pooling,
        smooth=settings.smooth or None,
        sharp=settings.sharp or None,
        memory=context.memory,
    )


RECORD = MatcherRecord(
    name="scan",
    summary="SCAN, stacked attention between words and regions",
    kind=SCAN,
    make=_make,
    settings=Settings,
    dropped_regions="blanked",
    fixed_regions=True,
    similarity_vector=False,
    one_vector=False,
    compares_within=False,
    bounded=False,
)
