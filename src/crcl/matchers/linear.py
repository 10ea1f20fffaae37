"""Linear: one linear map for pooled regions and one for words or vectors, compared by cosine.

Method relink fits it in closed form, in seconds and without a GPU (`methods.relink.linear`); other methods train it by
gradient steps like any other matcher.
"""

import torch
from torch import Tensor, nn

from crcl.matchers.base import Encoded, inner_products, l2
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings
from crcl.settings import Count

DIMENSIONS = 128


class Linear(nn.Module):
    """Cosine of linear maps of an image (mean and maximum of its regions) and of a bag of words.

    Bags of words are weighted by `word_weights`, the words' inverse document frequencies `(vocabulary,)`, and have
    length 1. An image of a single region is this region, scaled to length 1.
    """

    word_weights: Tensor

    def __init__(
        self,
        *,
        features: int,
        regions: int,
        vocabulary: int,
        embedding: int = DIMENSIONS,
        word_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.image = _LinearImages(features, regions, embedding)
        self.text = nn.Linear(vocabulary, embedding)
        weights = torch.ones(vocabulary) if word_weights is None else word_weights.float().clone()
        self.register_buffer("word_weights", weights)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded(self.image(regions, mask))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        weights = self.word_weights[tokens] * real
        same = tokens[:, :, None] == tokens[:, None, :]  # a word that occurs twice has twice the weight
        words = nn.functional.embedding(tokens, self.text.weight.T)  # (B, W, D)
        with torch.autocast(words.device.type, enabled=False):  # sums of squares and of a few words
            length = torch.einsum("bv,bvw,bw->b", weights, same.to(weights), weights).clamp_min(1e-12).sqrt()
            bag = torch.einsum("bw,bwd->bd", weights, words) / length[:, None]
        return Encoded(l2(bag + self.text.bias))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return inner_products(images.features, texts.features)


class LinearVectors(nn.Module):
    """Cosine of linear maps of precomputed image and text vectors."""

    reads_vectors = True

    def __init__(self, *, features: int, regions: int, text_features: int, embedding: int = DIMENSIONS) -> None:
        super().__init__()
        self.image = _LinearImages(features, regions, embedding)
        self.text = nn.Linear(text_features, embedding)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded(self.image(regions, mask))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(l2(self.text(l2(tokens[:, 0]))))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return inner_products(images.features, texts.features)


class _LinearImages(nn.Module):
    """Unit vectors of images."""

    def __init__(self, features: int, regions: int, embedding: int) -> None:
        super().__init__()
        self.pooled = regions > 1
        self.linear = nn.Linear(2 * features if self.pooled else features, embedding)

    def forward(self, regions: Tensor, mask: Tensor) -> Tensor:
        """`(B, R, F)` with a mask `(B, R)` -> `(B, D)`"""
        real = mask[..., None]
        mean = regions.mul(real).sum(1) / real.sum(1)
        if not self.pooled:
            return l2(self.linear(l2(mean)))
        return l2(self.linear(torch.cat([mean, regions.masked_fill(~real, -torch.inf).amax(1)], dim=1)))


class LinearSettings(MatcherSettings):
    """Settings of the linear matchers."""

    linear: Count = DIMENSIONS
    """Dimensions of the linear matchers, also of the one that method relink fits beside a network."""


def _make(settings: LinearSettings, context: BuildContext) -> Linear:
    return Linear(
        features=context.sizes["features"],
        regions=context.sizes["regions"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.linear,
        word_weights=None if context.word_weights is None else (context.word_weights - 1).clamp_min(0),
    )


def _make_vectors(settings: LinearSettings, context: BuildContext) -> LinearVectors:
    return LinearVectors(
        features=context.sizes["features"],
        regions=context.sizes["regions"],
        text_features=context.sizes.get("text_features", 0),
        embedding=settings.linear,
    )


RECORD = MatcherRecord(
    name="linear",
    summary="linear maps of pooled regions and bags of words; method relink fits them in closed form",
    kind=Linear,
    make=_make,
    settings=LinearSettings,
    similarity_vector=False,
    closed_form=True,
)
VECTORS = MatcherRecord(
    name="linear-vectors",
    summary="linear maps of precomputed image and text vectors; method relink fits them in closed form",
    kind=LinearVectors,
    make=_make_vectors,
    settings=LinearSettings,
    similarity_vector=False,
    closed_form=True,
)
