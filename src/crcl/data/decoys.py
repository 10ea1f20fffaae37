"""Decoys: known mismatches added to the training pairs, to measure with."""

from dataclasses import replace

import numpy as np

from crcl.data.split import Split

SHARE = 0.05
"""Default number of decoys that an audit adds, as a share of the pairs."""
LEAST = 50
"""Fewest decoys to draw if the share gives fewer, but at most a quarter of the pairs."""
_STREAM = 0xDEC0  # keeps the random numbers of decoys apart from others drawn with the same seed
_BLOCK = 16  # images: decoys link only images of one block, so that a division by image can keep linked ones together
_TRIES = 1000  # attempts to draw an image that a text is not paired with


def draw(pairs: Split, share: float, seed: int) -> np.ndarray:
    """Draw decoys: captions without repetition, each with a random image that no pair shows with the same text.

    A text that is paired with nearly all images gets an image that only this row does not show.

    Args:
        pairs: The pairs to draw captions and images from.
        share: Number of decoys as a share of the pairs.
        seed: Seed of the draw.

    Returns:
        Caption and image of each decoy, (decoys, 2) int64.
    """
    rng = np.random.default_rng([_STREAM, seed])
    count = max(round(share * len(pairs)), min(LEAST, len(pairs) // 4), 1)
    captions = np.sort(rng.permutation(len(pairs))[:count])
    images = _others_nearby(pairs.image_index[captions], pairs.images, rng)
    shown: dict[str, set[int]] = {pairs.captions[caption]: set() for caption in captions}
    for text, image in zip(pairs.captions, pairs.image_index.tolist(), strict=True):
        if text in shown:
            shown[text].add(image)
    for place, caption in enumerate(captions):
        known = shown[pairs.captions[caption]]
        if int(images[place]) in known:
            tries = rng.integers(pairs.images, size=_TRIES).tolist()
            images[place] = next((image for image in tries if image not in known), images[place])
    return np.stack([captions, images], axis=1)


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
