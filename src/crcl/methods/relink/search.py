"""The most similar images of captions among very many, by an index of package faiss.

The images are divided into cells around centres (k-means). A caption is compared with the images of some cells, those
with the most similar centres.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl.data import cells as divided

_SIMILARITIES = 2**25  # computed at a time: 128 MB


@dataclass(frozen=True)
class Best:
    """The most similar images of n captions, best first."""

    similarities: Tensor
    """(n, K), -inf where fewer were found"""
    numbers: Tensor
    """(n, K) int64, -1 where fewer were found"""

    def __getitem__(self, rows: slice) -> "Best":
        """Those of some captions."""
        return Best(self.similarities[rows], self.numbers[rows])


def installed() -> bool:
    """Whether the package that searches is there."""
    return divided.installed()


def library(images: int) -> Any:
    """Import `faiss`, an optional dependency, to search so many images."""
    return divided.library(f"method relink on {images:,} images")


class Index:
    """Unit vectors of images, to be searched by inner product. The same vectors and seed give the same index."""

    def __init__(self, images: Tensor, *, seed: int = 0) -> None:
        """Index unit vectors `(M, D)`, kept as float16; `seed` is that of k-means."""
        count, size = images.shape
        faiss = library(count)
        self.cells = divided.cell_count(count)
        self._centres = faiss.IndexFlatIP(size)  # the index does not keep it alive
        halves, by_product = faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        self._index = faiss.IndexIVFScalarQuantizer(self._centres, size, self.cells, halves, by_product, False)
        divided.find_centres(self._index, images.numpy(), seed=seed)
        self._index.add(images.numpy())

    def search(self, texts: Tensor, count: int, *, cells: int) -> Best:
        """The most similar `count` images in the nearest `cells` cells of each caption; `texts` is `(n, D)`."""
        self._index.nprobe = min(cells, self.cells)
        similarities, numbers = self._index.search(texts.numpy(), count)
        similarities[numbers < 0] = -np.inf
        return Best(torch.from_numpy(similarities), torch.from_numpy(numbers))


def search_all(images: Tensor, texts: Tensor, count: int) -> Best:
    """The most similar `count` of all images `(M, D)`, for captions `(n, D)`."""
    best, numbers = texts.new_empty(len(texts), 0), torch.empty(len(texts), 0, dtype=torch.int64)
    size = max(_SIMILARITIES // max(len(texts), 1), count)
    for start in range(0, len(images), size):
        block = texts @ images[start : start + size].T
        found, which = block.topk(min(count, block.shape[1]), dim=1)
        best, numbers = torch.cat([best, found], dim=1), torch.cat([numbers, which + start], dim=1)
        best, kept = best.topk(min(count, best.shape[1]), dim=1)
        numbers = numbers.gather(1, kept)
    return Best(best, numbers)
