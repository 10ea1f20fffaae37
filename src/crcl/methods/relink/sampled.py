"""Log-ratios where there are too many images to compare every caption with each: from a random sample of images.

The sum over all images in the softmax of `posterior` is the shown image's term plus the mean term of the sampled
images, times their number. This is unbiased. With S sampled images its relative standard error is about
sqrt((exp(v / τ²) - 1) / S) for similarities of variance v: a few percent, which is little beside the ratios of matches,
which are in the hundreds. Other images that a caption may belong to are searched in the sample alone.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from crcl.methods.relink import posterior
from crcl.methods.relink.cca import Projections
from crcl.methods.relink.linear import LinearModel, image_vectors, text_vectors
from crcl.methods.relink.posterior import Prior, Ratios

EXACT = 100_000
"""Most images that every caption is compared with."""
ROUNDS = 3
"""Rounds of fits and beliefs: with so many pairs further ones change little."""
IMAGES, CAPTIONS, TRIED = 8192, 4096, 500
"""Images in the sample; captions that offsets are taken from, and that the temperature is fitted on, of each fold."""
_BLOCK = 4096
_STREAM = 0x5A3F  # keeps the random numbers of samples apart from others drawn with the same seed


def judge(
    model: LinearModel, projections: list[Projections], *, near: float | None = None, seed: int = 0
) -> tuple[Ratios, Prior]:
    """Log-ratios of all captions, each by the model of its fold, at the temperature that explains a sample best."""
    rng = np.random.default_rng([_STREAM, seed])
    folds = [_Fold(model, one, fold, rng) for fold, one in enumerate(projections)]
    tried = [rng.permutation(fold.fitted)[:TRIED] for fold in folds]

    def try_temperature(temperature: float) -> np.ndarray:
        pairs = zip(folds, tried, strict=True)
        return np.concatenate([fold.ratios(rows, temperature).shown for fold, rows in pairs])

    prior = posterior.fit_prior(try_temperature, near=near)
    found = Ratios.empty(len(model.shown.images), posterior.OTHERS)
    for fold in folds:
        for part in np.array_split(fold.rows, max(len(fold.rows) // _BLOCK, 1)):
            own = fold.ratios(part, prior.temperature)
            found.shown[part], found.images[part], found.others[part] = own.shown, own.images, own.others
    rate, _ = posterior.fit_rate(found.shown[model.shown.fitted])
    return found, Prior(prior.temperature, rate)


class _Fold:
    """The captions of a fold with their judge, a sample of images, and one of captions."""

    def __init__(self, model: LinearModel, projections: Projections, fold: int, rng: np.random.Generator) -> None:
        self.model = model
        self.projections = projections
        self.rows = np.flatnonzero(model.shown.folds == fold)
        self.fitted = self.rows[model.shown.fitted[self.rows]]
        self.numbers = np.sort(rng.permutation(len(model.images))[:IMAGES])
        self.images = image_vectors(model.images, projections, self.numbers)
        self.asked = np.sort(rng.permutation(self.fitted)[:CAPTIONS])
        self.texts = text_vectors(model.texts, projections, self.asked)
        self.texts_show = torch.from_numpy(model.shown.images[self.asked])
        self.offsets: dict[float, Tensor] = {}

    def ratios(self, rows: np.ndarray, temperature: float) -> Ratios:
        """Log-ratios of some captions of the fold."""
        if temperature not in self.offsets:
            self.offsets[temperature] = self._offsets(self.images, self.numbers, temperature)
        offsets = self.offsets[temperature]
        number, uniform = len(self.model.images), float(np.log(len(self.model.images)))
        shown = self.model.shown.images[rows]
        texts = text_vectors(self.model.texts, self.projections, rows)
        own_images = image_vectors(self.model.images, self.projections, shown)
        own = (texts * own_images).sum(1) / temperature - self._offsets(own_images, shown, temperature)
        logits = (texts @ self.images.T).div_(temperature).sub_(offsets)  # (rows, sample)
        is_shown = torch.from_numpy(self.numbers) == torch.from_numpy(shown)[:, None]
        logits.masked_fill_(is_shown, -torch.inf)
        left = (len(self.numbers) - is_shown.sum(1)).clamp_min(1)
        total = torch.logaddexp(own, logits.logsumexp(1) + np.log(number - 1) - left.log())
        best, which = logits.topk(posterior.OTHERS, dim=1)
        scale = uniform - total
        return Ratios(
            (own + scale).numpy(), self.numbers[which.numpy()], (best + scale[:, None]).clamp_min(-1e4).numpy()
        )

    def _offsets(self, images: Tensor, numbers: np.ndarray, temperature: float) -> Tensor:
        """a(i) of some images, from the captions asked; those that are shown with i do not count. (images,)"""
        show = torch.from_numpy(numbers)
        parts = []
        for rows in _slices(len(images), 1024):
            logits = (images[rows] @ self.texts.T).div_(temperature)
            same = show[rows, None] == self.texts_show
            left = (len(self.asked) - same.sum(1)).clamp_min(1)
            parts.append(logits.masked_fill_(same, -torch.inf).logsumexp(1) - left.log())
        return torch.cat(parts)


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, start + size)
