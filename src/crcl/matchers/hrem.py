"""HREM: regions, and words, pooled to one vector by their two largest values and by a Transformer layer.

These are the encoders of HREM, which are all that it has when it is used. The graph among the pairs of a batch, which
its authors add in training, is a loss and not here.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from crcl.matchers.base import Encoded, inner_products, l2
from crcl.matchers.encoders import TwoLayers, WordEncoder, xavier_linear
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings
from crcl.matchers.statistics import TransformerLayer

_HEADS = 16
_PLAIN = 0.8
"""Weight of the two largest values; the rest is the Transformer's."""


class HREM(nn.Module):
    """HREM with a bidirectional GRU for text. Parameters are named as in the authors' checkpoints."""

    def __init__(self, *, features: int, vocabulary: int, embedding: int = 1024, word: int = 300) -> None:
        super().__init__()
        self.img = _Images(features, embedding)
        self.txt = _Texts(vocabulary=vocabulary, word=word, embedding=embedding)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded(self.img(regions, mask))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(self.txt(tokens, lengths))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return inner_products(images.features, texts.features)


class Aggregation(nn.Module):
    """Unit vectors of regions or words: 0.8 of the mean of the two largest values of each dimension, 0.2 of the mean
    of a Transformer layer. `(B, L, D)`, `(B, L)` -> `(B, D)`

    The layer has 16 heads, or as many as the size allows.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        heads = math.gcd(_HEADS, size)
        self.layers = nn.ModuleList([TransformerLayer(size, heads, size)])

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        real, count = mask[..., None], mask.sum(1, keepdim=True)
        filled = parts.float().masked_fill(~real, -torch.inf)
        largest, where = filled.max(1)
        second = filled.scatter(1, where[:, None], -torch.inf).amax(1)
        second = torch.where(count > 1, second, largest)
        attended = self.layers[0](parts, src_key_padding_mask=~mask).float().masked_fill(~real, 0)
        return l2(_PLAIN * (largest + second) / 2 + (1 - _PLAIN) * attended.sum(1) / count)


class _Images(nn.Module):
    def __init__(self, features: int, embedding: int) -> None:
        super().__init__()
        mlp = TwoLayers(features, embedding // 2, embedding)
        for layer in mlp.layers:
            nn.init.xavier_uniform_(cast(Tensor, layer.weight))
            nn.init.zeros_(cast(Tensor, layer.bias))
        self.fc = nn.ModuleDict({"fc": xavier_linear(features, embedding), "mlp": mlp})
        self.aggr = Aggregation(embedding)

    def forward(self, regions: Tensor, mask: Tensor) -> Tensor:
        rows = regions[mask]  # (real regions, F), without padding
        x = self.fc["fc"](rows) + self.fc["mlp"](rows, padding=mask.numel() - len(rows))
        return self.aggr(x.new_zeros(*mask.shape, x.shape[1]).masked_scatter(mask[..., None], x), mask)


class _Texts(WordEncoder):
    def __init__(self, *, vocabulary: int, word: int, embedding: int) -> None:
        super().__init__(vocabulary=vocabulary, word=word, embedding=embedding)
        self.aggr = Aggregation(embedding)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        words = super().forward(tokens, lengths)
        return self.aggr(words, torch.arange(words.shape[1], device=words.device) < lengths[:, None])


def _make(settings: MatcherSettings, context: BuildContext) -> HREM:
    return HREM(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.embedding,
        word=settings.word,
    )


RECORD = MatcherRecord(
    name="hrem",
    summary="HREM's encoders, one vector for each image and text",
    kind=HREM,
    make=_make,
    unchunked="the dropout of its Transformer layers would be drawn chunk by chunk",
    similarity_vector=False,
)
