"""What the package knows of a matcher: how it is made, its settings, and what it can and needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from crcl.matchers.base import reads_vectors
from crcl.settings import Count, Section


class MatcherSettings(Section):
    """Sizes that most matchers have; a matcher's own settings are a subclass."""

    embedding: Count = 1024
    """Size D of the shared embedding; for vectors of one size (dual) the number of hidden units instead."""
    word: Count = 300
    """Size of a word vector."""


@dataclass(frozen=True, kw_only=True)
class MadeFor:
    """What a matcher is made for, besides its settings: the data, the machine and the method."""

    sizes: Mapping[str, int]
    """`features`, `regions`, `vocabulary` and, where captions come as vectors, `text_features`."""
    memory: float = 4.0
    """GiB that intermediate results may take."""
    meta: int = 0
    """Hidden units of the meta-network that the method wants as the last layer; 0: none."""
    word_weights: Tensor | None = None
    """How rare each word is, `(vocabulary,)`, where words are read and a matcher is trained anew."""
    model: dict[str, Any] | None = None
    """Description of the published model that the matcher begins as, if it does."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MatcherRecord:
    """All that the package needs to know of a kind of matcher."""

    name: str
    summary: str
    """What it is, in one line."""
    kind: type[nn.Module]
    make: Callable[[Any, MadeFor], nn.Module]
    """A fresh matcher of an instance of `settings` and of what it is made for."""
    settings: type[MatcherSettings] = MatcherSettings
    dropped_regions: Literal["removed", "blanked"] = "removed"
    """What augmentation does with a region that it drops."""
    fixed_regions: bool = False
    """Whether every image must have as many regions as those that it was trained on."""
    published: Callable[[str], Any] | None = None
    """Loads the published model that it begins as, by folder or name; None: it begins from fresh weights."""
    similarity_vector: bool = True
    """Whether an image and a text make a vector that a meta-network can read."""
    compares_within: bool = True
    """Whether it compares images with images and texts with texts (`matchers.base.within`)."""
    bounded: bool = True
    """Whether no similarity is outside [-1, 1]."""

    @property
    def reads_vectors(self) -> bool:
        """Whether it reads captions as vectors instead of words."""
        return reads_vectors(self.kind)

    @property
    def pretrained(self) -> bool:
        """Whether it begins as a published model, whose own pixels and tokens it reads."""
        return self.published is not None
