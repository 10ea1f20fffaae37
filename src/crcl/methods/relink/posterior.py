"""Which image a caption belongs to, as a hidden variable: beliefs from similarities.

Of N captions t and M images i, x(t) is the image shown with t, and the hidden z(t) the one that t belongs to. A caption
belongs to the shown image with probability 1 - rate, else to any image, rate / M each. With similarities s, temperature
τ and a correction a(i, t) for images that everything fits,

    p(i | t) = softmax over i of s(i, t) / τ - a(i, t)
    a(i, t) = log of the mean of exp(s(i, u) / τ) over captions u that are shown neither with i nor with t's image
    r(t) = M p(x(t) | t)    the ratio of the shown image to a random one

the belief in the shown pair is y(t) = (1 - rate) r / ((1 - rate) r + rate), and that in another image i is
rate p(i | t) / ((1 - rate) r + rate). `rate` and τ maximise Σ_t log((1 - rate) r(t) + rate).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TEMPERATURES = tuple(np.geomspace(0.02 * (0.02 / 0.3) ** (3 / 11), 0.3, 15).round(4).tolist())
"""Grid of temperatures τ to choose from."""
OTHERS = 10
"""Number of other images whose beliefs are kept for each caption."""
_USUAL = 0.05  # where the search for the temperature starts
_ROUNDS = 30  # of the fixed point of the rate
_CELLS = 2**21  # similarities computed at a time: 8 MB
_KEPT = 2**26  # similarities that are kept: 256 MB
_LEFT = 1e-12  # least share of a sum that is left where a caption is taken out of it: less is rounding


@dataclass(frozen=True)
class Prior:
    """What is fitted on a sample of captions."""

    temperature: float
    rate: float
    """Share of captions that do not belong to the image shown with them, as the model explains them."""


@dataclass(frozen=True)
class Ratios:
    """Log-ratios of images to a random image for N captions."""

    shown: np.ndarray
    """(N,) float32, log r of the shown image"""
    images: np.ndarray
    """(N, K) int64, the best other images"""
    others: np.ndarray
    """(N, K) float32, their log-ratios"""

    @classmethod
    def empty(cls, captions: int, others: int) -> "Ratios":
        """Space for so many captions and other images."""
        return cls(
            np.empty(captions, np.float32),
            np.empty((captions, others), np.int64),
            np.empty((captions, others), np.float32),
        )


@dataclass(frozen=True)
class Beliefs:
    """Where N captions belong: the shown image, one of K others, or somewhere else."""

    shown: np.ndarray
    """(N,) float32, belief that the shown image matches"""
    images: np.ndarray
    """(N, K) int64, other images"""
    others: np.ndarray
    """(N, K) float32, beliefs in these"""


def fit_rate(ratios: np.ndarray) -> tuple[float, float]:
    """The rate that maximises the likelihood of log-ratios `(N,)` of the shown images, and the mean log-likelihood."""
    ratio = np.exp(np.minimum(ratios.astype(np.float64), 700.0))
    rate = 0.5
    for _ in range(_ROUNDS):
        rate = float(np.mean(rate / ((1 - rate) * ratio + rate)))
        rate = min(max(rate, 1e-4), 1 - 1e-4)
    return rate, float(np.mean(np.log((1 - rate) * ratio + rate)))


def beliefs(ratios: Ratios, rate: float, images: int) -> Beliefs:
    """Beliefs from log-ratios and the rate; `images` is M."""
    log_shown = np.log1p(-rate) + ratios.shown
    total = np.logaddexp(log_shown, np.log(rate))[:, None]
    others = np.exp(np.log(rate / images) + ratios.others - total)
    return Beliefs(
        np.exp(log_shown - total[:, 0]).astype(np.float32),
        ratios.images,
        np.minimum(others, 1.0).astype(np.float32),
    )


class Similarities:
    """Similarities of captions with all images, computed block by block, or kept if they are few."""

    def __init__(
        self,
        images: Tensor,
        texts: Tensor,
        shown: Tensor,
        *,
        replaced: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> None:
        """Compare images and captions.

        Args:
            images: Unit vectors of M images, `(M, D)`.
            texts: Unit vectors of n captions, `(n, D)`.
            shown: The image shown with each caption, `(n,)`.
            replaced: Captions, images and their similarities, which are taken instead of the product of the vectors.
        """
        self.images = images
        self.texts = texts
        self.shown = shown
        self.replaced = replaced
        self.kept: Tensor | None = None

    def __len__(self) -> int:
        """n, the number of captions."""
        return len(self.texts)

    def scaled(self, temperature: float) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of s / τ, `(block, M)`; the memory of a block is used again for the next."""
        if self.kept is None and len(self) * len(self.images) <= _KEPT:
            self.kept = self.texts @ self.images.T
            self._replace(self.kept, slice(0, len(self)))
        size = max(_CELLS // len(self.images), 1)
        memory = self.texts.new_empty(min(size, len(self)), len(self.images))
        for rows in self._blocks(size):
            block = memory[: rows.stop - rows.start]
            if self.kept is None:
                self._replace(torch.matmul(self.texts[rows], self.images.T, out=block), rows)
                block.div_(temperature)
            else:
                torch.div(self.kept[rows], temperature, out=block)
            yield rows, block

    def _blocks(self, size: int) -> Iterator[slice]:
        """Slices of at most so many captions; those that are shown together stay together, if they fit."""
        places = torch.arange(len(self), device=self.shown.device)
        begins = torch.cat([places[:1], torch.where(self.shown[1:] != self.shown[:-1], places[1:], 0)]).cummax(0).values
        start = 0
        while start < len(self):
            stop = min(start + size, len(self))
            if stop < len(self) and int(begins[stop]) > start:
                stop = int(begins[stop])
            yield slice(start, stop)
            start = stop

    def _replace(self, block: Tensor, rows: slice) -> None:
        if self.replaced is not None:
            captions, images, values = self.replaced
            here = (captions >= rows.start) & (captions < rows.stop)
            block[captions[here] - rows.start, images[here]] = values[here]


@dataclass(frozen=True)
class Background:
    """How well images fit captions that are not shown with them: what the offsets a(i, t) come from."""

    total: Tensor
    """(M,) float64, the sum of exp((s - 1/2) / τ) over the captions that count and are not shown with the image"""
    captions: Tensor
    """(M,) their number"""
    counted: Tensor | None = None
    """(n,) bool, the captions that count; None: all"""


def background(sims: Similarities, temperature: float, counted: Tensor | None = None) -> Background:
    """Sums over captions for the offsets; of the captions only those `counted` `(n,)` count, if given."""
    images = len(sims.images)
    total = torch.zeros(images, dtype=torch.float64, device=sims.images.device)
    for rows, block in sims.scaled(temperature):
        total += _likeness(block, sims.shown[rows], temperature, counted, rows).sum(0, dtype=torch.float64)
    shown = sims.shown if counted is None else sims.shown[counted]
    return Background(total, len(shown) - torch.bincount(shown, minlength=images), counted)


def _likeness(block: Tensor, shown: Tensor, temperature: float, counted: Tensor | None, rows: slice) -> Tensor:
    """exp((s - 1/2) / τ), 0 where a caption meets the image that it is shown with, or does not count."""
    likeness = block.sub(0.5 / temperature).exp_()  # cosines are in [-1, 1]: no overflow, and no sum of zeros
    likeness.scatter_(1, shown[:, None], 0)
    if counted is not None:
        likeness[~counted[rows]] = 0
    return likeness


def ratios(sims: Similarities, temperature: float, known: Background, *, others: int = OTHERS) -> Ratios:
    """Log-ratios of the shown image and of the best others to a random image.

    A caption is compared with images whose offsets leave out that caption, and those shown with the same image: an
    image must not seem to fit everything because it fits a caption that belongs to it and went astray.

    Args:
        sims: Similarities of captions with all images; captions shown with one image stand together.
        temperature: τ.
        known: The background at this temperature.
        others: Number of other images to keep; fewer if there are not so many.
    """
    count = min(others, len(sims.images) - 1)
    uniform = float(np.log(len(sims.images)))
    captions = known.captions.float()
    usual = known.total.clamp_min(1e-300).log().float() - captions.clamp_min(1).log()
    found = Ratios.empty(len(sims), count)
    for rows, block in sims.scaled(temperature):
        own = sims.shown[rows]
        likeness = _likeness(block, own, temperature, known.counted, rows)
        groups = torch.cat([own.new_zeros(1), (own[1:] != own[:-1]).long()]).cumsum(0)  # of captions shown together
        together = known.total.new_zeros(int(groups[-1]) + 1, len(sims.images)).index_add_(0, groups, likeness.double())
        left = torch.sub(known.total, together, out=together).maximum(_LEFT * known.total).clamp_min_(1e-300)
        counts = torch.ones_like(own) if known.counted is None else known.counted[rows].long()
        size = torch.zeros_like(groups).index_add_(0, groups, counts)[: len(left)].float()
        offsets = left.log_().float().sub_((captions - size[:, None]).clamp_min_(1).log_())
        # the image shown with the captions of a group has lost them already
        first = torch.cat([groups.new_ones(1), groups.diff()]).bool()
        mine = own[first][:, None]
        offsets.scatter_(1, mine, usual[mine])
        logits = block.sub_(offsets[groups])
        scale = uniform - logits.logsumexp(1, keepdim=True)
        found.shown[rows] = (logits.gather(1, own[:, None]) + scale)[:, 0].cpu().numpy()
        best, which = logits.scatter_(1, own[:, None], -torch.inf).topk(count, dim=1)
        found.images[rows], found.others[rows] = which.cpu().numpy(), (best + scale).cpu().numpy()
    return found


def fit_prior(shown_ratios: Callable[[float], np.ndarray], *, near: float | None = None) -> Prior:
    """The temperature and rate with the highest likelihood; the likelihood has one maximum in the temperature.

    Args:
        shown_ratios: Returns the log-ratios of a sample of captions at a temperature.
        near: A temperature to start the search from, e.g. that of the round before.
    """
    known: dict[int, tuple[float, float]] = {}  # likelihood and rate at each temperature that was tried

    def likelihood(place: int) -> float:
        if not 0 <= place < len(TEMPERATURES):
            return -np.inf
        if place not in known:
            rate, value = fit_rate(shown_ratios(TEMPERATURES[place]))
            known[place] = value, rate
        return known[place][0]

    place = int(np.argmin(np.abs(np.log(TEMPERATURES) - np.log(near or _USUAL))))
    while True:
        best = max((place, place - 1, place + 1), key=likelihood)
        if best == place:
            return Prior(TEMPERATURES[place], known[place][1])
        place = best
