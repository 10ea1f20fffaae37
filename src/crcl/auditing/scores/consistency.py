"""Where an image has several captions: how much a caption is like the others."""

import torch
from torch import Tensor


def consistency(texts: Tensor, image_index: Tensor) -> Tensor:
    """The mean cosine of a caption with the other captions of its image, (N,); NaN where it is the only one.

    Args:
        texts: Unit vectors of N captions, `(N, D)`.
        image_index: The image shown with each caption, `(N,)`.
    """
    images = int(image_index.max()) + 1
    total = texts.new_zeros(images, texts.shape[1]).index_add_(0, image_index, texts)
    others = torch.bincount(image_index, minlength=images)[image_index] - 1
    lengths = (texts * texts).sum(1)
    likeness = (texts * total[image_index]).sum(1) - lengths
    return torch.where(others > 0, likeness / others.clamp_min(1), torch.nan)
