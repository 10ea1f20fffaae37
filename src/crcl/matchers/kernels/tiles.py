"""Tiles of images and captions for local matchers, sized to fit in caches and memory."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from crcl.matchers.base import Encoded

ROWS = 8192
"""(image, word) rows of a tile; at the paper's sizes about 8 MiB for each array of similarity vectors."""
WORDS = 512
"""Most words of a tile in one matrix product."""
_LEAST_IMAGES = ROWS // WORDS
_ELEMENTS = 2**21
"""Numbers of the largest array of a tile: 8 MiB."""


def in_tiles(
    compare: Callable[[Encoded, Encoded], Tensor],
    images: Encoded,
    texts: Encoded,
    *,
    stored: int,
    memory: float,
    width: int | None = None,
) -> Tensor:
    """Similarities of all images with all texts by `compare`, which is given a tile of both. (images, texts)

    A backward pass stores `stored` numbers for each (image, word). If that is more than `memory` GiB, each tile is
    computed again by the backward pass (gradient checkpointing); otherwise there is one tile. Give `width` where
    `compare` mostly does elementwise work on arrays of `width` numbers for each (image, word): there are always tiles
    then, so small that such an array stays in the caches.
    """
    words = texts.features.shape[1]
    if torch.is_grad_enabled():
        if 4 * stored * len(images) * len(texts) * words > memory * 2**30:
            compare = partial(checkpoint, compare, use_reentrant=False)
        elif width is None:
            return compare(images, texts)
    rows = ROWS if width is None else max(_ELEMENTS // width, 1)
    columns, start = [], 0
    for size in caption_blocks([words] * len(texts), words=max(rows // len(images), rows // _LEAST_IMAGES)):
        few = texts.part(slice(start, start + size))
        tiles = image_blocks(len(images), size * words, rows=rows)
        columns.append(torch.cat([compare(images.part(some), few) for some in tiles]))
        start += size
    return torch.cat(columns, dim=1)


def products(v: Tensor, t: Tensor) -> Tensor:
    """Inner products of regions `(images, R, D)` and words `(captions, W, D)`. (images, R, captions, W) float32"""
    return (v.flatten(0, 1) @ t.flatten(0, 1).T).view(*v.shape[:2], *t.shape[:2]).float()


def caption_blocks(lengths: Sequence[int], *, words: int) -> list[int]:
    """Sizes of blocks of captions, sorted longest first, so that a block has about `words` words with padding."""
    sizes, start = [], 0
    while start < len(lengths):
        size = min(max(words // max(lengths[start], 1), 1), len(lengths) - start)
        sizes.append(size)
        start += size
    return sizes


def image_blocks(images: int, words: int, *, rows: int) -> Iterator[slice]:
    """Slices of the images such that each, combined with `words` words, has about `rows` rows."""
    size = max(rows // max(words, 1), 1)
    for start in range(0, images, size):
        yield slice(start, start + size)
