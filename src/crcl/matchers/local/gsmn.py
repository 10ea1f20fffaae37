"""GSMN: words and regions against their contexts block by block of the vectors, judged by a small network.

The published graph convolutions act on each node alone, whatever the graph: a node is given its own vector in the place
of its neighbours'. So nothing is lost by writing them as linear layers, and neither parses nor boxes are needed.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from crcl.matchers.base import SMALLEST_SQUARE, Encoded
from crcl.matchers.encoders import WordEncoder, unit_regions, unit_words, xavier_linear
from crcl.matchers.kernels.attention import to_regions
from crcl.matchers.kernels.tiles import in_tiles, products
from crcl.matchers.local.scan import Attentive, pool
from crcl.matchers.record import BuildContext, MatcherRecord

_EPS = 1e-8
_SMOOTH = 20.0
_BLOCKS = 16
_KERNELS = 8
_HIDDEN = 32


class GSMN(nn.Module):
    """GSMN on plain features, with a bidirectional GRU for text. Parameters are named as in the authors' checkpoints.

    Vectors are cut into 16 blocks, or as many as the size allows. The similarity is the sum of both directions, and has
    no bounds.
    """

    def __init__(
        self,
        *,
        features: int,
        vocabulary: int,
        embedding: int = 1024,
        word: int = 300,
        smooth: float | None = None,
        memory: float = 4.0,
    ) -> None:
        super().__init__()
        self.smooth = _SMOOTH if smooth is None else smooth
        self.memory = memory
        self.blocks = math.gcd(_BLOCKS, embedding)
        self.img = nn.ModuleDict({"fc": xavier_linear(features, embedding)})
        self.txt = WordEncoder(vocabulary=vocabulary, word=word, embedding=embedding)
        self.sim = nn.ModuleDict({"i2t": _RegionNodes(self.blocks), "t2i": _WordNodes(self.blocks)})

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return unit_regions(self.img["fc"](regions), mask)

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return unit_words(self.txt, tokens, lengths)

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        (_, regions, size), words = images.features.shape, texts.features.shape[1]
        stored = int(14 * regions + (1 + regions / words) * (3 * size + 4 * _HIDDEN))
        return in_tiles(self._similarity, images, texts, stored=stored, memory=self.memory, width=size)

    def _similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.direction(images, texts, "t2i") + self.direction(texts, images, "i2t").mT

    def direction(self, asked: Encoded, asking: Encoded, way: str) -> Tensor:
        """Similarity in one direction: words ask for regions (t2i), or regions for words (i2t). (asked, asking)"""
        keys, real = asked.features, cast(Tensor, asking.mask)
        attention = to_regions(products(keys, asking.features), smooth=self.smooth, seen=asked.mask)
        contexts = (attention.flatten(2).mT.to(keys.dtype) @ keys).float()  # (asked, asking * W, D)
        cosines = _blockwise(contexts.view(len(keys), *asking.features.shape), asking.features, self.blocks)
        with torch.autocast(keys.device.type, enabled=False):  # a temperature magnifies rounding errors
            return pool(self.sim[way](cosines, real), real, "mean", 1.0)


def _blockwise(contexts: Tensor, nodes: Tensor, blocks: int) -> Tensor:
    """Cosines of the blocks of nodes `(asking, W, D)` and of their contexts. (asked, asking, W, blocks)"""
    c, t = contexts.unflatten(-1, (blocks, -1)), nodes.unflatten(-1, (blocks, -1))
    lengths = (x.square().sum(-1).clamp(min=SMALLEST_SQUARE).sqrt() for x in (c, t))
    return (c * t).sum(-1) / math.prod(lengths).clamp(min=_EPS)


class _WordNodes(nn.Module):
    """Score of each word from its cosines. `(images, captions, W, blocks)` -> `(images, captions, W)`"""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.graph_convolution_3 = nn.ModuleDict({"conv_weights": _kernels(blocks, bias=True)})
        self.out_1, self.out_2 = _NormedLinear(_HIDDEN, _HIDDEN), _NormedLinear(_HIDDEN, 1)

    def forward(self, cosines: Tensor, real: Tensor) -> Tensor:
        kernels = cast(nn.ModuleList, self.graph_convolution_3["conv_weights"])
        hidden = linear(cosines, _weights(kernels), torch.cat([cast(Tensor, kernel.bias) for kernel in kernels]))
        return self.out_2(self.out_1(hidden).tanh()).squeeze(-1)


class _RegionNodes(nn.Module):
    """Score of each region from its cosines. `(captions, images, R, blocks)` -> `(captions, images, R)`"""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.graph_convolution_1 = _Kernels(blocks)
        self.out_1, self.out_2 = _NormedLinear(_HIDDEN, _HIDDEN), _NormedLinear(_HIDDEN, 1)

    def forward(self, cosines: Tensor, real: Tensor) -> Tensor:
        hidden = self.graph_convolution_1(cosines) * real.sum(1)[:, None, None]
        return self.out_2(self.out_1(hidden).tanh()).squeeze(-1)


class _Kernels(nn.Module):
    """Linear layers weighted by Gaussians of the distance and the angle of boxes, which are 0 for plain features."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.mean_rho = nn.Parameter(torch.rand(_KERNELS, 1))
        self.mean_theta = nn.Parameter((2 * torch.rand(_KERNELS, 1) - 1) * math.pi)
        self.precision_rho = nn.Parameter(torch.rand(_KERNELS, 1))
        self.precision_theta = nn.Parameter(torch.rand(_KERNELS, 1))
        self.conv_weights = _kernels(blocks, bias=False)

    def forward(self, cosines: Tensor) -> Tensor:
        distance = self.mean_rho.square() / (1e-14 + self.precision_rho.square())
        turn = self.mean_theta.abs()
        angle = torch.minimum(turn, (2 * math.pi - turn).abs()).square() / (1e-14 + self.precision_theta.square())
        shares = (-0.5 * (distance + angle)).softmax(0)  # (kernels, 1)
        scales = shares.expand(-1, _HIDDEN // _KERNELS).flatten()
        return linear(cosines, _weights(self.conv_weights)) * scales


class _NormedLinear(nn.Module):
    """A linear layer with direction and length of its weights apart (weight normalisation)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        layer = nn.Linear(inputs, outputs)
        self.bias, self.weight_v = layer.bias, layer.weight
        self.weight_g = nn.Parameter(layer.weight.detach().norm(dim=1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight_v * (self.weight_g / self.weight_v.norm(dim=1, keepdim=True)), self.bias)


def _kernels(blocks: int, *, bias: bool) -> nn.ModuleList:
    return nn.ModuleList([nn.Linear(blocks, _HIDDEN // _KERNELS, bias=bias) for _ in range(_KERNELS)])


def _weights(kernels: nn.ModuleList) -> Tensor:
    return torch.cat([cast(Tensor, kernel.weight) for kernel in kernels])  # (hidden, blocks)


def _make(settings: Attentive, context: BuildContext) -> GSMN:
    return GSMN(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.embedding,
        word=settings.word,
        smooth=settings.smooth or None,
        memory=context.memory,
    )


RECORD = MatcherRecord(
    name="gsmn",
    summary="GSMN on plain features, blockwise cosines judged by a small network",
    kind=GSMN,
    make=_make,
    settings=Attentive,
    similarity_vector=False,
    one_vector=False,
    compares_within=False,
    bounded=False,
)
