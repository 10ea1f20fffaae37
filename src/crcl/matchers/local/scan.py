"""SCAN: stacked cross attention between words and regions, t2i and i2t, pooled by LogSumExp, mean, maximum or sum.

The context vectors c are never materialised: ⟨t, c⟩ is the attention-weighted sum of known similarities, and ‖c‖² is a
quadratic form in the Gram matrix of the regions (or words) attended to.
"""

from typing import Literal, cast

import torch
from torch import Tensor, nn

from crcl.matchers.base import SMALLEST_SQUARE, Encoded, l2
from crcl.matchers.encoders import WordEncoder, unit_words, xavier_linear
from crcl.matchers.kernels.attention import context_norms, to_regions, to_words
from crcl.matchers.kernels.tiles import in_tiles, products
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings
from crcl.settings import NotNegative

_EPS = 1e-8
_STORED = 7
"""Numbers that the backward pass stores for each combination of image, region and word."""

Direction = Literal["t2i", "i2t"]
Pooling = Literal["lse", "mean", "max", "sum"]


class Attentive(MatcherSettings):
    """Attention of words to regions or of regions to words."""

    smooth: NotNegative = 0.0
    """Inverse temperature λ of the attention; 0: 9 for scan t2i and imram, 4 for scan i2t, 20 for naaf and gsmn."""


class Pooled(MatcherSettings):
    """How the relevances of words or regions become one similarity, for SCAN and CHAN."""

    pooling: Pooling = "lse"
    """How relevances become one similarity (scan and chan)."""
    sharp: NotNegative = 0.0
    """Sharpness μ of the pooling lse (scan and chan); 0: 6 for scan t2i, 5 for scan i2t, 10 for chan."""


class Settings(Attentive, Pooled):
    """Direction of SCAN."""

    direction: Direction = "t2i"
    """Words attend to regions (t2i), or regions to words (scan)."""


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
        return unit_words(self.txt, tokens, lengths)

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        stored = _STORED * images.features.shape[1]
        return in_tiles(self._similarity, images, texts, stored=stored, memory=self.memory)

    def _similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        v, t, real = images.features, texts.features, cast(Tensor, texts.mask)
        s = products(v, t)  # (images, R, captions, words)
        if self.direction == "t2i":
            relevance = words_relevance(s, v, t, smooth=self.smooth)  # (images, captions, words)
            return pool(relevance, real, self.pooling, self.sharp)
        relevance = regions_relevance(s, v, t, real, smooth=self.smooth)  # (images, captions, R)
        return pool(relevance, torch.ones_like(relevance[0], dtype=torch.bool), self.pooling, self.sharp)


def words_relevance(s: Tensor, v: Tensor, t: Tensor, *, smooth: float) -> Tensor:
    """Cosine of each word with its attention-weighted sum of regions. (images, captions, words)"""
    attention = to_regions(s, smooth=smooth)
    inner = (attention * s).sum(1)
    return inner / (context_norms(attention, v) * t.norm(dim=2)).clamp(min=_EPS)


def regions_relevance(s: Tensor, v: Tensor, t: Tensor, real: Tensor, *, smooth: float) -> Tensor:
    """Cosine of each region with its attention-weighted sum of words. (images, captions, R)"""
    attention = to_words(s, real, smooth=smooth)  # (images, R, captions, words)
    inner = (attention * s).sum(3)
    rows = attention.permute(2, 0, 1, 3).flatten(1, 2)  # (captions, images * R, words)
    with torch.autocast(v.device.type, enabled=False):
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
