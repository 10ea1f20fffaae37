"""Record of a matcher: how to build it, its settings, its abilities and its requirements."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from crcl.matchers.base import reads_vectors
from crcl.settings import Count, Section


class MatcherSettings(Section):
    """Settings that most matchers have; a matcher with more settings has a subclass."""

    embedding: Count = 1024
    """Size D of the shared embedding; for dual with vectors of one size the number of hidden units."""
    word: Count = 300
    """Size of a word vector."""


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """Facts about the data, the machine and the method that a matcher is built for, besides its own settings."""

    sizes: Mapping[str, int]
    """`features`, `regions`, `vocabulary` and, if captions are given as vectors, `text_features`."""
    memory: float = 4.0
    """GiB that intermediate results may take."""
    meta: int = 0
    """Hidden units of the meta-network that the method needs as the last layer; 0: no meta-network."""
    word_weights: Tensor | None = None
    """Inverse document frequency of each word `(vocabulary,)`, if the matcher reads words and is to be trained."""
    model: dict[str, Any] | None = None
    """Description of the published model that the matcher starts from, if any."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MatcherRecord:
    """Description of a matcher: how to build it, its settings, its abilities and its requirements."""

    name: str
    summary: str
    """What it is, in one line."""
    kind: type[nn.Module]
    make: Callable[[Any, BuildContext], nn.Module]
    """Builds a matcher with fresh weights from an instance of `settings` and a context."""
    settings: type[MatcherSettings] = MatcherSettings
    dropped_regions: Literal["removed", "blanked"] = "removed"
    """What augmentation does with a dropped region."""
    fixed_regions: bool = False
    """Whether every image must have as many regions as the training images."""
    published: Callable[[str], Any] | None = None
    """Loads the published model that the matcher starts from, by folder or name; None: it starts from fresh weights."""
    similarity_vector: bool = True
    """Whether it computes a similarity vector of an image and a text, which a meta-network can read."""
    compares_within: bool = True
    """Whether it compares images with images and texts with texts (`matchers.base.within_modality`)."""
    bounded: bool = True
    """Whether all similarities are in [-1, 1]."""
    one_vector: bool = True
    """Whether an image and a text are encoded as one vector each, and compared by their inner product."""
    unchunked: str = ""
    """Why its encoders need a whole batch at once; empty if they can read chunks of it."""
    closed_form: bool = False
    """Whether method relink fits it without gradient steps."""

    @property
    def reads_vectors(self) -> bool:
        """Whether it reads captions as precomputed vectors instead of words."""
        return reads_vectors(self.kind)

    @property
    def pretrained(self) -> bool:
        """Whether it starts from a published model, and so reads that model's pixels and tokens."""
        return self.published is not None
