"""The linear model of relink: canonical correlations of pooled features and words, fitted out of fold.

Pairs are divided into folds by the image that they show. A caption is judged by a model fitted on the other folds, so
that neither it nor the other captions of its image have shaped its judge. In each round every caption gets beliefs
(`posterior`), and the models are fitted again on all pairs, shown and suggested, weighted by these. Only the
cross-covariance depends on the weights: the covariances are factorised once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from crcl.errors import InputError
from crcl.methods.relink import cca, posterior
from crcl.methods.relink.cca import Projections
from crcl.methods.relink.inputs import Rows, blocks, unit
from crcl.methods.relink.posterior import Beliefs, Prior, Ratios, Similarities
from crcl.methods.relink.siblings import FoldVectors, Network, Shown, Siblings, compare

FOLDS, DIMENSIONS = 4, 128
ALONE, ROUNDS = 3, 5
"""Rounds of fits and beliefs without the help of siblings, and in all."""
VECTORS, WORDS = cca.Ridge(relative=1.0), cca.Ridge(absolute=1e-3)
"""Ridges of vectors (of images, or of captions), and of bags of words."""
SAMPLE = 2000
"""Captions of each fold that the temperature is fitted on."""
_LEAST = 1e-3  # beliefs in other images below this are left out of fits
_STREAM = 0x11EA  # keeps the random numbers of folds apart from others drawn with the same seed


def divide(images: np.ndarray, originals: np.ndarray, *, folds: int, seed: int) -> Shown:
    """Divide the pairs into folds by image.

    Args:
        images: The image shown with each caption, decoys last.
        originals: The pair whose caption each decoy repeats; the images of both are in one fold, so that the judge of a
            decoy has seen neither its caption nor its image.
        folds: Number of folds, at least 2.
        seed: Seed of the division.
    """
    shown, place = np.unique(images, return_inverse=True)
    if len(shown) < 2:
        raise InputError("method relink judges a pair by those of other images, and there is only one image")
    of_image = np.random.default_rng([_STREAM, seed]).permutation(len(shown)) % folds
    of_pair = of_image[place]
    return Shown(images, of_pair, originals)


class LinearModel:
    """Projections of images and captions to one space, one for each fold, and the beliefs that they lead to."""

    def __init__(
        self,
        images: Rows,
        texts: Rows,
        shown: Shown,
        *,
        dimensions: int = DIMENSIONS,
        most: int | None = None,
        seed: int = 0,
    ) -> None:
        """Read the vectors once, for their covariances.

        Args:
            images: Vectors of images.
            texts: Vectors of captions, or their bags of words.
            shown: The pairs.
            dimensions: Dimensions of the space.
            most: Of more pairs than this, a random sample of so many is fitted; None: all are.
            seed: Seed of that sample, and of others.
        """
        self.images = images
        self.texts = texts
        self.shown = shown
        self.dimensions = dimensions
        self.seed = seed
        self.folds = int(shown.folds.max(initial=0)) + 1
        rng = np.random.default_rng([_STREAM, seed, 2])
        self.read = _sample(shown.fitted, most, rng)
        """(N,) bool, the pairs that fits read"""
        some_images = np.flatnonzero(_sample(np.ones(len(images), dtype=bool), most, rng))
        self.image_side = _moments(images, some_images, VECTORS)
        self.text_side = _moments(texts, np.flatnonzero(self.read), WORDS if texts.sparse else VECTORS)

    def fit(self, beliefs: Beliefs) -> list[Projections]:
        """A model for each fold, fitted on the other folds, weighted by the beliefs."""
        return self._fits([self._products(beliefs, fold) for fold in range(self.folds)])

    def fit_all(self, beliefs: Beliefs) -> Projections:
        """One model of all pairs, to match images and captions that are not among them."""
        return self._fit(_Products.add([self._products(beliefs, fold) for fold in range(self.folds)]))

    def fit_both(self, beliefs: Beliefs) -> tuple[list[Projections], Projections]:
        """The models of `fit`, and that of `fit_all`."""
        parts = [self._products(beliefs, fold) for fold in range(self.folds)]
        return self._fits(parts), self._fit(_Products.add(parts))

    def _fits(self, parts: "list[_Products]") -> list[Projections]:
        # added up, not subtracted from a total: no rounding of the fold's own products may reach its judge
        return [self._fit(_Products.add([*parts[:fold], *parts[fold + 1 :]])) for fold in range(self.folds)]

    def fold_vectors(self, fold: int, model: Projections) -> FoldVectors:
        """The vectors by which the captions of a fold are judged."""
        return FoldVectors(
            np.flatnonzero(self.shown.folds == fold),
            image_vectors(self.images, model),
            text_vectors(self.texts, model),
        )

    def _products(self, beliefs: Beliefs, fold: int) -> "_Products":
        """Weighted sums over the pairs of one fold, of images and captions less their shift."""
        image_shift, text_shift = self._shifts
        rows = np.flatnonzero((self.shown.folds == fold) & self.shown.taught & self.read)
        found = _Products.zeros(self.images.size, self.texts.size)
        for part in np.array_split(rows, max(len(rows) // 4096, 1)):
            weights, numbers = _weights(beliefs, self.shown.images, part)
            if not len(numbers):
                continue
            mixed = weights @ (
                self.images.read(numbers) - image_shift
            )  # the believed images of each caption, (rows, P)
            texts = self.texts.read(part) if self.texts.sparse else self.texts.read(part) - text_shift
            found.products += (texts.T @ mixed).T
            found.weight += float(weights.sum())
            found.images += mixed.sum(0, dtype=np.float64)
            found.texts += texts.T @ np.asarray(weights.sum(1)).ravel()
        return found

    @property
    def _shifts(self) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted before float32 products, so that means far from 0 round nothing away; not from bags."""
        texts = self.text_side.mean.astype(np.float32)
        return self.image_side.mean.astype(np.float32), np.zeros_like(texts) if self.texts.sparse else texts

    def _fit(self, found: "_Products") -> Projections:
        image_shift, text_shift = self._shifts
        sums = cca.Sums(found.images, found.texts)
        weight = max(found.weight, 1e-12)
        means = self.image_side.mean - image_shift, self.text_side.mean - text_shift
        cross = cca.cross_covariance(found.products, weight, *means, sums)
        return cca.fit(cross, self.image_side, self.text_side, dimensions=self.dimensions)


@dataclass
class _Products:
    """Weighted sums over pairs: outer products, weights, images, texts."""

    products: np.ndarray
    weight: float
    images: np.ndarray
    texts: np.ndarray

    @classmethod
    def zeros(cls, images: int, texts: int) -> "_Products":
        return cls(np.zeros((images, texts)), 0.0, np.zeros(images), np.zeros(texts))

    @classmethod
    def add(cls, parts: "list[_Products]") -> "_Products":
        total = cls.zeros(*parts[0].products.shape)
        for part in parts:
            total.products += part.products
            total.weight += part.weight
            total.images += part.images
            total.texts += part.texts
        return total


def _sample(among: np.ndarray, most: int | None, rng: np.random.Generator) -> np.ndarray:
    """At most so many at random of those that are marked, as marks. (N,) bool"""
    if most is None or among.sum() <= most:
        return among
    found = np.zeros_like(among)
    found[rng.permutation(np.flatnonzero(among))[:most]] = True
    return found


def all_shown(pairs: int) -> Beliefs:
    """Full belief in every shown pair, and in no other."""
    return Beliefs(np.ones(pairs, np.float32), np.empty((pairs, 0), np.int64), np.empty((pairs, 0), np.float32))


def judge(
    vectors: Sequence[FoldVectors],
    shown: Shown,
    siblings: Siblings | None = None,
    network: Network | None = None,
    *,
    others: int = posterior.OTHERS,
    near: float | None = None,
    seed: int = 0,
) -> tuple[Ratios, Prior]:
    """Log-ratios of all captions, each by the vectors of its fold, at the temperature that explains a sample best.

    Args:
        vectors: The vectors by which the captions of each fold are judged.
        shown: The pairs.
        siblings: What is known of the other captions of an image, if these are to help.
        network: Vectors of a network that judges beside the linear model.
        others: Number of other images to keep for each caption.
        near: A temperature to start the search from.
        seed: Seed of the sample.
    """

    def similarities(fold: FoldVectors, rows: np.ndarray) -> Similarities:
        sims = compare(fold, shown, rows, siblings)
        return sims if network is None else network.beside(sims, torch.from_numpy(rows).to(fold.images.device))

    def side_by_side(rows: np.ndarray) -> np.ndarray:
        """The captions in an order in which those shown with one image stand together."""
        return rows[np.lexsort((rows, shown.images[rows]))]

    rng = np.random.default_rng([_STREAM, seed, 1])
    samples = []
    for fold in vectors:
        rows = rng.permutation(fold.rows[shown.fitted[fold.rows]])[: _sample_size(len(fold.images))]
        if len(rows):
            samples.append(similarities(fold, side_by_side(rows)))

    def try_temperature(temperature: float) -> np.ndarray:
        parts = [(sims, posterior.background(sims, temperature)) for sims in samples]
        return np.concatenate([posterior.ratios(sims, temperature, known, others=0).shown for sims, known in parts])

    prior = posterior.fit_prior(try_temperature, near=near)
    samples.clear()
    found = Ratios.empty(len(shown.images), min(others, len(vectors[0].images) - 1))
    for fold in vectors:
        rows = side_by_side(fold.rows)
        sims = similarities(fold, rows)
        counted = torch.from_numpy(shown.fitted[rows]).to(fold.images.device)
        known = posterior.background(sims, prior.temperature, None if bool(counted.all()) else counted)
        own = posterior.ratios(sims, prior.temperature, known, others=others)
        found.shown[rows], found.images[rows], found.others[rows] = own.shown, own.images, own.others
    rate, _ = posterior.fit_rate(found.shown[shown.fitted])
    return found, Prior(prior.temperature, rate)


def _sample_size(images: int) -> int:
    """Captions of a fold in the sample: fewer if there are so many images that their similarities would fill memory."""
    return max(min(SAMPLE, 2**24 // images), 100)


def image_vectors(images: Rows, model: Projections, rows: np.ndarray | None = None) -> Tensor:
    """Unit vectors of all images, or of some. (M, D) float32"""
    chosen = np.arange(len(images)) if rows is None else rows
    found = np.empty((len(chosen), model.image_weights.shape[1]), dtype=np.float32)
    for part in blocks(len(chosen)):
        found[part] = unit((images.read(chosen[part]) - model.image_mean) @ model.image_weights)
    return torch.from_numpy(found)


def text_vectors(texts: Rows, model: Projections, rows: np.ndarray | None = None) -> Tensor:
    """Unit vectors of all captions, or of some. (N, D) float32"""
    chosen = np.arange(len(texts)) if rows is None else rows
    constant = model.text_mean @ model.text_weights
    found = np.empty((len(chosen), model.text_weights.shape[1]), dtype=np.float32)
    for part in blocks(len(chosen)):
        found[part] = unit(texts.read(chosen[part]) @ model.text_weights - constant)
    return torch.from_numpy(found)


def _moments(vectors: Rows, rows: np.ndarray, ridge: cca.Ridge) -> cca.Side:
    total, squares = np.zeros(vectors.size), np.zeros((vectors.size, vectors.size))
    # about a mean far from 0, products in float32 would round small variances away
    shift = np.zeros(1, np.float32) if vectors.sparse else vectors.read(rows[:256]).mean(0).astype(np.float32)
    for part in np.array_split(rows, max(len(rows) // 4096, 1)):
        block = vectors.read(part)
        block = block if vectors.sparse else block - shift
        total += np.asarray(block.sum(0, dtype=np.float64)).ravel()
        product = block.T @ block
        squares += product.toarray() if scipy.sparse.issparse(product) else product
    return cca.Side.from_moments(len(rows), total, squares, ridge, shift=shift)


def _weights(beliefs: Beliefs, shown: np.ndarray, rows: np.ndarray) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """Beliefs of some captions in images, sparse `(len(rows), images)`, and the numbers of these images."""
    weights = np.concatenate([beliefs.shown[rows, None], beliefs.others[rows]], axis=1)
    images = np.concatenate([shown[rows, None], beliefs.images[rows]], axis=1)
    kept = weights >= _LEAST
    numbers, columns = np.unique(images[kept], return_inverse=True)
    places = np.nonzero(kept)[0]
    return scipy.sparse.csr_array((weights[kept], (places, columns)), shape=(len(rows), len(numbers))), numbers
