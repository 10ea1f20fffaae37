"""CHAN: each word is matched with the region that fits it best, and a caption with the pool of these maxima.

There is nothing to learn in the comparison itself, and it is the cheapest of the local ones: one matrix product and a
maximum. The gradient of a word goes to its region alone.
"""

import math
from typing import Literal, cast

import torch
from torch import Tensor, nn

from crcl.matchers.base import Encoded
from crcl.matchers.encoders import WordEncoder, unit_regions, unit_words, xavier_linear
from crcl.matchers.kernels.tiles import in_tiles, products
from crcl.matchers.local.scan import Pooled, pool
from crcl.matchers.record import BuildContext, MatcherRecord

_HEADS = 8
_SHARP = 10.0


class Settings(Pooled):
    """Encoder of CHAN's regions."""

    context: bool = True
    """Whether regions attend to each other before they are compared with words (chan)."""


class CHAN(nn.Module):
    """CHAN with a bidirectional GRU for text. Parameters are named as in the authors' checkpoints.

    Pooled by LogSumExp, similarities are those of the authors' code divided by `sharp`, so that they are cosines up to
    (ln words) / `sharp`; a margin has to be divided as well. Padded regions are no keys of the attention. `memory`
    limits intermediate results, in GiB, as in SCAN.
    """

    def __init__(
        self,
        *,
        features: int,
        vocabulary: int,
        embedding: int = 1024,
        word: int = 300,
        context: bool = True,
        pooling: Literal["lse", "mean", "max", "sum"] = "lse",
        sharp: float | None = None,
        memory: float = 4.0,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.sharp = _SHARP if sharp is None else sharp
        self.memory = memory
        self.img = _Regions(features, embedding, context)
        self.txt = WordEncoder(vocabulary=vocabulary, word=word, embedding=embedding)
        nn.init.xavier_uniform_(self.txt.embed.weight)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return unit_regions(self.img(regions, mask), mask)

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return unit_words(self.txt, tokens, lengths)

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        stored = 2 * images.features.shape[1]  # for a moment: the products and their gradient
        return in_tiles(self._similarity, images, texts, stored=stored, memory=self.memory)

    def best_regions(self, images: Encoded, texts: Encoded) -> Tensor:
        """The region that each word is matched with, by number; -1 for padding. (images, captions, W)"""
        best = _products(images, texts).argmax(1)
        best = best.masked_fill(best >= cast(Tensor, images.mask).sum(1)[:, None, None], 0)  # padding repeats the first
        return best.masked_fill(~cast(Tensor, texts.mask), -1)

    def _similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        s = _products(images, texts)
        best = s.max(1).values if torch.is_grad_enabled() else s.amax(1)  # which is faster, but stores the products
        return pool(best, cast(Tensor, texts.mask), self.pooling, self.sharp)


def _products(images: Encoded, texts: Encoded) -> Tensor:
    """Cosines of regions and words, in float32 since a temperature magnifies them. (images, R, captions, words)

    Padding repeats the first region of its image: so a maximum over regions needs no mask.
    """
    v, mask = images.features, cast(Tensor, images.mask)
    with torch.autocast(v.device.type, enabled=False):
        return products(torch.where(mask[..., None], v, v[:, :1]), texts.features)


class _Regions(nn.Module):
    def __init__(self, features: int, embedding: int, context: bool) -> None:
        super().__init__()
        self.fc = xavier_linear(features, embedding)
        self.feedforward = _Attention(embedding) if context else None

    def forward(self, regions: Tensor, mask: Tensor) -> Tensor:
        x = self.fc(regions)
        return x if self.feedforward is None else self.feedforward(x, mask)


class _Attention(nn.Module):
    """Residual self-attention with pre-norm, with 8 heads or as many as the size allows. `(B, R, D)` -> the same"""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(size)
        self.attn = nn.MultiheadAttention(size, math.gcd(_HEADS, size), batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.ln(x)
        return x + self.attn(normed, normed, normed, key_padding_mask=~mask, need_weights=False)[0]


def _make(settings: Settings, context: BuildContext) -> CHAN:
    return CHAN(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.embedding,
        word=settings.word,
        context=settings.context,
        pooling=settings.pooling,
        sharp=settings.sharp or None,
        memory=context.memory,
    )


RECORD = MatcherRecord(
    name="chan",
    summary="CHAN, each word matched with its best region",
    kind=CHAN,
    make=_make,
    settings=Settings,
    similarity_vector=False,
    one_vector=False,
    compares_within=False,
    bounded=False,
)
