"""Images that every caption fits, and captions that fit every image: how well they fit random partners."""

import torch
from torch import Tensor


def offsets(images: Tensor, texts: Tensor, image_index: Tensor, *, decoys: int = 0) -> tuple[Tensor, Tensor]:
    """The mean cosine of each pair's image with all captions, and of its caption with all shown images. (N,) each

    Args:
        images: Unit vectors of M images, `(M, D)`.
        texts: Unit vectors of N captions, `(N, D)`.
        image_index: The image shown with each caption, `(N,)`.
        decoys: The last so many pairs are decoys, whose captions do not count again.
    """
    real = len(texts) - decoys
    shown = torch.unique(image_index[:real])
    return images[image_index] @ texts[:real].mean(0), texts @ images[shown].mean(0)
