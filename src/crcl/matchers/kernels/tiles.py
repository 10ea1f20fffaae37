"""Tiles of images and captions for local matchers, sized to fit in caches and memory."""

from collections.abc import Iterator, Sequence

ROWS = 8192
"""(image, word) rows of a tile; at the paper's sizes about 8 MiB for each array of similarity vectors."""
WORDS = 512
"""Most words of a tile in one matrix product."""


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
