"""The cosine of a pair's vectors, for images and captions with vectors of one space, such as those of CLIP."""

import torch
from torch import Tensor

_BLOCK = 65_536  # pairs at a time


def cosine(images: Tensor, texts: Tensor, image_index: Tensor) -> Tensor:
    """How near a caption is to its image, (N,); 1 is the same direction.

    Args:
        images: Unit vectors of M images, `(M, D)`.
        texts: Unit vectors of N captions, `(N, D)`.
        image_index: The image shown with each caption, `(N,)`.
    """
    parts = zip(texts.split(_BLOCK), image_index.split(_BLOCK), strict=True)
    return torch.cat([(text * images[shown]).sum(1) for text, shown in parts])
