"""Decoys: known mismatches added to the training pairs, to measure with."""

from dataclasses import replace

import numpy as np

from crcl.data.duplicates import NEAR, Likeness, folded, generic_captions, same_images
from crcl.data.split import Split

SHARE = 0.05
"""Default number of decoys that an audit adds, as a share of the pairs."""
LEAST = 50
"""Fewest decoys to draw if the share gives fewer, but at most a quarter of the pairs."""
_STREAM = 0xDEC0  # keeps the random numbers of decoys apart from others drawn with the same seed
_BLOCK = 16  # images: decoys link only images of one block, so that a division by image can keep linked ones together
_TRIES = 1000  # attempts to draw an image that a text is not paired with
_COMPARED, _AT_ONCE = 64, 4  # of these, how many are compared with the caption's own image


def draw(pairs: Split, share: float, seed: int, *, near: float = NEAR) -> np.ndarray:
    """Draw decoys: captions without repetition, each with a random image that no pair shows with the same text.

    Neither is it a copy of the caption's own image, which the caption would describe as well; and captions that say
    nothing of one image are not drawn, as they are no more wrong with another. A text that is paired with nearly all
    images gets an image that only this row does not show. Data without copies gets the same decoys as ever.

    Args:
        pairs: The pairs to draw captions and images from.
        share: Number of decoys as a share of the pairs.
        seed: Seed of the draw.
        near: Similarity from which images are near copies.

    Returns:
        Caption and image of each decoy, (decoys, 2) int64.
    """
    rng = np.random.default_rng([_STREAM, seed])
    count = max(round(share * len(pairs)), min(LEAST, len(pairs) // 4), 1)
    order = rng.permutation(len(pairs))
    content = np.arange(pairs.images) if pairs.contents is None else same_images(pairs)
    generic = generic_captions(pairs.captions, content[pairs.image_index], images=len(np.unique(content)))
    telling = order[~generic[order]]
    captions = np.sort((telling if len(telling) else order)[:count])
    images = _others_nearby(pairs.image_index[captions], pairs.images, rng)
    allowed = _Allowed(pairs, captions, content, near)
    copied = allowed.copies(pairs.image_index[captions], images)
    kept = np.ones(len(captions), dtype=bool)
    for place, caption in enumerate(captions):
        if copied[place] or not allowed.by_text(int(caption), int(images[place])):
            tries = rng.integers(pairs.images, size=_TRIES)
            images[place], kept[place] = allowed.first(int(caption), int(images[place]), tries, copied=copied[place])
    return np.stack([captions, images], axis=1)[kept if kept.any() else slice(None)]


class _Allowed:
    """Which images may be shown with a caption as a decoy."""

    def __init__(self, pairs: Split, captions: np.ndarray, content: np.ndarray, near: float) -> None:
        self.pairs, self.content, self.near = pairs, content, near
        self.likeness = Likeness(pairs) if near < 1 and pairs.images > 2 else None
        texts = [folded(caption) for caption in pairs.captions]
        self.text_of = {int(caption): texts[caption] for caption in captions}
        self.shown: dict[str, set[int]] = {text: set() for text in self.text_of.values()}
        """Contents that are shown with a text."""
        for text, image in zip(texts, self.content[pairs.image_index].tolist(), strict=True):
            if text in self.shown:
                self.shown[text].add(image)

    def by_text(self, caption: int, image: int) -> bool:
        """Whether no pair shows this text with the image or an exact copy of it."""
        return int(self.content[image]) not in self.shown[self.text_of[caption]]

    def copies(self, own: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Whether each image is an exact or near copy of the other. (images,) bool"""
        exact = self.content[own] == self.content[others]
        return exact if self.likeness is None else exact | (self.likeness.similarity(own, others) >= self.near)

    def first(self, caption: int, drawn: int, tries: np.ndarray, *, copied: bool) -> tuple[int, bool]:
        """The first allowed image of `tries`, or else the drawn one; False if that is a copy of the caption's own."""
        fine = [image for image in tries.tolist() if self.by_text(caption, image)][:_COMPARED]
        own = np.full(len(fine), self.pairs.image_index[caption])
        for start in range(0, len(fine), _AT_ONCE):
            some = np.array(fine[start : start + _AT_ONCE])
            good = some[~self.copies(own[: len(some)], some)]
            if len(good):
                return int(good[0]), True
        return drawn, not copied


def _others_nearby(images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """For each image a random other one of its block, where all `count` images are divided into blocks at random."""
    place = rng.permutation(count)
    order = np.argsort(place)
    edges = np.linspace(0, count, max(count // _BLOCK, 1) + 1).astype(np.int64)
    own = place[images]
    block = np.searchsorted(edges, own, side="right") - 1
    start, size = edges[block], edges[block + 1] - edges[block]
    return order[start + (own - start + rng.integers(1, size)) % size]


def add(pairs: Split, drawn: np.ndarray) -> Split:
    """The pairs followed by these decoys, whose truth is False."""
    captions, images = drawn.T
    return replace(
        pairs,
        captions=[*pairs.captions, *(pairs.captions[int(number)] for number in captions)],
        image_index=np.concatenate([pairs.image_index, images]),
        truth=None if pairs.truth is None else np.concatenate([pairs.truth, np.zeros(len(drawn), dtype=bool)]),
        caption_rows=np.concatenate([pairs.rows, pairs.rows[captions]]),
    )
