"""Where an image has several captions: how much a caption is like the others."""

import torch
from torch import Tensor


def consistency(texts: Tensor, image_index: Tensor, *, decoys: int = 0) -> Tensor:
    """The mean cosine of a caption with the other captions of its image, (N,); NaN where it is the only one.

    Args:
        texts: Unit vectors of N captions, `(N, D)`.
        image_index: The image shown with each caption, `(N,)`.
        decoys: The last so many pairs are decoys, which are judged, but are nobody's siblings.
    """
    images, real = int(image_index.max()) + 1, len(texts) - decoys
    total = texts.new_zeros(images, texts.shape[1]).index_add_(0, image_index[:real], texts[:real])
    is_one = torch.arange(len(texts), device=texts.device) < real
    others = torch.bincount(image_index[:real], minlength=images)[image_index] - is_one.long()
    own = torch.where(is_one, (texts * texts).sum(1), 0)
    likeness = (texts * total[image_index]).sum(1) - own
    return torch.where(others > 0, likeness / others.clamp_min(1), torch.nan)
