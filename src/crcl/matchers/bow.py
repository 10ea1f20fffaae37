"""A small, fast matcher of bags of regions and bags of words, for sweeps, tests and first experiments."""

import torch
from torch import Tensor, nn

from crcl.matchers.base import Encoded, inner_products, l2
from crcl.matchers.encoders import MetaNetwork
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings
from crcl.matchers.statistics import BatchNorm


class Bow(nn.Module):
    """Cosine of an image vector (mean and maximum of its regions) and a text vector (idf-weighted mean of its words).

    `word_weights` are the words' inverse document frequencies `(vocabulary,)`; without them all words have the same
    weight. If `meta` is not 0, MSCN's meta-network with so many hidden units replaces the cosine.
    """

    word_weights: Tensor

    def __init__(
        self,
        *,
        features: int,
        vocabulary: int,
        embedding: int = 256,
        word: int = 300,
        word_weights: Tensor | None = None,
        meta: int = 0,
    ) -> None:
        super().__init__()
        self.image_linear = nn.Linear(2 * features, embedding)
        self.image_mlp = nn.Sequential(
            nn.Linear(2 * features, embedding), BatchNorm(embedding), nn.ReLU(), nn.Linear(embedding, embedding)
        )
        self.embed = nn.Embedding(vocabulary, word)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)  # small, so that training soon outweighs it
        self.text_linear = nn.Linear(word, embedding)
        self.meta = MetaNetwork(embedding, meta) if meta else None
        weights = torch.ones(vocabulary) if word_weights is None else word_weights.float().clone()
        self.register_buffer("word_weights", weights)  # a copy: networks that share memory could not be saved together

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        real = mask[..., None]
        mean = regions.mul(real).sum(1) / real.sum(1)
        maximum = regions.masked_fill(~real, -torch.inf).amax(1)
        x = torch.cat([mean, maximum], dim=1)  # (B, 2F)
        return Encoded(l2(self.image_linear(x) + self.image_mlp(x)))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        weights = self.word_weights[tokens] * real
        weights = weights / weights.sum(1, keepdim=True)
        return Encoded(l2(self.text_linear(torch.einsum("bw,bwd->bd", weights, self.embed(tokens)))))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        if self.meta is not None:
            return self.meta.score_products(images.features, texts.features).sigmoid()
        return inner_products(images.features, texts.features)


def _make(settings: MatcherSettings, context: BuildContext) -> Bow:
    return Bow(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.embedding,
        word=settings.word,
        word_weights=context.word_weights,
        meta=context.meta,
    )


RECORD = MatcherRecord(name="bow", summary="bags of regions and of words, small and fast", kind=Bow, make=_make)
