"""Log-ratios where there are too many images to compare every caption with each: the best images and a random sample.

The sum over all images in the softmax of `posterior` is taken as the terms of the shown image and of the most similar
ones that an index finds, plus the mean term of sampled images that are neither, times the number of such images. This
is unbiased whatever the index misses: what is missed makes the error larger. If no term that is left is larger than the
smallest of the K found, the relative standard error of the sum is at most sqrt(M / (S K)) / 2 with S sampled of M
images. It is far smaller where few images carry the sum, as they do for a caption whose image is in the data.

A caption is searched for only if its shown image is in doubt: if an image as similar as can be, were there one, would
take the belief away. Offsets a(i) are means over a random sample of captions without the most similar one, where
`posterior` leaves out the caption that is judged.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crcl.methods.relink import posterior
from crcl.methods.relink.cca import Projections
from crcl.methods.relink.linear import LinearModel, image_vectors, text_vectors
from crcl.methods.relink.posterior import Prior, Ratios
from crcl.methods.relink.search import Best, Index, search_all

EXACT = 100_000
"""Most images that every caption is compared with."""
ROUNDS = 2
"""Rounds of fits and beliefs: with so many pairs further ones change little."""
IMAGES, CAPTIONS = 8192, 2048
"""Images in the sample, and captions that offsets are taken from, of each fold."""
FOUND = 32
"""Most similar images that are searched for."""
TRIED = 2000
"""Captions of the first fold that the temperature is fitted on; their best images are searched for exactly."""
RECALL, CLOSE = 0.995, 0.1
"""Share of doubtful tried captions that the index must give the log-ratio of the exact search, within `CLOSE`."""
FEWEST_CELLS, MOST_CELLS = 8, 128
"""Cells of the index to search: doubled until `RECALL` is reached."""
SURE = float(np.log(1000))
"""Log-ratio from which on a shown image is believed whatever the rate of mismatches."""
_CELLS = 2**22  # similarities computed at a time: 16 MB
_NEVER = -1e4  # log-ratio of images that are not known
_STREAM = 0x5A3F  # keeps the random numbers of samples apart from others drawn with the same seed


def judge(
    model: LinearModel, projections: list[Projections], *, near: float | None = None, seed: int = 0
) -> tuple[Ratios, Prior]:
    """Log-ratios of all captions, each by the model of its fold, at the temperature that explains a sample best."""
    found = Ratios.empty(len(model.shown.images), min(posterior.OTHERS, len(model.images) - 1))
    chosen: Choice | None = None
    for number, one in enumerate(projections):
        fold = Fold(model, one, number, seed=seed)
        index = Index(fold.images, seed=seed)
        chosen = chosen or choose(fold, index, near=near, seed=seed)
        judge_fold(fold, index, chosen, found)
        del fold, index  # one is in memory at a time
    assert chosen is not None
    rate, _ = posterior.fit_rate(found.shown[model.shown.fitted])
    return found, Prior(chosen.temperature, rate)


def judge_fold(fold: "Fold", index: Index, chosen: "Choice", found: Ratios) -> None:
    """Log-ratios of the captions of a fold, written into those of all captions."""
    offsets = fold.all_offsets(chosen.temperature)
    judged = fold.judge(np.arange(len(fold.rows)), chosen.temperature, offsets)
    judged.write(fold.rows, found)
    doubtful = np.flatnonzero(judged.doubtful)
    if len(doubtful):
        best = index.search(fold.texts[doubtful], FOUND, cells=chosen.cells)
        fold.judge(doubtful, chosen.temperature, offsets, best).write(fold.rows[doubtful], found)


def choose(fold: "Fold", index: Index, *, near: float | None = None, seed: int = 0) -> "Choice":
    """The temperature that explains a sample of captions best, and the cells to search."""
    tried = np.random.default_rng([_STREAM, seed]).permutation(fold.fitted)[:TRIED]
    best = search_all(fold.images, fold.texts[tried], FOUND)
    needed = torch.cat([fold.sample, fold.shown[tried], best.numbers.flatten()]).unique()

    def try_temperature(temperature: float) -> np.ndarray:
        return fold.judge(tried, temperature, fold.offsets(temperature, needed), best).ratios.shown

    temperature = posterior.fit_prior(try_temperature, near=near).temperature
    offsets = fold.all_offsets(temperature)
    doubtful = np.flatnonzero(fold.judge(tried, temperature, offsets).doubtful)
    exact = fold.judge(tried, temperature, offsets, best).ratios.shown[doubtful]
    cells, recall = FEWEST_CELLS, 1.0
    while len(doubtful):
        found = index.search(fold.texts[tried[doubtful]], FOUND, cells=cells)
        ratios = fold.judge(tried[doubtful], temperature, offsets, found).ratios.shown
        recall = float(np.mean(np.abs(ratios - exact) <= CLOSE))
        if recall >= RECALL or cells >= min(MOST_CELLS, index.cells):
            break
        cells *= 2
    return Choice(temperature, cells, recall)


@dataclass(frozen=True)
class Choice:
    """What is chosen on captions of the first fold, for all."""

    temperature: float
    cells: int
    """Cells of the index to search."""
    recall: float
    """Share of the doubtful captions tried that so many cells give the log-ratio of the exact search."""


@dataclass(frozen=True)
class Judged:
    """Log-ratios of n captions."""

    ratios: Ratios
    doubtful: np.ndarray
    """(n,) bool, whether an image as similar as can be would take away the belief in the shown one"""

    @classmethod
    def join(cls, parts: "list[Judged]") -> "Judged":
        """The log-ratios of captions one after the other."""
        names = vars(parts[0].ratios)
        ratios = {name: np.concatenate([getattr(part.ratios, name) for part in parts]) for name in names}
        return cls(Ratios(**ratios), np.concatenate([part.doubtful for part in parts]))

    def write(self, rows: np.ndarray, found: Ratios) -> None:
        """Write the log-ratios into those of all captions, at these rows."""
        for name, values in vars(self.ratios).items():
            getattr(found, name)[rows] = values


class Fold:
    """The captions of a fold with their judge, a sample of images, and one of captions."""

    def __init__(self, model: LinearModel, projections: Projections, fold: int, *, seed: int) -> None:
        rng = np.random.default_rng([_STREAM, seed, fold])
        self.rows = np.flatnonzero(model.shown.folds == fold)
        self.fitted = np.flatnonzero(model.shown.fitted[self.rows])  # places in `rows`, as everywhere below
        self.shown = torch.from_numpy(model.shown.images[self.rows])
        self.images = image_vectors(model.images, projections)
        self.texts = text_vectors(model.texts, projections, self.rows)
        self.sample = torch.from_numpy(np.sort(rng.permutation(len(model.images))[:IMAGES]))
        self.sampled_images = self.images[self.sample]
        self.place = _places(self.sample, len(self.images))
        asked = np.sort(rng.permutation(self.fitted)[:CAPTIONS])
        self.asked, self.asked_show = self.texts[asked], self.shown[asked]
        self._offsets: dict[float, Tensor] = {}

    def all_offsets(self, temperature: float) -> Tensor:
        """a(i) of all images, computed once for a temperature. (M,)"""
        if temperature not in self._offsets:
            self._offsets = {temperature: self.offsets(temperature)}
        return self._offsets[temperature]

    def offsets(self, temperature: float, numbers: Tensor | None = None) -> Tensor:
        """a(i) of all images, or of some; the others stay unknown. (M,)

        Captions shown with i do not count, nor the most similar one: it may be a stray caption that belongs to i.
        """
        chosen = torch.arange(len(self.images)) if numbers is None else numbers
        place = _places(chosen, len(self.images))[self.asked_show]  # of the image that each caption shows
        asked = self.asked.T / temperature
        known = torch.empty(len(chosen))
        for part in _parts(len(chosen), len(self.asked)):
            own = ((place >= part.start) & (place < part.stop)).nonzero()[:, 0]
            logits = (self.images[part] if numbers is None else self.images[chosen[part]]) @ asked
            logits[place[own] - part.start, own] = -torch.inf
            logits.scatter_(1, logits.argmax(1, keepdim=True), -torch.inf)
            known[part] = logits.logsumexp(1)
        shown = torch.bincount(place[place >= 0], minlength=len(chosen))
        known = known.clamp_min(-1 / temperature) - (len(self.asked) - shown - 1).clamp_min(1).log()
        return torch.full((len(self.images),), torch.nan).index_copy_(0, chosen, known)

    def judge(self, captions: np.ndarray, temperature: float, offsets: Tensor, best: Best | None = None) -> Judged:
        """Log-ratios of some captions of the fold, of other images only where they were searched for.

        Args:
            captions: Their places in the fold.
            temperature: τ.
            offsets: a(i), `(M,)`.
            best: The most similar images of these captions, if they were searched for.
        """
        parts = [
            self._judge(captions[part], temperature, offsets, None if best is None else best[part])
            for part in _parts(len(captions), len(self.sample))
        ]
        return Judged.join(parts)

    def _judge(self, captions: np.ndarray, temperature: float, offsets: Tensor, best: Best | None) -> Judged:
        images, others = len(self.images), min(posterior.OTHERS, len(self.images) - 1)
        shown, texts = self.shown[captions], self.texts[captions] / temperature
        own = (texts * self.images[shown]).sum(1) - offsets[shown]
        if best is None:
            numbers, found = shown.new_empty(len(texts), 0), texts.new_empty(len(texts), 0)
        else:
            numbers = best.numbers.masked_fill(best.numbers == shown[:, None], -1)
            found = (best.similarities / temperature - offsets[numbers]).masked_fill(numbers < 0, -torch.inf)
        rest = self._rest(texts, offsets, torch.cat([shown[:, None], numbers], dim=1))
        rest += (images - 1 - found.isfinite().sum(1)).log()
        total = torch.cat([own[:, None], found, rest[:, None]], dim=1).logsumexp(1)
        scale = float(np.log(images)) - total
        # where fewer are known, an image that is not believed at all takes their places
        found = torch.nn.functional.pad(found, (0, others), value=-torch.inf)
        numbers = torch.nn.functional.pad(numbers, (0, others)).where(found.isfinite(), (shown[:, None] + 1) % images)
        best_found, place = found.topk(others, dim=1)
        perfect = 1 / temperature - offsets[self.sample].mean()
        doubtful = own + float(np.log(images)) - torch.logaddexp(total, perfect) < SURE
        ratios = Ratios(
            (own + scale).numpy(),
            numbers.gather(1, place).numpy(),
            (best_found + scale[:, None]).clamp_min(_NEVER).numpy(),
        )
        return Judged(ratios, doubtful.numpy())

    def _rest(self, texts: Tensor, offsets: Tensor, known: Tensor) -> Tensor:
        """Log of the mean term of sampled images that are not `known` `(n, K)`, for captions divided by τ. (n,)"""
        logits = torch.addmm(-offsets[self.sample], texts, self.sampled_images.T)
        place = self.place[known].masked_fill(known < 0, -1)
        row, column = (place >= 0).nonzero(as_tuple=True)
        logits[row, place[row, column]] = -torch.inf
        left = len(self.sample) - (place >= 0).sum(1)
        return logits.logsumexp(1) - left.clamp_min(1).log()


def _places(numbers: Tensor, images: int) -> Tensor:
    """The place of each image among `numbers`, -1 if it is not there. (M,)"""
    return torch.full((images,), -1).index_copy_(0, numbers, torch.arange(len(numbers)))


def _parts(rows: int, columns: int) -> list[slice]:
    """Slices of the rows of a matrix of so many columns."""
    size = max(_CELLS // columns, 1)
    return [slice(start, start + size) for start in range(0, max(rows, 1), size)]
