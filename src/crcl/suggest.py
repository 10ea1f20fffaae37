"""What would match instead: for suspect pairs, other captions for the image and other images for the caption."""

from dataclasses import dataclass

import numpy as np

MOST = 3
"""Suggestions of each kind for a pair."""


@dataclass(frozen=True)
class Suggestions:
    """For S pairs the best of the other captions and images, best first; -1 where there are fewer."""

    rows: np.ndarray
    """(S,) numbers of the pairs"""
    captions: np.ndarray
    """(S, most) numbers of pairs, whose captions fit the image best of those that are not shown with it"""
    caption_similarity: np.ndarray
    """(S, most)"""
    images: np.ndarray
    """(S, most) numbers of images that fit the caption best, other than those it is shown with"""
    image_similarity: np.ndarray
    """(S, most)"""
