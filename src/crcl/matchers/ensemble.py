"""Ensemble: several networks as one matcher, by the mean of their similarities."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from crcl.matchers.base import Encoded, Matcher, reads_vectors

SHARES = "shares"
"""Name of the shares among an ensemble's weights."""


class Ensemble(nn.Module):
    """Several networks that read the same features and words, as one matcher: the mean of their similarities.

    With `shares` `(members,)`, which add up to 1, the mean is weighted by these, and they are saved with the weights.
    """

    shares: Tensor | None

    def __init__(self, members: Sequence[nn.Module], *, shares: Tensor | None = None) -> None:
        super().__init__()
        if not members:
            raise ValueError("an ensemble needs at least one matcher")
        self.members = nn.ModuleList(members)
        self.register_buffer(SHARES, shares)
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
        each = torch.stack([matcher.similarity(image, text) for matcher, image, text in parts])
        return each.mean(0) if self.shares is None else (each * self.shares[:, None, None]).sum(0)


def shares_of(matcher: Matcher) -> list[float]:
    """How much the similarities of each network of a matcher count: equal parts, unless the ensemble has `shares`."""
    if not isinstance(matcher, Ensemble):
        return [1.0]
    members = len(matcher.members)
    return [1 / members] * members if matcher.shares is None else [float(share) for share in matcher.shares.tolist()]
