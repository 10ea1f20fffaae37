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
_SPREAD = 1e-6  # least variance of beliefs


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
        """(N,) bool, whether a pair is one of the data; decoys are not."""
        return np.arange(len(self.images)) < len(self.images) - len(self.originals)

    @property
    def taught(self) -> np.ndarray:
        """(N,) bool, whether a pair's caption and image are fitted to each other.

        Decoys are not, nor the pairs whose captions they repeat: a decoy is then judged as a mismatched caption is, by
        a model that has not seen this caption, but may have seen the image that it belongs to with other captions.
        """
        found = self.fitted
        found[self.originals] = False
        return found


@dataclass(frozen=True)
class FoldVectors:
    """The captions of a fold, and the unit vectors by which they are judged."""

    rows: np.ndarray
    """(n,) int64, the captions of the fold"""
    images: Tensor
    """(M, D), all images"""
    texts: Tensor
    """(N, D), all captions"""

    def to(self, device: torch.device) -> "FoldVectors":
        """The same on another device."""
        return FoldVectors(self.rows, self.images.to(device), self.texts.to(device))


@dataclass(frozen=True)
class Network:
    """Unit vectors of a trained network, whose similarities count beside those of the linear model.

    It was trained on the very pairs that it judges, siblings at one image alike, so it does not tell how well these
    agree: siblings help the linear model alone.
    """

    images: Tensor
    """(M, D)"""
    texts: Tensor
    """(N, D)"""
    share: float
    """Share of its similarities in the sum."""

    def beside(self, sims: Similarities, rows: Tensor) -> Similarities:
        """The similarities of some captions, together with the network's."""
        own, other = self.share**0.5, (1 - self.share) ** 0.5
        images = torch.cat([self.images * own, sims.images * other], dim=1)
        texts = torch.cat([self.texts[rows] * own, sims.texts * other], dim=1)
        replaced = None
        if sims.replaced is not None:
            places, columns, values = sims.replaced
            mine = (self.texts[rows[places]] * self.images[columns]).sum(1)
            replaced = places, columns, self.share * mine + (1 - self.share) * values
        return Similarities(images, texts, sims.shown, replaced=replaced)


@dataclass(frozen=True)
class Siblings:
    """What is known of siblings before a judgement."""

    beliefs: np.ndarray
    """(N,) float32, belief in each shown pair"""
    together: float
    """How far siblings share their fate: 0 not at all, 1 entirely."""


def shared_fate(beliefs: np.ndarray, images: np.ndarray) -> float:
    """Intraclass correlation of the beliefs in captions of one image, in [0, 1].

    It is 0 if no image has two captions, or if all beliefs are nearly equal: then no caption seems to have gone astray.
    """
    count = np.bincount(images)
    several = count > 1
    pairs = float((count * (count - 1))[several].sum())
    centred = beliefs.astype(np.float64) - beliefs.mean(dtype=np.float64)
    variance = float(np.mean(centred**2))
    if not pairs or variance <= _SPREAD:
        return 0.0
    products = np.bincount(images, centred) ** 2 - np.bincount(images, centred**2)
    return float(np.clip(products[several].sum() / pairs / variance, 0, 1))


def compare(fold: FoldVectors, shown: Shown, rows: np.ndarray, siblings: Siblings | None = None) -> Similarities:
    """Similarities of some captions of a fold with all images, with the help of siblings if these are given.

    A caption never helps itself: where it meets the image that it is shown with, it is taken out of that image's
    siblings. A decoy repeats the caption of another pair, which is taken out likewise: of the image that
    it belongs to, which is the shown one if only a word is exchanged.
    """
    device = fold.images.device
    own = torch.from_numpy(shown.images[rows]).to(device)
    texts = fold.texts[torch.from_numpy(rows).to(device)]
    if siblings is None:
        return Similarities(fold.images, texts, own)
    everyone = _Sums.of(fold, shown, siblings)
    decoys = np.flatnonzero(~shown.fitted[rows])
    repeated = shown.originals[rows[decoys] - (len(shown.images) - len(shown.originals))]
    changed = shown.images[repeated] == shown.images[rows[decoys]]  # a word of the image's own caption
    taken, mine = rows.copy(), shown.fitted[rows]
    taken[decoys[changed]], mine[decoys[changed]] = repeated[changed], True
    numbers = torch.from_numpy(taken).to(device)
    kept = torch.from_numpy(mine).to(texts)[:, None] * fold.texts[numbers]
    queries = _unit(texts + siblings.together * (everyone.texts[own] - kept))
    places = torch.arange(len(rows), device=device)
    columns, values = own, (queries * everyone.without(numbers, own)).sum(1)
    if not changed.all():
        originals = torch.from_numpy(repeated[~changed]).to(device)
        asking = torch.from_numpy(decoys[~changed]).to(device)
        belong = torch.from_numpy(shown.images).to(device)[originals]
        places, columns = torch.cat([places, asking]), torch.cat([columns, belong])
        values = torch.cat([values, (queries[asking] * everyone.without(originals, belong)).sum(1)])
    return Similarities(_unit(everyone.images), queries, own, replaced=(places, columns, values))


@dataclass(frozen=True)
class _Sums:
    """Images with the captions that are shown with them."""

    fold: FoldVectors
    images: Tensor
    """(M, D), vectors of images plus those of their captions, weighted"""
    texts: Tensor
    """(M, D), sums of the vectors of their captions"""
    weights: Tensor
    """(N,), weights of captions; 0 for decoys, and where an image has no second caption"""
    left: Tensor
    """(N,), by how much the other captions of an image count more if a caption is taken out"""

    @classmethod
    def of(cls, fold: FoldVectors, shown: Shown, siblings: Siblings) -> "_Sums":
        device = fold.images.device
        count = np.bincount(shown.images[shown.fitted], minlength=len(fold.images))[shown.images]
        counts = shown.fitted & (count > 1)
        strength = STRENGTH * (1 - siblings.together)
        weights = torch.from_numpy(np.where(counts, siblings.beliefs * strength, 0).astype(np.float32)).to(device)
        left = torch.from_numpy(np.where(counts, count / np.maximum(count - 1, 1), 1).astype(np.float32)).to(device)
        belong = torch.from_numpy(shown.images).to(device)
        fitted = torch.from_numpy(shown.fitted).to(fold.texts)
        return cls(
            fold,
            fold.images.index_add(0, belong, weights[:, None] * fold.texts),
            torch.zeros_like(fold.images).index_add_(0, belong, fitted[:, None] * fold.texts),
            weights,
            left,
        )

    def without(self, captions: Tensor, images: Tensor) -> Tensor:
        """Unit vectors of images without some of their captions, one each."""
        own = self.fold.images[images]
        others = self.images[images] - own - self.weights[captions, None] * self.fold.texts[captions]
        return _unit(own + self.left[captions, None] * others)


def _unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=1)
