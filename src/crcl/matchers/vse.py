"""VSE∞: images and texts pooled to one vector each by GPO, compared by dot product (the paper's global matcher)."""

from torch import Tensor, nn

from crcl.matchers.base import Encoded, inner_products, l2
from crcl.matchers.encoders import MetaNetwork, TwoLayers, WordEncoder, xavier_linear
from crcl.matchers.kernels.pooling import GPO
from crcl.matchers.record import BuildContext, MatcherRecord, MatcherSettings


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


class _Images(nn.Module):
    def __init__(self, features: int, embedding: int) -> None:
        super().__init__()
        self.fc = xavier_linear(features, embedding)
        self.mlp = TwoLayers(features, embedding // 2, embedding)
        self.gpool = GPO()

    def forward(self, regions: Tensor, mask: Tensor) -> Tensor:
        rows = regions[mask]  # (real regions, F), without padding
        x = self.fc(rows) + self.mlp(rows, padding=mask.numel() - len(rows))
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
