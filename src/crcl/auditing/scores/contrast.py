"""negCLIPLoss (NeurIPS 2024): the cosine of a pair, less what its image and its caption score with random others.

For a batch of b pairs with cosines c_ij of image i and caption j, and a temperature T,

    score_i = c_ii - T/2 · [log mean_j exp(c_ij / T) + log mean_j exp(c_ji / T)]

so that a caption that fits everything, or an image that everything fits, gains nothing by it. The published form has
sums instead of means: with batches of one size it is the same but for a constant, and pairs in a smaller batch do not
gain. The mean over several passes is taken, each with other random batches.
"""

import math

import torch
from torch import Tensor

TEMPERATURE = 0.01
BATCH, PASSES = 4096, 5
_LEAST = 1e-20  # smaller sums have lost terms that are too small for float32


def contrast(
    images: Tensor,
    texts: Tensor,
    image_index: Tensor,
    *,
    temperature: float = TEMPERATURE,
    batch: int = BATCH,
    passes: int = PASSES,
    seed: int = 0,
) -> Tensor:
    """How much better a pair fits than random pairs with its image or its caption, (N,).

    Args:
        images: Unit vectors of M images, `(M, D)`.
        texts: Unit vectors of N captions, `(N, D)`.
        image_index: The image shown with each caption, `(N,)`.
        temperature: T, in the scale of cosines.
        batch: Pairs in a batch. All batches have the same size but for one pair.
        passes: Random divisions into batches.
        seed: Seed of the divisions.
    """
    generator = torch.Generator().manual_seed(seed)
    total = texts.new_zeros(len(texts), dtype=torch.float64)
    for _ in range(passes):
        order = torch.randperm(len(texts), generator=generator).to(texts.device)
        for rows in order.tensor_split(math.ceil(len(texts) / batch)):
            total[rows] += batch_contrast(images[image_index[rows]], texts[rows], temperature).double()
    return (total / passes).to(texts.dtype)


def batch_contrast(images: Tensor, texts: Tensor, temperature: float) -> Tensor:
    """The score of each pair of one batch: image i with caption i. (b,)"""
    sims = (images @ texts.T).div_(temperature)
    own, largest = sims.diagonal().clone(), sims.max()
    likeness = sims.sub_(largest).exp_()  # once, for rows and columns
    of_images = _log_sums(likeness.sum(1), largest, images, texts, temperature)
    of_texts = _log_sums(likeness.sum(0), largest, texts, images, temperature)
    return temperature * (own - (of_images + of_texts) / 2 + math.log(len(sims)))


def _log_sums(sums: Tensor, largest: Tensor, ones: Tensor, others: Tensor, temperature: float) -> Tensor:
    """The logarithms of sums `(b,)` of exponentials that `largest` was subtracted from; exact where they are tiny."""
    found = sums.log() + largest
    tiny = (sums < _LEAST).nonzero()[:, 0]
    if len(tiny):
        found[tiny] = (ones[tiny] @ others.T / temperature).logsumexp(1)
    return found
