"""What a matcher reads of captions: their words as token ids, or the vectors that come with them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from crcl.data.split import Split
from crcl.data.text.vocabulary import Tokens


@dataclass(frozen=True)
class TextVectors:
    """The captions' vectors, each in the place of a text of one word: what stands for `Tokens` where none are read."""

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
        """Some captions' vectors, `(K, 1, G)` float32, and which are real `(K, 1)`: all."""
        return self.pairs.gather_texts(numbers)[:, None], np.ones((len(numbers), 1), dtype=bool)


Texts = Tokens | TextVectors
