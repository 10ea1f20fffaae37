"""NAAF: what a word finds among the regions counts for a pair, and a word that finds nothing counts against it.

A word is matched as far as regions exceed a threshold, which is where the best regions of matched and of mismatched
words are told apart; it is adjusted in training from captions that rank their own image first.
"""

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from crcl.distributed import Part, current_part, gather
from crcl.matchers.base import Encoded
from crcl.matchers.encoders import WordEncoder, unit_regions, unit_words, xavier_linear
from crcl.matchers.kernels.attention import context_norms, to_regions
from crcl.matchers.kernels.tiles import in_tiles, products
from crcl.matchers.local.scan import Attentive, pool
from crcl.matchers.record import BuildContext, MatcherRecord

_EPS = 1e-8
_NOTHING = -1e4  # a logit whose weight is 0 in float32
_SMOOTH = 20.0
_NEIGHBOURS = 5.0
"""Inverse temperature of the words' attention to each other."""
_ENOUGH = 200
"""Words from which a batch adjusts the threshold."""
_NEW = 0.7
_STORED = 12
"""Numbers that the backward pass stores for each combination of image, region and word."""


class NAAF(nn.Module):
    """NAAF with a bidirectional GRU for text. Parameters are named as in the authors' checkpoints.

    One threshold holds for a whole batch, and is adjusted after it. In the authors' code each caption of a batch
    adjusts it for the next one, and all but the first begin at 0 again until 200 words are collected.
    """

    threshold: Tensor
    safe_threshold: Tensor

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
        self.img = nn.ModuleDict({"fc": xavier_linear(features, embedding)})
        self.txt = WordEncoder(vocabulary=vocabulary, word=word, embedding=embedding)
        self.register_buffer("threshold", torch.zeros(()))
        self.register_buffer("safe_threshold", torch.zeros(()))

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return unit_regions(self.img["fc"](regions), mask)

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return unit_words(self.txt, tokens, lengths)

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        threshold = (self.threshold if self.training else self.safe_threshold).clone()  # a recomputed tile has the same
        compare = partial(self._similarity, threshold=threshold)
        stored = _STORED * images.features.shape[1]
        sims = in_tiles(compare, images, texts, stored=stored, memory=self.memory)
        part = current_part()
        if self.training and len(images) == (len(texts) if part is None else part.whole):
            self._adjust(images, texts, sims.detach(), part)
        return sims

    def words(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """How far each word is found in each image, and how much it lacks there, at most 0 in training; 0 for padding.

        (images, captions, W) each; their sum, averaged over the words, is the similarity.
        """
        threshold = self.threshold if self.training else self.safe_threshold
        return self._words(images, texts, threshold=threshold)

    def lacking(self, images: Encoded, texts: Encoded) -> Tensor:
        """Which words find nothing in an image, so that they count against the pair. (images, captions, W) bool"""
        return self.words(images, texts)[1] < 0

    def _similarity(self, images: Encoded, texts: Encoded, *, threshold: Tensor) -> Tensor:
        found, lacking = self._words(images, texts, threshold=threshold)
        return pool(found + lacking, cast(Tensor, texts.mask), "mean", 1.0)

    def _words(self, images: Encoded, texts: Encoded, *, threshold: Tensor) -> tuple[Tensor, Tensor]:
        v, t = images.features, texts.features
        seen, real = cast(Tensor, images.mask), cast(Tensor, texts.mask)
        s = products(v, t)  # (images, R, captions, W)
        above = (s > threshold) & seen[:, :, None, None]
        attention = (self.smooth * s).masked_fill(~above, _NOTHING).softmax(1) * above
        clear = (attention * s).sum(1) / context_norms(attention, v).clamp(min=_EPS)
        usual = (to_regions(s, smooth=self.smooth, seen=seen) * s).sum(1)
        margin = s.masked_fill(~seen[:, :, None, None], -torch.inf).amax(1) - threshold  # (images, captions, W)
        if self.training:
            lacking = margin.clamp(max=0)
        else:  # neighbours decide whether a word is lacking
            near = (_NEIGHBOURS * (t @ t.mT)).masked_fill(~real[:, None], -torch.inf).softmax(2)
            votes = torch.einsum("cwu,icu->icw", near.float(), margin)
            lacking = margin * (votes < 0)
        return (clear + usual) * real, lacking * real

    @torch.no_grad()
    def _adjust(self, images: Encoded, texts: Encoded, sims: Tensor, part: Part | None) -> None:
        """Move both thresholds towards those of a batch, image i with text i; texts may be a part of it."""
        own = torch.arange(len(texts), device=sims.device) + (0 if part is None else part.start)
        right = sims.argmax(0) == own
        words = torch.stack(
            [
                (cast(Tensor, texts.mask) & right[:, None]).float(),
                _best_regions(images, texts, own),
                _best_regions(images, texts, sims.argmin(0)),
            ],
            dim=2,
        )
        told, matched, mismatched = gather(words, part).unbind(2)  # (captions, W) each, of the whole batch
        if told.sum() > _ENOUGH:
            found, safe = boundaries(matched[told > 0], mismatched[told > 0])
            self.threshold.lerp_(self.threshold if found is None else found, _NEW)
            self.safe_threshold.lerp_(safe, _NEW)


def _best_regions(images: Encoded, texts: Encoded, which: Tensor) -> Tensor:
    """Similarity of each word with its best region of the image given for its caption. (captions, W)"""
    v, seen = images.features[which].float(), cast(Tensor, images.mask)[which]
    return (texts.features.float() @ v.mT).masked_fill(~seen[:, None], -torch.inf).amax(2)


def boundaries(matched: Tensor, mismatched: Tensor, *, penalty: float = 2.0) -> tuple[Tensor | None, Tensor]:
    """Thresholds between the words' best similarities in matched and in mismatched images, for training and for use.

    The first is where two normal densities meet, the mismatched one weighted by 1 / `penalty`; None if they do not. The
    second is three deviations below the mean of the matched ones. Both are 0 where they would be outside of [0, 1].
    """
    (up, down), (wide, narrow) = zip(*((x.mean(), x.std()) for x in (matched, mismatched)), strict=True)
    a = wide.square() - narrow.square()
    b = 2 * (up * narrow.square() - down * wide.square())
    ratio = (narrow / (penalty * wide) + _EPS).log()
    c = (down * wide).square() - (up * narrow).square() + 2 * (wide * narrow).square() * ratio
    discriminant = b.square() - 4 * a * c
    meeting = (-b + discriminant.clamp(min=0).sqrt()) / (2 * a + 1e-10)
    return (_share(meeting) if discriminant > 0 else None), _share(up - 3 * wide)


def _share(value: Tensor) -> Tensor:
    return value if 0 <= value <= 1 else torch.zeros_like(value)


def _make(settings: Attentive, context: BuildContext) -> NAAF:
    return NAAF(
        features=context.sizes["features"],
        vocabulary=context.sizes["vocabulary"],
        embedding=settings.embedding,
        word=settings.word,
        smooth=settings.smooth or None,
        memory=context.memory,
    )


RECORD = MatcherRecord(
    name="naaf",
    summary="NAAF, words that find no region count against a pair",
    kind=NAAF,
    make=_make,
    settings=Attentive,
    similarity_vector=False,
    one_vector=False,
    compares_within=False,
    bounded=False,
)
