"""Dual: a small projection of an image's vector and one of a text's, compared by cosine. The matcher for embeddings."""

import math

from torch import Tensor, nn

from crcl.matchers.base import Encoded, inner_products, l2
from crcl.matchers.encoders import MetaNetwork, xavier_linear
from crcl.matchers.record import MadeFor, MatcherRecord, MatcherSettings


class Dual(nn.Module):
    """Precomputed vectors of both sides, each corrected by a residual of two layers.

    The residuals begin at 0: where both sides have one size, the untrained matcher is the plain cosine of the vectors,
    and `embedding` is the number of hidden units. Vectors of different sizes are first taken to size `embedding`. With
    `meta` hidden units MSCN's meta-network judges the two vectors instead of the cosine.
    """

    reads_vectors = True

    def __init__(self, *, features: int, text_features: int, embedding: int = 512, meta: int = 0) -> None:
        super().__init__()
        shared = features if features == text_features else embedding
        self.image = _Projection(features, embedding, shared)
        self.text = _Projection(text_features, embedding, shared)
        self.meta = MetaNetwork(shared, meta) if meta else None

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        real = mask[..., None]
        return Encoded(self.image(regions.mul(real).sum(1) / real.sum(1)))  # the mean, mostly of a single region

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(self.text(tokens[:, 0]))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        if self.meta is not None:
            return self.meta.of_products(images.features, texts.features).sigmoid()
        return inner_products(images.features, texts.features)


class _Projection(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.scale = math.sqrt(inputs)  # numbers of about 1, as the layers expect them
        self.skip = nn.Identity() if inputs == outputs else xavier_linear(inputs, outputs)
        last = nn.Linear(hidden, outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), last)

    def forward(self, vectors: Tensor) -> Tensor:
        """`(B, inputs)` -> unit vectors `(B, outputs)`."""
        x = l2(vectors) * self.scale
        x = self.skip(x) + self.layers(x)
        return nn.functional.normalize(x.float(), dim=-1, eps=1.0)  # a vector of zeros must not have a huge gradient


def _make(settings: MatcherSettings, made_for: MadeFor) -> Dual:
    return Dual(
        features=made_for.sizes["features"],
        text_features=made_for.sizes.get("text_features", 0),
        embedding=settings.embedding,
        meta=made_for.meta,
    )


RECORD = MatcherRecord(
    name="dual", summary="small projections of precomputed vectors of both sides", kind=Dual, make=_make
)
