"""The images most like others, by their features: exact search in blocks, among a sample where there are very many."""

import numpy as np

from crcl.data.split import Split

MOST = 100_000
"""Most images that are searched among; of more, a random sample."""
_SAMPLED = 2048  # images that the mean is measured on
_BYTES = 64 * 2**20  # of features, and of similarities, that are held at a time


def nearest_images(
    pairs: Split, asked: np.ndarray, among: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """The images most like each of some others, the most similar first; -1 where there are fewer. (asked, count)

    Images are compared by the cosine of the mean of their regions, less that of all images: what an image shows counts,
    wherever in the image it is.

    Args:
        pairs: The pairs whose images these are.
        asked: The images to find others for.
        among: The images to search, without repetition.
        count: How many to find; an image is not one of its own.
        rng: Draws the sample, if there is one.
    """
    if len(among) > MOST:
        among = np.sort(rng.choice(among, MOST, replace=False))
    best = np.full((len(asked), count), -1, dtype=np.int64)
    scores = np.full((len(asked), count), -np.inf, dtype=np.float32)
    if not len(asked) or not len(among):
        return best
    size = max(_BYTES // (4 * max(int(np.prod(pairs.features.shape[1:])), len(asked))), 1)
    sample = among[np.unique(np.linspace(0, len(among) - 1, min(len(among), _SAMPLED, size)).astype(np.int64))]
    mean = _pooled(pairs, sample).mean(0)
    queries = np.concatenate([_unit(_pooled(pairs, asked[part]) - mean) for part in _parts(len(asked), size)])
    for part in _parts(len(among), size):
        sims = queries @ _unit(_pooled(pairs, among[part]) - mean).T
        sims[among[part] == asked[:, None]] = -np.inf
        kept = np.argpartition(-sims, min(count, sims.shape[1]) - 1, axis=1)[:, :count]
        scores = np.concatenate([scores, np.take_along_axis(sims, kept, 1)], axis=1)
        best = np.concatenate([best, among[part][kept]], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        scores, best = np.take_along_axis(scores, order, 1), np.take_along_axis(best, order, 1)
    return np.where(np.isfinite(scores), best, -1)


def _parts(count: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _pooled(pairs: Split, images: np.ndarray) -> np.ndarray:
    """The mean of the regions of each image. (images, F)"""
    return np.asarray(pairs.gather(images).mean(axis=1))


def _unit(vectors: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(size, 1e-12)).astype(np.float32)
