"""Protocol of a matcher, two encoders and a similarity, and helpers that all matchers share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Encoded:
    """Encoded images or texts: vectors `(B, D)`, or regions or words `(B, L, D)` with a padding mask `(B, L)`."""

    features: Tensor
    mask: Tensor | None = None
    pooled: Tensor | None = None
    """One vector `(B, D)` for each image or text in addition to its regions or words, if the matcher has one."""
    members: "tuple[Encoded, ...]" = ()
    """The encodings by each network of an ensemble; the other fields are then those of the first network."""

    def __len__(self) -> int:
        return len(self.features)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the tensors take."""
        if self.members:
            return sum(member.nbytes for member in self.members)
        return sum(part.nbytes for part in (self.features, self.mask, self.pooled) if part is not None)

    def each(self, function: Callable[[Tensor], Tensor]) -> "Encoded":
        """The same encodings with a function applied to each of their tensors."""
        mask, pooled = (None if part is None else function(part) for part in (self.mask, self.pooled))
        return Encoded(function(self.features), mask, pooled, tuple(member.each(function) for member in self.members))

    @classmethod
    def join(cls, parts: "Sequence[Encoded]") -> "Encoded":
        """Concatenate several batches; where texts of one are shorter than those of another, they get more padding."""
        if parts[0].members:
            return cls.from_members([cls.join(same) for same in zip(*(part.members for part in parts), strict=True)])
        masks = [part.mask for part in parts if part.mask is not None]
        pooled = [part.pooled for part in parts if part.pooled is not None]
        return cls(
            _stacked([part.features for part in parts]),
            _stacked(masks) if masks else None,
            torch.cat(pooled) if pooled else None,
        )

    def take(self, numbers: Tensor) -> "Encoded":
        """Some of them by number, with no more padding than the longest of these needs."""
        if self.members:
            return self.from_members([member.take(numbers) for member in self.members])
        features, mask = self.features, self.mask
        pooled = None if self.pooled is None else self.pooled[numbers]
        if mask is None:
            return Encoded(features[numbers], None, pooled)
        mask = mask[numbers]
        longest = int(mask.sum(1).max())
        return Encoded(features[:, :longest][numbers], mask[:, :longest], pooled)

    def part(self, which: slice) -> "Encoded":
        """Some of them, one after the other, as views with the padding that they have."""
        mask = None if self.mask is None else self.mask[which]
        return Encoded(self.features[which], mask, None if self.pooled is None else self.pooled[which])

    @classmethod
    def from_members(cls, members: "Sequence[Encoded]") -> "Encoded":
        """Combine the encodings by the networks of an ensemble."""
        return replace(members[0], members=tuple(members))


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Concatenated `(B, ...)`; parts of fewer words or regions `(B, L, ...)` are padded with 0."""
    longest = max(part.shape[1] for part in parts)
    if any(part.shape[1] != longest for part in parts):
        added = [part.new_zeros(len(part), longest - part.shape[1], *part.shape[2:]) for part in parts]
        parts = [torch.cat(both, dim=1) for both in zip(parts, added, strict=True)]
    return torch.cat(list(parts))


class Matcher(Protocol):
    """A network that turns images and texts into similarities. Also an `nn.Module`.

    A matcher with `reads_vectors = True` gets the precomputed vectors of the captions instead of their words.
    """

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        """Encode regions `(B, R, F)`, padding last; the mask `(B, R)` is true for real regions."""

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        """Encode token ids `(B, W)`, padded with 0, with lengths `(B,)`; or vectors `(B, 1, G)` with lengths of 1."""

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        """Similarity of every image with every text. `(images, texts)`"""


def raw_scores(matcher: Matcher, images: Encoded, texts: Encoded) -> Tensor:
    """Similarities before the final sigmoid (`scores` of SAF and SGR), or plain similarities if there is no sigmoid.

    `(images, texts)`
    """
    scores: Callable[[Encoded, Encoded], Tensor] = getattr(matcher, "scores", matcher.similarity)
    return scores(images, texts)


def within_modality(matcher: Matcher, encoded: Encoded, everyone: Encoded | None = None) -> Tensor:
    """Similarity of images with images, or of texts with texts: of `everyone` with those given. `(K, K)`

    Computed by the matcher's own head (`within_modality` of SAF and SGR), or else by cosine.
    """
    head: Callable[[Encoded, Encoded | None], Tensor] | None = getattr(matcher, "within_modality", None)
    if head is not None:
        return head(encoded, everyone)
    if encoded.features.ndim != 2:
        raise TypeError(f"{type(matcher).__name__} cannot compare images with images or texts with texts")
    vectors = l2(encoded.features)
    return inner_products(vectors if everyone is None else l2(everyone.features), vectors)


def reads_vectors(matcher: object) -> bool:
    """Whether a matcher or matcher class reads captions as precomputed vectors instead of words."""
    return bool(getattr(matcher, "reads_vectors", False))


def as_module(matcher: Matcher) -> nn.Module:
    """The matcher typed as an `nn.Module`, for optimizers and saving."""
    if not isinstance(matcher, nn.Module):
        raise TypeError(f"a matcher must be an nn.Module, got {type(matcher).__name__}")
    return matcher


def l2(x: Tensor) -> Tensor:
    """Unit vectors in float32. As in published code, 1e-8 is added to the norm instead of being its lower bound."""
    x = x.float()
    return x / (x.norm(dim=-1, keepdim=True) + 1e-8)


SMALLEST_SQUARE = 1e-24
"""Lower bound of squared norms before the square root, whose gradient is infinite at 0."""


def inner_products(images: Tensor, texts: Tensor) -> Tensor:
    """Inner products of `(images, D)` and `(texts, D)` in float32, since a temperature magnifies rounding errors.

    `(images, texts)`
    """
    with torch.autocast(images.device.type, enabled=False):
        return images.float() @ texts.float().T


@contextmanager
def eval_mode(matcher: Matcher) -> Iterator[torch.device]:
    """Eval mode without gradients; restores the previous mode afterwards. Yields the matcher's device."""
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
    """The device of the module's parameters."""
    parameter: Tensor | None = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
