"""Dual: small projections of precomputed image and text vectors, compared by cosine. The matcher for embeddings."""

import math

from torch import Tensor, nn

from crcl.matchers.base import Encoded, inner_products, l2
from crcl.matchers.encoders import MetaNetwork, xavier_linear
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings


class Dual(nn.Module):
    """Cosine of precomputed image and text vectors, each corrected by a residual block of two layers.

    The residuals are initially 0: if both vectors have the same size, the untrained matcher is their plain cosine and
    `embedding` is the number of hidden units. Vectors of different sizes, or of two models (`aligned` is False), whose
    cosine means nothing, are first projected to size `embedding`. If `meta` is not 0, MSCN's meta-network with so many
    hidden units replaces the cosine.
    """

    reads_vectors = True

    def __init__(
        self, *, features: int, text_features: int, embedding: int = 512, meta: int = 0, aligned: bool = True
    ) -> None:
        super().__init__()
        same = features == text_features
        shared = features if same and aligned else embedding
        self.image, self.text = (
            _Projection(size, embedding, shared, project=size != shared or (same and not aligned))
            for size in (features, text_features)
        )
        self.meta = MetaNetwork(shared, meta) if meta else None

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        real = mask[..., None]
        return Encoded(self.image(regions.mul(real).sum(1) / real.sum(1)))  # the mean, usually of a single region

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(self.text(tokens[:, 0]))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        if self.meta is not None:
            return self.meta.score_products(images.features, texts.features).sigmoid()
        return inner_products(images.features, texts.features)


class _Projection(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int, *, project: bool) -> None:
        super().__init__()
        self.scale = math.sqrt(inputs)  # so that the inputs of the layers are of order 1
        self.skip = xavier_linear(inputs, outputs) if project else nn.Identity()
        last = nn.Linear(hidden, outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), last)

    def forward(self, vectors: Tensor) -> Tensor:
        """Unit vectors. `(B, inputs)` -> `(B, outputs)`"""
        x = l2(vectors) * self.scale
        x = self.skip(x) + self.layers(x)
        return nn.functional.normalize(x.float(), dim=-1, eps=1.0)  # a vector of zeros must not have a huge gradient


class DualSettings(MatcherSettings):
    """Settings of dual."""

    aligned: bool = True
    """Whether image and text vectors of one size are of one model, so that dual starts as their cosine."""


def _make(settings: DualSettings, context: BuildContext) -> Dual:
    return Dual(
        features=context.sizes["features"],
        text_features=context.sizes.get("text_features", 0),
        embedding=settings.embedding,
        meta=context.meta,
        aligned=settings.aligned,
    )


RECORD = MatcherRecord(
    name="dual",
    summary="small projections of precomputed image and text vectors",
    kind=Dual,
    make=_make,
    settings=DualSettings,
)
