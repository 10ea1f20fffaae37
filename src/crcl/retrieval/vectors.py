"""One vector for each image and each text, whose inner products are the similarities of a run."""

import numpy as np
import torch

from crcl.config import Config
from crcl.data.split import Split
from crcl.data.text.vectors import Texts
from crcl.errors import InputError
from crcl.matchers import MATCHERS, Matcher
from crcl.matchers.base import Encoded, eval_mode
from crcl.matchers.ensemble import shares_of
from crcl.retrieval.scoring import Scorer


def check_one_vector(config: Config) -> None:
    """Raise an error if a run's similarities are no inner products of two vectors, so that it cannot be indexed."""
    local = [name for name in config.members() if not MATCHERS[name].one_vector]
    if local:
        raise InputError(
            f"{local[0]} compares the regions of an image with the words of a caption, so neither has a vector of its "
            "own to index",
            hint="search in two stages: index a run of a matcher with one vector each, such as vse, and let this run "
            "rank the first images again",
        )
    if config.record.meta is not None:
        raise InputError(
            f"the meta-networks of {config.method} judge both vectors together, so no inner product of them is the "
            "similarity",
            hint="index a run of another method",
        )


def side_by_side(matcher: Matcher, encoded: Encoded) -> np.ndarray:
    """One vector each; those of several networks are concatenated so that inner products are the mean of theirs."""
    both = zip(encoded.members or (encoded,), shares_of(matcher), strict=True)
    return torch.cat([part.features.float() * share**0.5 for part, share in both], dim=1).cpu().numpy()


def image_vectors(scorer: Scorer, pairs: Split, images: np.ndarray) -> np.ndarray:
    """Vectors of these images, by number. (images, D) float32"""
    with eval_mode(scorer.matcher) as device:
        return side_by_side(scorer.matcher, scorer.encode_images(pairs, images, device))


def text_vectors(scorer: Scorer, tokens: Texts, captions: np.ndarray) -> np.ndarray:
    """Vectors of these captions, by number. (captions, D) float32"""
    with eval_mode(scorer.matcher) as device:
        return side_by_side(scorer.matcher, scorer.encode_texts(tokens, captions, device))
