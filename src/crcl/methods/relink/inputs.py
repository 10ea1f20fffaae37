"""What the linear model reads: one vector per image, and a bag of words or a vector per caption, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from crcl.data.batches import Batches, Standardize
from crcl.data.split import Split
from crcl.data.text.frequencies import document_counts, inverse_document_frequency
from crcl.data.text.vectors import TextVectors
from crcl.data.text.vocabulary import Tokens

_BLOCK = 4096
MOST_WORDS = 6000
"""Words in bags; of a larger vocabulary those in the most captions."""


class Rows(Protocol):
    """Vectors of images or captions, read in blocks. A block is an array or a sparse matrix `(rows, size)`."""

    @property
    def sparse(self) -> bool: ...

    @property
    def size(self) -> int: ...

    def __len__(self) -> int: ...

    def read(self, rows: np.ndarray) -> Any: ...


@dataclass(frozen=True)
class Stored:
    """Vectors in memory, as an array or a sparse matrix."""

    values: Any
    sparse: bool = False

    @property
    def size(self) -> int:
        return int(self.values.shape[1])

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def read(self, rows: np.ndarray) -> Any:
        return self.values[rows]


@dataclass(frozen=True)
class ImageVectors:
    """Images of a single region, read from the features file."""

    pairs: Split
    standardize: Standardize | None
    sparse: bool = False

    @property
    def size(self) -> int:
        return int(self.pairs.features.shape[2])

    def __len__(self) -> int:
        return self.pairs.images

    def read(self, rows: np.ndarray) -> np.ndarray:
        regions = self.pairs.gather(rows)
        return unit((regions if self.standardize is None else self.standardize(regions))[:, 0])


@dataclass(frozen=True)
class CaptionVectors:
    """Vectors of the captions, read from their file."""

    pairs: Split
    sparse: bool = False

    @property
    def size(self) -> int:
        return 0 if self.pairs.text_features is None else int(self.pairs.text_features.shape[1])

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, rows: np.ndarray) -> np.ndarray:
        return unit(self.pairs.gather_texts(rows))


def linear_rows(batches: Batches) -> tuple[Rows, Rows]:
    """Images and captions of the training pairs as the linear model reads them."""
    return image_rows(batches), text_rows(batches)


def image_rows(batches: Batches) -> Rows:
    """Each image's only region, or the mean and the maximum of its regions."""
    pairs = batches.pairs
    if pairs.features.shape[1] == 1:
        return ImageVectors(pairs, batches.standardize)
    pooled = np.empty((pairs.images, 2 * pairs.features.shape[2]), dtype=np.float32)
    for rows in blocks(pairs.images, 256):
        regions = pairs.gather(rows)
        if batches.standardize is not None:
            regions = batches.standardize(regions)
        pooled[rows] = np.concatenate([regions.mean(1), regions.max(1)], axis=1)
    return Stored(pooled)


def text_rows(batches: Batches) -> Rows:
    """The vectors of the captions if the matcher reads these, else bags of words."""
    if isinstance(batches.tokens, TextVectors):
        return CaptionVectors(batches.pairs)
    return Stored(bags(batches.tokens, batches.vocabulary), sparse=True)


def bags(tokens: Tokens, vocabulary: int) -> Any:
    """Bags of words of length 1, weighted by inverse document frequency. Sparse `(N, vocabulary)` float32"""
    weights = bag_weights(tokens, vocabulary)
    found = scipy.sparse.csr_array(
        (weights[tokens.flat], tokens.flat.astype(np.int64), tokens.offsets.copy()), shape=(len(tokens), vocabulary)
    )
    found.sum_duplicates()
    length = np.sqrt(found.multiply(found).sum(1))
    return scipy.sparse.csr_array(scipy.sparse.diags_array(1 / np.maximum(length, 1e-12)) @ found).astype(np.float32)


def bag_weights(tokens: Tokens, vocabulary: int) -> np.ndarray:
    """Weights of the words in bags: inverse document frequency less its lowest value. (vocabulary,) float32

    A word in every caption has the weight 0, and so have the rarest words of a large vocabulary.
    """
    weights = inverse_document_frequency(tokens, vocabulary) - 1
    if vocabulary > MOST_WORDS:
        weights[np.argsort(-document_counts(tokens, vocabulary), kind="stable")[MOST_WORDS:]] = 0
    return np.maximum(weights, 0)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def blocks(count: int, size: int = _BLOCK) -> Iterator[np.ndarray]:
    """The numbers from 0 to `count`, in blocks."""
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))
