"""The text input of a matcher: token ids, or precomputed vectors of the captions."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from crcl.data.split import Split
from crcl.data.text.vocabulary import Tokens


@dataclass(frozen=True)
class TextVectors:
    """Precomputed vectors of captions with the interface of `Tokens`; each caption is one word long."""

    pairs: Split
    cut: ClassVar[int] = 0
    unknown: ClassVar[int] = 0

    def __len__(self) -> int:
        """N, the number of captions."""
        return len(self.pairs)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64, all 1."""
        return np.ones(len(self), dtype=np.int64)

    def side_by_side(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of some captions, `(K, 1, G)` float32, and a mask `(K, 1)` that is all true."""
        return self.pairs.gather_texts(numbers)[:, None], np.ones((len(numbers), 1), dtype=bool)

    def read_ahead(self, numbers: np.ndarray) -> None:
        """Ask the system to read the vectors of some captions in the background."""
        self.pairs.read_texts_ahead(numbers)


Texts = Tokens | TextVectors
