"""The second stage of a search: another run ranks what the first one found again."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from crcl.data.pairs import Pairs
from crcl.errors import InputError, did_you_mean
from crcl.retrieval.index.folder import What
from crcl.retrieval.index.hits import Hit
from crcl.retrieval.model import Model


def images_again(hits: Sequence[Hit], model: Model, pairs: Pairs, query: str) -> list[Hit]:
    """Images that were found for a sentence, in the order of another run's similarities.

    Args:
        hits: What the first stage found.
        model: The run that ranks them again.
        pairs: Data with features of these images, as the run was trained on.
        query: The sentence.
    """
    if not hits:
        return []
    features = features_of([hit.key for hit in hits], pairs)
    return _ordered(hits, model.similarity(features, [query])[:, 0])


def captions_again(hits: Sequence[Hit], model: Model, image: Any) -> list[Hit]:
    """Captions that were found for an image, a photo or features `(1, R, F)`, ranked by another run."""
    if not hits:
        return []
    given = image if isinstance(image, np.ndarray) else [image]
    return _ordered(hits, model.similarity(given, [hit.captions[0] for hit in hits])[0])


def features_of(keys: Sequence[str], pairs: Pairs) -> np.ndarray:
    """Features of images by their keys, from whichever split has them. (keys, R, F)"""
    found: dict[str, np.ndarray] = {}
    wanted = set(keys)
    known: list[str] = []
    for name in pairs.splits:
        split = pairs.split(name)
        rows = [row for row, key in enumerate(split.image_ids) if key in wanted and key not in found]
        if rows:
            each = split.gather(np.array(rows))
            found |= {split.image_ids[row]: features for row, features in zip(rows, each, strict=True)}
        known += split.image_ids[:10_000]
    missing = [key for key in keys if key not in found]
    if missing:
        what = f"no features of image {missing[0]!r}{did_you_mean(missing[0], known)}"
        hint = "pass {data} with features as the second run was trained on"
        raise InputError(what, where=pairs.name, hint=hint)
    return np.stack([found[key] for key in keys])


def check_stages(what: What, *, from_image: bool) -> None:
    """Refuse two stages of images for an image: a matcher compares images with texts only."""
    if from_image and what == "images":
        raise InputError("a run compares images with texts, and cannot rank images for an image", where="rerank")


def _ordered(hits: Sequence[Hit], scores: np.ndarray) -> list[Hit]:
    order = np.argsort(-scores, kind="stable")
    return [Hit(rank, hits[at].key, float(scores[at]), hits[at].captions) for rank, at in enumerate(order, start=1)]
