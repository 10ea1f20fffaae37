"""Cutting the work of a local matcher, every image with every caption, into parts that caches and memory hold."""

from collections.abc import Iterator, Sequence

ROWS = 8192
"""(image, word) rows of a part; at the paper's sizes about 8 MiB for each array of similarity vectors."""
WORDS = 512
"""Words that meet an image in one product, at most."""


def caption_blocks(lengths: Sequence[int], *, words: int) -> list[int]:
    """How many captions, longest first, to take at a time, so that a block has about so many padded words."""
    sizes, start = [], 0
    while start < len(lengths):
        size = min(max(words // max(lengths[start], 1), 1), len(lengths) - start)
        sizes.append(size)
        start += size
    return sizes


def image_blocks(images: int, words: int, *, rows: int) -> Iterator[slice]:
    """Cut the images so that each part, with so many words, has about so many rows."""
    size = max(rows // max(words, 1), 1)
    for start in range(0, images, size):
        yield slice(start, start + size)
