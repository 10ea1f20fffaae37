"""Captions of one image help each other, as far as they are right or wrong one by one.

Captions that are shown with the same image are siblings. If captions go astray one by one, the believed siblings of a
caption describe what the image shows, and count like a part of the image. If whole images go astray with all their
captions, siblings agree with each other whether right or wrong; then they are asked together. How far the fates of
siblings agree is measured by the intraclass correlation of their beliefs, as a judge without siblings made them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crcl.methods.relink.posterior import Similarities

STRENGTH = 0.5
"""Weight of a fully believed caption beside the vector of its image."""


@dataclass(frozen=True)
class Shown:
    """The N pairs as they are shown."""

    images: np.ndarray
    """(N,) int64, the image shown with each caption"""
    folds: np.ndarray
    """(N,) int64, the fold of each pair"""
    originals: np.ndarray
    """(decoys,) int64, the pair whose caption each decoy repeats; the decoys are the last pairs"""

    @property
    def fitted(self) -> np.ndarray:
        """(N,) bool, whether a pair takes part in fits; decoys do not."""
        return np.arange(len(self.images)) < len(self.images) - len(self.originals)


@dataclass(frozen=True)
class FoldVectors:
    """The captions of a fold, and the unit vectors by which they are judged."""

    rows: np.ndarray
    """(n,) int64, the captions of the fold"""
    images: Tensor
    """(M, D), all images"""
    texts: Tensor
    """(N, D), all captions"""


@dataclass(frozen=True)
class Siblings:
    """What is known of siblings before a judgement."""

    beliefs: np.ndarray
    """(N,) float32, belief in each shown pair"""
    together: float
    """How far siblings share their fate: 0 not at all, 1 entirely."""


def shared_fate(beliefs: np.ndarray, images: np.ndarray) -> float:
    """Intraclass correlation of the beliefs in captions of one image, in [0, 1]; 0 if no image has two captions."""
    count = np.bincount(images)
    several = count > 1
    pairs = float((count * (count - 1))[several].sum())
    centred = beliefs.astype(np.float64) - beliefs.mean(dtype=np.float64)
    variance = float(np.mean(centred**2))
    if not pairs or variance <= 1e-12:
        return 0.0
    products = np.bincount(images, centred) ** 2 - np.bincount(images, centred**2)
    return float(np.clip(products[several].sum() / pairs / variance, 0, 1))


def compare(fold: FoldVectors, shown: Shown, rows: np.ndarray, siblings: Siblings | None = None) -> Similarities:
    """Similarities of some captions of a fold with all images, with the help of siblings if these are given.

    A caption never helps itself: where it meets the image that it is shown with, it is taken out of that image's
    siblings. A decoy repeats the caption of another pair, which is taken out likewise.
    """
    device = fold.images.device
    own = torch.from_numpy(shown.images[rows]).to(device)
    texts = fold.texts[torch.from_numpy(rows).to(device)]
    if siblings is None:
        return Similarities(fold.images, texts, own)
    fitted = torch.from_numpy(np.flatnonzero(shown.fitted)).to(device)
    strength = STRENGTH * (1 - siblings.together)
    weights = torch.from_numpy(np.where(shown.fitted, siblings.beliefs, 0).astype(np.float32) * strength).to(device)
    of_image = torch.from_numpy(shown.images).to(device)
    sums = fold.images.index_add(0, of_image[fitted], weights[fitted, None] * fold.texts[fitted])
    everyone = torch.zeros_like(fold.images).index_add_(0, of_image[fitted], fold.texts[fitted])
    numbers = torch.from_numpy(rows).to(device)
    mine = torch.from_numpy(shown.fitted[rows]).to(texts)[:, None]
    queries = _unit(texts + siblings.together * (everyone[own] - mine * texts))

    def without(who: Tensor, images: Tensor, asking: Tensor) -> Tensor:
        """Similarity of captions with images from whose siblings the captions `who` are taken out."""
        left = sums[images] - weights[who, None] * fold.texts[who]
        return (queries[asking] * _unit(left)).sum(1)

    everything = torch.arange(len(rows), device=device)
    places, columns, values = [everything], [own], [without(numbers, own, everything)]
    decoys = np.flatnonzero(~shown.fitted[rows])
    if len(decoys):
        first = len(shown.images) - len(shown.originals)
        originals = torch.from_numpy(shown.originals[rows[decoys] - first]).to(device)
        asking = torch.from_numpy(decoys).to(device)
        places.append(asking)
        columns.append(of_image[originals])
        values.append(without(originals, of_image[originals], asking))
    replaced = torch.cat(places), torch.cat(columns), torch.cat(values)
    return Similarities(_unit(sums), queries, own, replaced=replaced)


def _unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=1)
