"""The captions of a fold with their judge, and sums over very many images by the images found and a sample."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crcl.methods.relink import posterior
from crcl.methods.relink.cca import Projections
from crcl.methods.relink.linear import LinearModel, image_vectors, text_vectors
from crcl.methods.relink.posterior import Ratios
from crcl.methods.relink.search import Best

IMAGES, FEW, CAPTIONS = 8192, 2048, 2048
"""Images in the sample, in the smaller one that tells which captions are in doubt, and captions that offsets are taken
from, of each fold."""
SURE = float(np.log(1000))
"""Log-ratio from which on a shown image is believed whatever the rate of mismatches."""
NEVER = -1e4
"""Log-ratio of images that are not known."""
_CELLS = 2**20  # similarities computed at a time: 4 MB
_CANCELLED = 1e-3  # share of a sum that must be left where its largest term is subtracted: less is rounding
_STREAM = 0x5A3F  # keeps the random numbers of samples apart from others drawn with the same seed


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


@dataclass(frozen=True)
class Sample:
    """A random sample of the images."""

    numbers: Tensor
    """(S,) which of the fold's images"""
    vectors: Tensor
    """(S, D)"""
    place: Tensor
    """(m,) the place of each of the fold's images in the sample, or -1"""

    @classmethod
    def of(cls, numbers: Tensor, images: Tensor) -> "Sample":
        """The sample of these images."""
        return cls(numbers, images[numbers], _places(numbers, len(images)))


class Fold:
    """The captions of a fold with their judge, a sample of images, and one of captions."""

    def __init__(
        self, model: LinearModel, projections: Projections, fold: int, *, seed: int, read_only: bool = False
    ) -> None:
        """Prepare to judge.

        Args:
            model: The linear model.
            projections: The judge of the fold.
            fold: Its number.
            seed: Seed of the samples.
            read_only: Take only the captions that fits read, and only the images that these show and those of the
                sample: then no image can be searched for.
        """
        rng = np.random.default_rng([_STREAM, seed, fold])
        chosen = (model.shown.folds == fold) & (model.read if read_only else True)
        self.rows = np.flatnonzero(chosen)
        self.fitted = np.flatnonzero(model.shown.fitted[self.rows])  # places in `rows`, as everywhere below
        self.total = len(model.images)
        sample, shown = np.sort(rng.permutation(self.total)[:IMAGES]), model.shown.images[self.rows]
        numbers = np.union1d(shown, sample) if read_only else None
        if numbers is not None:
            sample, shown = np.searchsorted(numbers, sample), np.searchsorted(numbers, shown)
        self.shown = torch.from_numpy(shown)
        self.images = image_vectors(model.images, projections, numbers)
        self.texts = text_vectors(model.texts, projections, self.rows)
        self.sample = Sample.of(torch.from_numpy(sample), self.images)
        asked = np.sort(rng.permutation(self.fitted)[:CAPTIONS])
        self.asked, self.asked_show = self.texts[asked], self.shown[asked]
        few = np.sort(rng.permutation(len(sample))[:FEW])
        self.few = Sample.of(self.sample.numbers[few], self.images)
        self._offsets: dict[float, Tensor] = {}

    def all_offsets(self, temperature: float) -> Tensor:
        """a(i) of all images, computed once for a temperature. (m,)"""
        if temperature not in self._offsets:
            self._offsets = {temperature: self.offsets(temperature)}
        return self._offsets[temperature]

    def offsets(self, temperature: float, numbers: Tensor | None = None) -> Tensor:
        """a(i) of all images, or of some; the others stay unknown. (m,)

        Captions shown with i do not count, nor the most similar one: it may be a stray caption that belongs to i.
        """
        chosen = torch.arange(len(self.images)) if numbers is None else numbers
        place = _places(chosen, len(self.images))[self.asked_show]  # of the image that each caption shows
        asked, middle = self.asked.T / temperature, 0.5 / temperature
        known = torch.empty(len(chosen))
        for part in _parts(len(chosen), len(self.asked)):
            own = ((place >= part.start) & (place < part.stop)).nonzero()[:, 0]
            likeness = (self.images[part] if numbers is None else self.images[chosen[part]]) @ asked
            likeness.sub_(middle).exp_()  # cosines are in [-1, 1]: no overflow
            likeness[place[own] - part.start, own] = 0
            largest = likeness.amax(1)
            rest = likeness.sum(1).sub_(largest)
            rounded = (rest < _CANCELLED * largest).nonzero()[:, 0]
            if len(rounded):
                again = likeness[rounded]
                rest[rounded] = again.scatter_(1, again.argmax(1, keepdim=True), 0).sum(1)
            known[part] = rest.log_().add_(middle)
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
            for part in _parts(len(captions), len((self.few if best is None else self.sample).numbers))
        ]
        return Judged.join(parts)

    def _judge(self, captions: np.ndarray, temperature: float, offsets: Tensor, best: Best | None) -> Judged:
        images, others = self.total, min(posterior.OTHERS, self.total - 1)
        shown, texts = self.shown[captions], self.texts[captions] / temperature
        own = (texts * self.images[shown]).sum(1) - offsets[shown]
        if best is None:
            numbers, found = shown.new_empty(len(texts), 0), texts.new_empty(len(texts), 0)
        else:
            numbers = best.numbers.masked_fill(best.numbers == shown[:, None], -1)
            found = (best.similarities / temperature - offsets[numbers]).masked_fill(numbers < 0, -torch.inf)
        sample = self.few if best is None else self.sample
        rest = _rest(sample, texts, offsets[sample.numbers], torch.cat([shown[:, None], numbers], dim=1))
        rest += (images - 1 - found.isfinite().sum(1)).log()
        total = torch.cat([own[:, None], found, rest[:, None]], dim=1).logsumexp(1)
        scale = float(np.log(images)) - total
        # where fewer are known, an image that is not believed at all takes their places
        found = torch.nn.functional.pad(found, (0, others), value=-torch.inf)
        numbers = torch.nn.functional.pad(numbers, (0, others)).where(found.isfinite(), (shown[:, None] + 1) % images)
        best_found, place = found.topk(others, dim=1)
        perfect = 1 / temperature - offsets[self.sample.numbers].mean()
        doubtful = own + float(np.log(images)) - torch.logaddexp(total, perfect) < SURE
        ratios = Ratios(
            (own + scale).numpy(),
            numbers.gather(1, place).numpy(),
            (best_found + scale[:, None]).clamp_min(NEVER).numpy(),
        )
        return Judged(ratios, doubtful.numpy())


def _rest(sample: Sample, texts: Tensor, offsets: Tensor, known: Tensor) -> Tensor:
    """Log of the mean term of sampled images that are not `known` `(n, K)`, for captions divided by τ. (n,)"""
    logits = torch.addmm(-offsets, texts, sample.vectors.T)
    place = sample.place[known].masked_fill(known < 0, -1)
    row, column = (place >= 0).nonzero(as_tuple=True)
    logits[row, place[row, column]] = -torch.inf
    left = len(sample.numbers) - (place >= 0).sum(1)
    largest = logits.amax(1).clamp_min_(NEVER)
    return logits.sub_(largest[:, None]).exp_().sum(1).log_().add_(largest) - left.clamp_min(1).log()


def _places(numbers: Tensor, images: int) -> Tensor:
    """The place of each image among `numbers`, -1 if it is not there. (M,)"""
    return torch.full((images,), -1).index_copy_(0, numbers, torch.arange(len(numbers)))


def _parts(rows: int, columns: int) -> list[slice]:
    """Slices of the rows of a matrix of so many columns."""
    size = max(_CELLS // columns, 1)
    return [slice(start, start + size) for start in range(0, max(rows, 1), size)]
