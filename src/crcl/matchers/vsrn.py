"""VSRN: regions exchange what they know in four steps of a graph, and a GRU reads them in their order.

Images and texts become one vector each, compared by dot product. The caption decoder that the authors train beside it
is left out: it would learn mismatched captions by heart.
"""

from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d

from crcl.matchers.base import SMALLEST_SQUARE, Encoded, inner_products, l2
from crcl.matchers.encoders import last_state, xavier_linear
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings
from crcl.matchers.statistics import BatchNorm

_STEPS = 4
Form = Literal["regions", "f30k", "coco"]


class Settings(MatcherSettings):
    """Normalisation of VSRN."""

    form: Form = "regions"
    """Scale each region to length 1 before and after the graph, or follow the published code for a data set (vsrn)."""


class VSRN(nn.Module):
    """VSRN with a GRU for text. Parameters are named as in the authors' checkpoints.

    In the authors' code normalisation scales each dimension across the regions of an image instead of each region, and
    the data set decides where: before and after the graph (`form="coco"`), or after it alone, with a batch norm of the
    image vectors (`form="f30k"`). By default each region has length 1 before and after the graph, as was meant.
    """

    def __init__(
        self, *, features: int, vocabulary: int, embedding: int = 2048, word: int = 300, form: Form = "regions"
    ) -> None:
        super().__init__()
        self.img = _Images(features, embedding, form)
        self.txt = _Texts(vocabulary=vocabulary, word=word, embedding=embedding)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded(self.img(regions, mask))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(self.txt(tokens, lengths))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return inner_products(images.features, texts.features)


class _Images(nn.Module):
    def __init__(self, features: int, size: int, form: Form) -> None:
        super().__init__()
        self.form = form
        self.fc = xavier_linear(features, size)
        for number in range(1, _STEPS + 1):
            self.add_module(f"Rs_GCN_{number}", _Step(size))
        self.img_rnn = nn.GRU(size, size, batch_first=True)
        self.bn = BatchNorm(size) if form == "f30k" else None

    def forward(self, regions: Tensor, mask: Tensor) -> Tensor:
        vector = last_state(self.img_rnn, self.reason(regions, mask), mask.sum(1))
        return l2(vector if self.bn is None else self.bn(vector))

    def reason(self, regions: Tensor, mask: Tensor) -> Tensor:
        """Regions after the graph, padding is 0. (B, R, D)"""
        x = self.fc(regions).float() * mask[..., None]
        if self.form != "f30k":
            x = self._normalised(x)
        for number in range(1, _STEPS + 1):
            x = self.get_submodule(f"Rs_GCN_{number}")(x, mask)
        return self._normalised(x)

    def _normalised(self, x: Tensor) -> Tensor:
        if self.form == "regions":
            return l2(x)
        return x / x.square().sum(1, keepdim=True).clamp(min=SMALLEST_SQUARE).sqrt()


class _Step(nn.Module):
    """One step of the graph: x + BN(W(A g(x))) with A = θ(x) φ(x)ᵀ / regions. `(B, R, D)` -> the same"""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.g, self.theta, self.phi = (_Pointwise(size) for _ in range(3))
        norm = BatchNorm(size)
        nn.init.zeros_(norm.weight)  # begins without reasoning
        self.W = nn.Sequential(_Pointwise(size), norm)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        keys = self.phi(x) * (mask / mask.sum(1, keepdim=True))[..., None]
        message = self.W[0](self.theta(x) @ keys.mT @ self.g(x))  # (B, R, D)
        normed = self.W[1](message[mask].float())  # real regions only
        return x + torch.zeros_like(x).masked_scatter(mask[..., None], normed)


class _Pointwise(nn.Module):
    """A linear layer stored as the convolution of width 1 that it is in the authors' code."""

    def __init__(self, size: int) -> None:
        super().__init__()
        as_published = nn.Conv1d(size, size, 1)
        self.weight, self.bias = as_published.weight, cast(nn.Parameter, as_published.bias)

    def forward(self, x: Tensor) -> Tensor:
        return conv1d(x.mT, self.weight, self.bias).mT


class _Texts(nn.Module):
    def __init__(self, *, vocabulary: int, word: int, embedding: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, word)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.rnn = nn.GRU(word, embedding, batch_first=True)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return l2(last_state(self.rnn, self.embed(tokens), lengths))


def _make(settings: Settings, context: BuildContext) -> VSRN:
    return VSRN(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.embedding,
        word=settings.word,
        form=settings.form,
    )


RECORD = MatcherRecord(
    name="vsrn",
    summary="VSRN, reasoning among regions, one vector for each image and text",
    kind=VSRN,
    make=_make,
    settings=Settings,
    similarity_vector=False,
    unchunked="each step among its regions is normalised by statistics of the whole batch, which follow one another",
)
