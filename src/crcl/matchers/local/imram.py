"""IMRAM: attention in several steps, each with the queries that a memory has changed.

What a memory reads of a context is an attention-weighted sum of regions that were projected once, so that the second
step costs little; from the third on a dense layer is applied to every (image, word). Regions that ask for words are
words that ask for regions with images and texts exchanged.
"""

from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from crcl.matchers.base import Encoded
from crcl.matchers.encoders import WordEncoder, unit_regions, unit_words, xavier_linear
from crcl.matchers.kernels.attention import context_norms, to_regions
from crcl.matchers.kernels.tiles import in_tiles, products
from crcl.matchers.local.scan import Attentive, pool
from crcl.matchers.record import BuildContext, MatcherRecord
from crcl.settings import Count

_EPS = 1e-8
_SMOOTH = 9.0
Queries = Literal["words", "regions", "both"]


class Settings(Attentive):
    """Steps of IMRAM."""

    queries: Queries = "both"
    """Whether words ask for regions, regions for words, or both (imram)."""
    steps: Count = 2
    """Steps of attention (imram); a third one costs 25 times as much as the first two."""


class IMRAM(nn.Module):
    """IMRAM with a bidirectional GRU for text. Parameters are named as in the authors' checkpoints.

    Similarities are the mean over steps and directions, so that they are within [-1, 1]; in the authors' code they are
    the sum, and a margin has to be divided as well. Both directions have weights, whichever ask.
    """

    def __init__(
        self,
        *,
        features: int,
        vocabulary: int,
        embedding: int = 1024,
        word: int = 300,
        queries: Queries = "both",
        steps: int = 2,
        smooth: float | None = None,
        memory: float = 4.0,
    ) -> None:
        super().__init__()
        self.queries, self.steps, self.memory = queries, steps, memory
        self.smooth = _SMOOTH if smooth is None else smooth
        self.img = nn.ModuleDict({"fc_local": xavier_linear(features, embedding)})
        self.txt = WordEncoder(vocabulary=vocabulary, word=word, embedding=embedding)
        names = [f"{kind}_{way}" for way in ("t2i", "i2t") for kind in ("linear", "gate")]
        self.sim = nn.ModuleDict({name: nn.Linear(2 * embedding, embedding) for name in names})

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return unit_regions(self.img["fc_local"](regions), mask)

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return unit_words(self.txt, tokens, lengths)

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        (_, regions, size), words = images.features.shape, texts.features.shape[1]
        rows = (self.queries != "regions") + (self.queries != "words") * regions / words
        stored = int(7 * regions * self.steps + rows * 8 * size * (self.steps - 1))
        return in_tiles(self._similarity, images, texts, stored=stored, memory=self.memory)

    def _similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        found = []
        if self.queries != "regions":
            found.append(self.by_step(images, texts, "t2i"))
        if self.queries != "words":
            found.append(self.by_step(texts, images, "i2t").mT)
        return torch.stack(found).mean((0, 1))

    def by_step(self, asked: Encoded, asking: Encoded, way: str) -> Tensor:
        """Similarity in each step of what asks, words for instance, with what is asked. (steps, asked, asking)"""
        keys, queries, real = asked.features, asking.features, cast(Tensor, asking.mask)
        known = products(keys, queries)  # (asked, R, asking, W)
        s, lengths, found = known, queries.norm(dim=2), []
        memory = _Memory(self.sim[f"linear_{way}"], self.sim[f"gate_{way}"], keys, queries)
        for step in range(self.steps):
            attention = to_regions(s, smooth=self.smooth, seen=asked.mask)
            inner = (attention * known).sum(1)  # with the original queries, as in the authors' code
            cosines = inner / (context_norms(attention, keys) * lengths).clamp(min=_EPS)
            found.append(pool(cosines, real, "mean", 1.0))
            if step + 1 < self.steps:
                changed = memory.update(attention)  # (asked, asking * W, D)
                s = (keys @ changed.mT).float().view_as(known) * real
        return torch.stack(found)


class _Memory:
    """The queries of all pairs, which differ from image to image once they have read a context."""

    def __init__(self, layer: nn.Module, gate: nn.Module, keys: Tensor, queries: Tensor) -> None:
        both = cast(list[nn.Linear], [layer, gate])
        size = queries.shape[2]
        self.of_query = torch.cat([one.weight[:, :size] for one in both])  # (2D, D)
        of_context = torch.cat([one.weight[:, size:] for one in both])
        self.bias = torch.cat([one.bias for one in both])
        self.projected = linear(keys, of_context)  # (asked, R, 2D)
        self.queries = queries.flatten(0, 1)  # (asking * W, D), then (asked, asking * W, D)

    def update(self, attention: Tensor) -> Tensor:
        """The queries after they have read the contexts of this attention. (asked, asking * W, D)"""
        contexts = attention.flatten(2).mT.to(self.projected.dtype) @ self.projected  # (asked, asking * W, 2D)
        new, gate = (contexts + linear(self.queries, self.of_query, self.bias)).chunk(2, dim=2)
        self.queries = torch.lerp(new.tanh().float(), self.queries.expand_as(new), gate.sigmoid().float())
        return self.queries


def _make(settings: Settings, context: BuildContext) -> IMRAM:
    return IMRAM(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.embedding,
        word=settings.word,
        queries=settings.queries,
        steps=settings.steps,
        smooth=settings.smooth or None,
        memory=context.memory,
    )


RECORD = MatcherRecord(
    name="imram",
    summary="IMRAM, attention in several steps with a memory",
    kind=IMRAM,
    make=_make,
    settings=Settings,
    similarity_vector=False,
    one_vector=False,
    compares_within=False,
)
