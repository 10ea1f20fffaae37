"""Log-ratios where there are too many images to compare every caption with each: the best images and a random sample.

The sum over all images in the softmax of `posterior` is taken as the terms of the shown image and of the most similar
ones that an index finds, plus the mean term of sampled images that are neither, times the number of such images. This
is unbiased whatever the index misses: what is missed makes the error larger. If no term that is left is larger than the
smallest of the K found, the relative standard error of the sum is at most sqrt(M / (S K)) / 2 with S sampled of M
images. It is far smaller where few images carry the sum, as they do for a caption whose image is in the data.

One index serves all folds: it has the images as a model of all pairs sees them, and proposes candidates, which the
judge of the caption's fold then compares. A caption is searched for only if its shown image is in doubt: if an image
as similar as can be, were there one, would take the belief away. Offsets a(i) are means over a random sample of
captions without the most similar one, where `posterior` leaves out the caption that is judged.

Models are fitted on a random sample of the pairs, and the first round judges these alone, by the sample of images:
nothing but the weights of the next fit comes from it.
"""

from dataclasses import dataclass

import numpy as np
import torch

from crcl.methods.relink import posterior
from crcl.methods.relink.cca import Projections
from crcl.methods.relink.fold import NEVER, Fold
from crcl.methods.relink.linear import LinearModel, image_vectors, text_vectors
from crcl.methods.relink.posterior import Beliefs, Prior, Ratios
from crcl.methods.relink.search import Best, Index, search_all

EXACT = 100_000
"""Most images that every caption is compared with."""
ROUNDS = 2
"""Rounds of fits and beliefs: with so many pairs further ones change little."""
FITTED = 2**18
"""Pairs that fits read: a random sample, which tells moments of some hundred numbers to half a percent."""
FOUND = 32
"""Most similar images that are searched for."""
TRIED = 2000
"""Captions of the first fold that the temperature is fitted on; their best images are searched for exactly."""
RECALL, CLOSE = 0.995, 0.1
"""Share of doubtful tried captions that the index must give the log-ratio of the exact search, within `CLOSE`."""
FEWEST_CELLS, MOST_CELLS = 8, 128
"""Cells of the index to search: doubled until `RECALL` is reached."""
_RESCORED = 2**23  # numbers of candidates' vectors at a time: 32 MB
_STREAM = 0x5A3F  # keeps the random numbers of samples apart from others drawn with the same seed


def run_round(
    model: LinearModel, told: Beliefs, *, last: bool, near: float | None = None, seed: int = 0
) -> tuple[list[Projections], Ratios, Prior]:
    """Fit the judge of each fold on the beliefs, then judge: all captions in the last round, else those that fits read.

    Args:
        model: The linear model.
        told: The beliefs so far.
        last: Whether this is the last round.
        near: A temperature to start the search for the temperature from.
        seed: Seed of samples.
    """
    if not last:
        projections = model.fit(told)
        return projections, *judge_read(model, projections, near=near, seed=seed)
    projections, whole = model.fit_both(told)
    return projections, *judge(model, projections, whole, near=near, seed=seed)


def judge(
    model: LinearModel,
    projections: list[Projections],
    whole: Projections,
    *,
    near: float | None = None,
    seed: int = 0,
) -> tuple[Ratios, Prior]:
    """Log-ratios of all captions, each by the model of its fold, at the temperature that explains a sample best.

    `whole` is a model of all pairs, in whose space images are searched for.
    """
    candidates = Candidates(model, whole, seed=seed)
    found = Ratios.empty(len(model.shown.images), min(posterior.OTHERS, len(model.images) - 1))
    chosen: Choice | None = None
    for number, one in enumerate(projections):
        fold = Fold(model, one, number, seed=seed)
        chosen = chosen or choose(fold, candidates, near=near, seed=seed)
        judge_fold(fold, candidates, chosen, found)
        del fold  # one is in memory at a time
    assert chosen is not None
    rate, _ = posterior.fit_rate(found.shown[model.shown.fitted])
    return found, Prior(chosen.temperature, rate)


def judge_read(
    model: LinearModel, projections: list[Projections], *, near: float | None = None, seed: int = 0
) -> tuple[Ratios, Prior]:
    """Log-ratios of the captions that fits read, without those of other images; other captions keep full belief."""
    found = Ratios.empty(len(model.shown.images), min(posterior.OTHERS, len(model.images) - 1))
    found.shown[:], found.images[:], found.others[:] = -NEVER, 0, NEVER
    temperature: float | None = None
    for number, one in enumerate(projections):
        fold = Fold(model, one, number, seed=seed, read_only=True)
        temperature = temperature or _fit_temperature(fold, None, near=near, seed=seed)
        judged = fold.judge(np.arange(len(fold.rows)), temperature, fold.all_offsets(temperature))
        found.shown[fold.rows] = judged.ratios.shown
    assert temperature is not None
    rate, _ = posterior.fit_rate(found.shown[model.read])
    return found, Prior(temperature, rate)


class Candidates:
    """Images that captions may belong to: proposed by an index of all images, compared by the judge of a fold."""

    def __init__(self, model: LinearModel, whole: Projections, *, seed: int = 0) -> None:
        self.texts = model.texts
        self.whole = whole
        self.index = Index(image_vectors(model.images, whole), seed=seed)

    def find(self, fold: Fold, captions: np.ndarray, *, cells: int) -> Best:
        """The images found for captions of a fold, by their places in it, the most similar to the fold's judge first.

        Args:
            fold: The fold.
            captions: Their places in the fold.
            cells: Cells of the index to search.
        """
        proposed = self.index.search(text_vectors(self.texts, self.whole, fold.rows[captions]), FOUND, cells=cells)
        similarities = torch.empty_like(proposed.similarities)
        size = max(_RESCORED // (FOUND * fold.images.shape[1]), 1)
        for start in range(0, len(captions), size):
            numbers = proposed.numbers[start : start + size]
            own = fold.texts[captions[start : start + size]]
            compared = torch.einsum("nd,nkd->nk", own, fold.images[numbers.clamp_min(0)])
            similarities[start : start + size] = compared.masked_fill(numbers < 0, -torch.inf)
        order = similarities.argsort(dim=1, descending=True, stable=True)
        return Best(similarities.gather(1, order), proposed.numbers.gather(1, order))


def judge_fold(fold: Fold, candidates: Candidates, chosen: "Choice", found: Ratios) -> None:
    """Log-ratios of the captions of a fold, written into those of all captions."""
    offsets = fold.all_offsets(chosen.temperature)
    judged = fold.judge(np.arange(len(fold.rows)), chosen.temperature, offsets)
    judged.write(fold.rows, found)
    doubtful = np.flatnonzero(judged.doubtful)
    if len(doubtful):
        best = candidates.find(fold, doubtful, cells=chosen.cells)
        fold.judge(doubtful, chosen.temperature, offsets, best).write(fold.rows[doubtful], found)


def choose(fold: Fold, candidates: Candidates, *, near: float | None = None, seed: int = 0) -> "Choice":
    """The temperature that explains a sample of captions best, and the cells to search."""
    tried = _tried(fold, seed)
    best = search_all(fold.images, fold.texts[tried], FOUND)
    temperature = _fit_temperature(fold, best, near=near, seed=seed)
    offsets = fold.all_offsets(temperature)
    doubtful = np.flatnonzero(fold.judge(tried, temperature, offsets).doubtful)
    exact = fold.judge(tried, temperature, offsets, best).ratios.shown[doubtful]
    cells, recall = FEWEST_CELLS, 1.0
    while len(doubtful):
        found = candidates.find(fold, tried[doubtful], cells=cells)
        ratios = fold.judge(tried[doubtful], temperature, offsets, found).ratios.shown
        recall = float(np.mean(np.abs(ratios - exact) <= CLOSE))
        if recall >= RECALL or cells >= min(MOST_CELLS, candidates.index.cells):
            break
        cells *= 2
    return Choice(temperature, cells, recall)


def _fit_temperature(fold: Fold, best: Best | None, *, near: float | None, seed: int) -> float:
    """The temperature that explains a sample of captions best, whose most similar images may be known."""
    tried = _tried(fold, seed)
    known = [] if best is None else [best.numbers.flatten()]
    needed = torch.cat([fold.sample.numbers, fold.shown[tried], *known]).unique()

    def try_temperature(temperature: float) -> np.ndarray:
        return fold.judge(tried, temperature, fold.offsets(temperature, needed), best).ratios.shown

    return posterior.fit_prior(try_temperature, near=near).temperature


def _tried(fold: Fold, seed: int) -> np.ndarray:
    """The captions of a fold that the temperature is fitted on, by their places in it."""
    return np.random.default_rng([_STREAM, seed]).permutation(fold.fitted)[:TRIED]


@dataclass(frozen=True)
class Choice:
    """What is chosen on captions of the first fold, for all."""

    temperature: float
    cells: int
    """Cells of the index to search."""
    recall: float
    """Share of the doubtful captions tried that so many cells give the log-ratio of the exact search."""
