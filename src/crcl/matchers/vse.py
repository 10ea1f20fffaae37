"""VSE∞: each side pooled to one vector by GPO, similarity by dot product (global matcher of the paper)."""

from torch import Tensor, nn

from crcl.matchers.base import Encoded, l2
from crcl.matchers.encoders import TwoLayers, WordEncoder, xavier_linear
from crcl.matchers.pooling import GPO


class VSE(nn.Module):
    """VSE∞ with a bidirectional GRU for text. Parameters are named as in the authors' checkpoints."""

    dropped_regions = "removed"

    def __init__(self, *, features: int, vocabulary: int, embedding: int = 1024, word: int = 300) -> None:
        super().__init__()
        self.img = nn.Module()
        self.img.fc = xavier_linear(features, embedding)
        self.img.mlp = TwoLayers(features, embedding // 2, embedding)
        self.img.gpool = GPO()
        self.txt = WordEncoder(vocabulary=vocabulary, word=word, embedding=embedding)
        self.txt.gpool = GPO()

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        x = self.img.fc(regions) + self.img.mlp(regions)  # (B, R, D)
        return Encoded(l2(self.img.gpool(x, mask.sum(1))))

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(l2(self.txt.gpool(self.txt(tokens, lengths), lengths)))

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.features @ texts.features.T  # (images, texts)
