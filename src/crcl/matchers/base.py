"""What every matcher is: two encoders and a similarity."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Encoded:
    """Images or texts as a matcher sees them: vectors `(B, D)`, or parts `(B, L, D)` and which are real `(B, L)`."""

    features: Tensor
    mask: Tensor | None = None
    whole: Tensor | None = None
    """One vector for each as a whole `(B, D)`, where a matcher of parts has one."""
    members: "tuple[Encoded, ...]" = ()
    """What each network of an ensemble sees; the other fields are then the first one's."""

    def __len__(self) -> int:
        return len(self.features)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        if self.members:
            return sum(member.nbytes for member in self.members)
        return sum(part.nbytes for part in (self.features, self.mask, self.whole) if part is not None)

    @classmethod
    def join(cls, parts: "Sequence[Encoded]") -> "Encoded":
        """Several batches of one shape, one after the other."""
        if parts[0].members:
            return cls.of_members([cls.join(same) for same in zip(*(part.members for part in parts), strict=True)])
        masks = [part.mask for part in parts if part.mask is not None]
        wholes = [part.whole for part in parts if part.whole is not None]
        return cls(
            torch.cat([part.features for part in parts]),
            torch.cat(masks) if masks else None,
            torch.cat(wholes) if wholes else None,
        )

    @classmethod
    def of_members(cls, members: "Sequence[Encoded]") -> "Encoded":
        """What the networks of an ensemble see, together."""
        return replace(members[0], members=tuple(members))


class Matcher(Protocol):
    """A network that turns images and texts into similarities. Also an `nn.Module`.

    One that has `reads_vectors = True` is given the vectors that come with captions instead of their words.
    """

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        """Regions `(B, R, F)`, real ones first, and which are real `(B, R)`."""

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        """Token ids `(B, W)`, padded with 0, or vectors `(B, 1, G)`; and how many are real `(B,)`."""

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        """`(images, texts)`"""


def raw_scores(matcher: Matcher, images: Encoded, texts: Encoded) -> Tensor:
    """What a matcher says before a sigmoid, where it has one (`scores` of SAF and SGR); else its similarities.

    `(images, texts)`
    """
    scores: Callable[[Encoded, Encoded], Tensor] = getattr(matcher, "scores", matcher.similarity)
    return scores(images, texts)


def within(matcher: Matcher, encoded: Encoded) -> Tensor:
    """How alike images are to each other, or texts: by the matcher's head (`within` of SAF and SGR), else by cosine.

    `(K, K)`
    """
    head: Callable[[Encoded], Tensor] | None = getattr(matcher, "within", None)
    if head is not None:
        return head(encoded)
    if encoded.features.ndim != 2:
        raise TypeError(f"{type(matcher).__name__} has neither one vector for each image nor a head for two of them")
    vectors = l2(encoded.features)
    return inner_products(vectors, vectors)


def reads_vectors(matcher: object) -> bool:
    """Whether a matcher, or a class of matchers, reads captions as vectors; most read words."""
    return bool(getattr(matcher, "reads_vectors", False))


def as_module(matcher: Matcher) -> nn.Module:
    """The matcher as the module that it is, for optimizers and saving."""
    if not isinstance(matcher, nn.Module):
        raise TypeError(f"a matcher must be an nn.Module, got {type(matcher).__name__}")
    return matcher


def l2(x: Tensor) -> Tensor:
    """Scale vectors to length 1, as the field does: 1e-8 is added to the norm, not used as its floor. In float32."""
    x = x.float()
    return x / (x.norm(dim=-1, keepdim=True) + 1e-8)


SMALLEST_SQUARE = 1e-24
"""Below this a squared length counts as this, far below the 1e-8 that is added to a length: √ has no slope at 0."""


def inner_products(images: Tensor, texts: Tensor) -> Tensor:
    """`(images, D)`, `(texts, D)` -> `(images, texts)`, in float32: a temperature magnifies what is rounded here."""
    with torch.autocast(images.device.type, enabled=False):
        return images.float() @ texts.float().T


@contextmanager
def scoring(matcher: Matcher) -> Iterator[torch.device]:
    """Eval mode without gradients; afterwards the matcher is in the mode it was in. Gives the matcher's device."""
    module = as_module(matcher)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.inference_mode():
            yield device_of(module)
    finally:
        for part, training in modes:
            part.training = training


def device_of(module: nn.Module) -> torch.device:
    """Where the module's parameters are."""
    parameter: Tensor | None = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
