"""Decoys: known mismatches added to the training pairs, to measure with."""

from dataclasses import replace

import numpy as np

from crcl.data.split import Split

SHARE = 0.05
"""Default number of decoys that an audit adds, as a share of the pairs."""
LEAST = 50
"""Fewest decoys to draw if the share gives fewer, but at most a quarter of the pairs."""
_STREAM = 0xDEC0  # keeps the random numbers of decoys apart from others drawn with the same seed
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
    shift = rng.integers(1, pairs.images, size=count)
    images = (pairs.image_index[captions] + shift) % pairs.images
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
