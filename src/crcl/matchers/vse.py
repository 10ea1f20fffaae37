"""VSE∞: images and texts pooled to one vector each by GPO, compared by dot product (the paper's global matcher).

MV-VSE gives an image several such vectors, of which the one nearest to a text counts.
"""

import torch
from torch import Tensor, nn

from crcl.matchers.base import Encoded, inner_products, l2
from crcl.matchers.encoders import MetaNetwork, TwoLayers, WordEncoder, xavier_linear
from crcl.matchers.kernels.pooling import GPO
from crcl.matchers.kernels.products import single
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings
from crcl.settings import Count


class VSE(nn.Module):
    """VSE∞ with a bidirectional GRU for text. Parameters are named as in the authors' checkpoints.

    If `meta` is not 0, MSCN's meta-network with so many hidden units replaces the dot product.
    """

    def __init__(
        self, *, features: int, vocabulary: int, embedding: int = 1024, word: int = 300, meta: int = 0
    ) -> None:
        super().__init__()
        self.img = _Images(features, embedding)
        self.txt = _Texts(vocabulary=vocabulary, word=word, embedding=embedding)
        self.meta = MetaNetwork(embedding, meta) if meta else None

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded(self.img(regions, mask))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(self.txt(tokens, lengths))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        if self.meta is not None:
            return self.meta.score_products(images.features, texts.features).sigmoid()
        return inner_products(images.features, texts.features)


class MVVSE(nn.Module):
    """MV-VSE on VSE∞: several vectors for each image, one for each text; the similarity is the largest of theirs.

    Each view of an image has a VSE∞ encoder of its own. The authors' public code has plainer encoders, and a loss that
    sees the views one by one; here every method sees the largest similarity.
    """

    def __init__(
        self, *, features: int, vocabulary: int, embedding: int = 1024, word: int = 300, views: int = 2
    ) -> None:
        super().__init__()
        self.img = nn.ModuleList([_Images(features, embedding) for _ in range(views)])
        self.txt = _Texts(vocabulary=vocabulary, word=word, embedding=embedding)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded(torch.stack([view(regions, mask) for view in self.img], dim=1))  # (B, views, D)

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(self.txt(tokens, lengths))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        views = inner_products(images.features.flatten(0, 1), texts.features)
        return views.view(*images.features.shape[:2], -1).amax(1)


class _Images(nn.Module):
    def __init__(self, features: int, embedding: int) -> None:
        super().__init__()
        self.fc = xavier_linear(features, embedding)
        self.mlp = TwoLayers(features, embedding // 2, embedding)
        self.gpool = GPO()

    def forward(self, regions: Tensor, mask: Tensor) -> Tensor:
        rows = regions[mask]  # (real regions, F), without padding
        x = single(self.fc(rows)) + single(self.mlp(rows, padding=mask.numel() - len(rows)))
        padded = x.new_zeros(*mask.shape, x.shape[1]).masked_scatter(mask[..., None], x)
        return l2(self.gpool(padded, mask.sum(1)))


class _Texts(WordEncoder):
    def __init__(self, *, vocabulary: int, word: int, embedding: int) -> None:
        super().__init__(vocabulary=vocabulary, word=word, embedding=embedding)
        self.gpool = GPO()

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return l2(self.gpool(super().forward(tokens, lengths), lengths))


def _make(settings: MatcherSettings, context: BuildContext) -> VSE:
    return VSE(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.embedding,
        word=settings.word,
        meta=context.meta,
    )


RECORD = MatcherRecord(
    name="vse", summary="VSE∞, one vector for each image and text (the paper's global matcher)", kind=VSE, make=_make
)


class ViewsSettings(MatcherSettings):
    """Views of MV-VSE."""

    views: Count = 2
    """Vectors of each image (mvvse)."""


def _make_views(settings: ViewsSettings, context: BuildContext) -> MVVSE:
    return MVVSE(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.embedding,
        word=settings.word,
        views=settings.views,
    )


VIEWS = MatcherRecord(
    name="mvvse",
    summary="MV-VSE, VSE∞ with several vectors for each image",
    kind=MVVSE,
    make=_make_views,
    settings=ViewsSettings,
    similarity_vector=False,
    compares_within=False,
    one_vector=False,
)
