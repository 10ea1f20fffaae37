"""SCAN's attention between words and regions, which several local matchers share.

`s` are inner products (images, R, captions, W), 0 where a word or a region is padding. The context of a word is its
attention-weighted sum of regions; it need not be formed to know its length.
"""

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from crcl.matchers.base import SMALLEST_SQUARE

_EPS = 1e-8


def to_regions(s: Tensor, *, smooth: float, seen: Tensor | None = None) -> Tensor:
    """Attention of words to regions, over the real regions `seen` `(images, R)` if given. (images, R, captions, W)"""
    positive = leaky_relu(s, 0.1)
    scaled = positive * (smooth / (positive.norm(dim=3, keepdim=True) + _EPS))
    if seen is not None:
        scaled = scaled.masked_fill(~seen[:, :, None, None], -torch.inf)
    return scaled.softmax(1)


def to_words(s: Tensor, real: Tensor, *, smooth: float) -> Tensor:
    """Attention of regions to the real words `real` `(captions, W)`. (images, R, captions, W)"""
    positive = leaky_relu(s, 0.1)
    scaled = positive * (smooth / (positive.norm(dim=1, keepdim=True) + _EPS))
    return scaled.masked_fill(~real, -torch.inf).softmax(3)


def context_norms(attention: Tensor, v: Tensor) -> Tensor:
    """Lengths of the words' contexts, by the Gram matrix of the regions `(images, R, D)`. (images, captions, W)"""
    rows = attention.flatten(2).mT  # (images, captions * W, R)
    with torch.autocast(v.device.type, enabled=False):
        squares = ((rows @ (v @ v.mT)) * rows).sum(2).view(len(v), *attention.shape[2:])
    return squares.clamp(min=SMALLEST_SQUARE).sqrt()
