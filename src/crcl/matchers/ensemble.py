"""Ensemble: several networks as one matcher, by the mean of their similarities."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from crcl.matchers.base import Encoded, Matcher, reads_vectors


class Ensemble(nn.Module):
    """Several networks that read the same features and words, as methods with two networks train them."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        if not members:
            raise ValueError("an ensemble needs at least one matcher")
        self.members = nn.ModuleList(members)
        self.reads_vectors = reads_vectors(members[0])

    @property
    def matchers(self) -> list[Matcher]:
        return [cast(Matcher, member) for member in self.members]

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded.from_members([matcher.encode_images(regions, mask) for matcher in self.matchers])

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded.from_members([matcher.encode_texts(tokens, lengths) for matcher in self.matchers])

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        parts = zip(self.matchers, images.members, texts.members, strict=True)
        return torch.stack([matcher.similarity(image, text) for matcher, image, text in parts]).mean(0)
