"""Batches: shuffled by seed and epoch, augmented, padded with masks.

Everything random in a batch comes from (seed, epoch, stream, batch number) alone, so the batches are the same whatever
the number of workers, and an interrupted training can resume in the middle of an epoch. What a process makes of a
batch that several share is what it would be in the whole batch: so that all this is seen together, it is one module.
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing import get_all_start_methods
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from crcl import distributed
from crcl.data.order import WHOLE, Order, Shuffle
from crcl.data.split import Split
from crcl.data.text.vectors import Texts
from crcl.data.text.vocabulary import PAD, Tokens
from crcl.distributed import Part
from crcl.errors import InputError

# Size augmentation (VSE∞): 10 % of the words are masked, 2 % replaced and 8 % dropped.
_MASKED, _REPLACED, _DROPPED = 0.10, 0.12, 0.20
_REGION_DROPPED = 0.2
_STREAMS = 0xBA7C  # keeps the random numbers of batches apart from others drawn with the same seed
_ROUND = 1 << 16  # distance between the streams of two rounds of `cycle`
_TENSORS = ("pairs", "regions", "region_mask", "tokens", "lengths")  # of a batch, one row for each of its pairs
_BLANK = 1e-10  # value of a blanked region, which keeps its slot


@dataclass(frozen=True)
class Batch:
    """K pairs as padded tensors, the input of a matcher."""

    pairs: Tensor
    """(K,) int64, row numbers of the pairs."""
    regions: Tensor
    """(K, R, F) float32, real regions first, padded with 0."""
    region_mask: Tensor
    """(K, R) bool."""
    tokens: Tensor
    """(K, W) int64, padded with 0; for a matcher that reads vectors (K, 1, G) float32."""
    lengths: Tensor
    """(K,) int64, the number of real tokens."""
    part: Part | None = None
    """If several processes share the batch: which of its pairs these are. Everything above is of these alone."""
    everyone: Tensor | None = None
    """(whole,) int64, row numbers of all pairs of a shared batch."""

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def size(self) -> int:
        """The number of pairs of the whole batch."""
        return len(self) if self.part is None else self.part.whole

    @property
    def all_pairs(self) -> Tensor:
        """Row numbers of all pairs of the batch, those of other processes included. (size,)"""
        return self.pairs if self.everyone is None else self.everyone

    def gather(self, values: Tensor) -> Tensor:
        """Values of all pairs of the batch, from those of the own pairs. `(k, ...)` -> `(size, ...)`"""
        return distributed.gather(values, self.part)

    def own(self, values: Tensor) -> Tensor:
        """The values of the pairs that this process has, from those of all. `(size, ...)` -> `(k, ...)`"""
        return values if self.part is None else values[self.part.own]

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        if device.type == "cpu":
            return self
        return self._each(lambda value: value.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The same batch in pinned memory, for quick copies to a GPU; the data loader calls this."""
        return self._each(Tensor.pin_memory)

    def first(self, pairs: int) -> "Batch":
        """The first `pairs` pairs of the batch."""
        return self._each(lambda value: value[:pairs])

    def _each(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        return replace(self, **{name: function(getattr(self, name)) for name in _TENSORS})  # type: ignore[arg-type]

    def chunks(self, size: int) -> "list[Batch]":
        """The batch in consecutive chunks of so many pairs, padded as it is."""
        starts = range(0, len(self), size)
        return [self._each(lambda value, start=start: value[start : start + size]) for start in starts]  # type: ignore[misc]

    def join(self, other: "Batch") -> "Batch":
        """Both batches as one, padded to the same number of words and regions."""
        joined = {name: [getattr(part, name) for part in (self, other)] for name in _TENSORS}
        for name in ("regions", "region_mask", "tokens"):
            width = max(value.shape[1] for value in joined[name])
            joined[name] = [_widened(value, width) for value in joined[name]]
        return replace(self, **{name: torch.cat(values) for name, values in joined.items()})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Standardize:
    """Standardisation of features by the mean of each channel and one standard deviation for all, over train."""

    mean: np.ndarray
    """(F,) float32"""
    deviation: float

    @classmethod
    def measure(cls, pairs: Split, *, block: int = 64) -> Self:
        """Measure mean and deviation over all images of these pairs, read block by block."""
        size = pairs.features.shape[2]
        total, squares, count = np.zeros(size), 0.0, 0
        for start in range(0, pairs.images, block):
            rows = pairs.gather(np.arange(start, min(start + block, pairs.images))).reshape(-1, size).astype(np.float64)
            total += rows.sum(0)
            squares += float(np.square(rows).sum())
            count += len(rows)
        mean = total / count
        variance = squares / (count * size) - float(np.square(mean).mean())
        return cls(mean.astype(np.float32), max(float(np.sqrt(max(variance, 0.0))), 1e-6))

    def __call__(self, regions: np.ndarray) -> np.ndarray:
        """Standardise regions in place; callers pass a copy."""
        regions -= self.mean
        regions /= np.float32(self.deviation)
        return regions


class Batches:
    """The batches of a training, epoch by epoch."""

    def __init__(
        self,
        pairs: Split,
        tokens: Texts,
        *,
        vocabulary: int,
        mask_token: int | None,
        batch_size: int = 128,
        seed: int = 0,
        augment: bool = True,
        dropped_regions: Literal["removed", "blanked"] = "removed",
        standardize: Standardize | None = None,
        workers: int = 0,
        pin_memory: bool = False,
        trusted: "Trusted | None" = None,
        shuffle: Shuffle = WHOLE,
    ) -> None:
        self.pairs = pairs
        self.tokens = tokens
        self.vocabulary = vocabulary
        self.mask_token = mask_token
        self.batch_size = batch_size
        self.seed = seed
        self.augment = augment
        self.dropped_regions = dropped_regions
        self.standardize = standardize
        self.workers = workers
        self.pin_memory = pin_memory
        self.trusted = trusted
        self.shuffle = shuffle

    def __len__(self) -> int:
        """The number of batches in an epoch over all pairs."""
        return self.count(len(self.pairs))

    def count(self, pairs: int) -> int:
        """The number of batches in an epoch over `pairs` pairs; a last batch of a single pair is dropped."""
        full, rest = divmod(pairs, self.batch_size)
        return full + (rest > 1)

    def epoch(
        self,
        epoch: int,
        *,
        start: int = 0,
        among: np.ndarray | None = None,
        stream: int = 0,
        augment: bool | None = None,
        images: np.ndarray | None = None,
    ) -> Iterator[Batch]:
        """The batches of an epoch.

        Args:
            epoch: Number of the epoch over all pieces; the order and the augmentation depend on it.
            start: Number of the first batch, to resume within an epoch.
            among: Rows of the pairs to use; None: all pairs.
            stream: Batches of different streams of one epoch come in different orders.
            augment: Overrides the augmentation given to the constructor.
            images: Images to show with all captions instead of their own, `(N,)`.
        """
        plan = _Epoch(self, epoch, among, stream, self.augment if augment is None else augment, images)
        numbers = range(start, len(plan))
        plan.read_ahead(plan.order.at_first(start * self.batch_size))
        if not self.workers:
            return _raising(plan[number] for number in numbers)
        loader = DataLoader(
            plan,
            batch_size=None,
            sampler=numbers,
            num_workers=self.workers,
            pin_memory=self.pin_memory,
            generator=torch.Generator().manual_seed(0),  # the loader draws a seed; ours come from the plan
            worker_init_fn=_leave_interrupts_to_the_parent,
            multiprocessing_context="fork" if "fork" in get_all_start_methods() else None,  # else features are copied
        )
        return _raising(loader)

    def cycle(self, epoch: int, among: np.ndarray, *, start: int = 0, stream: int = 0) -> Iterator[Batch]:
        """Endless batches of some pairs, from batch number `start` on; each round has its own order.

        Yields nothing if the pairs do not fill one batch.
        """
        size = self.count(len(among))
        if not size:
            return
        for turn in count(start // size):
            first = start % size if turn == start // size else 0
            yield from self.epoch(epoch, start=first, among=among, stream=stream + _ROUND * turn)

    def make(
        self,
        numbers: np.ndarray,
        rng: np.random.Generator | None = None,
        *,
        images: np.ndarray | None = None,
        part: Part | None = None,
    ) -> Batch:
        """One batch of these pairs, augmented if a generator is given.

        Args:
            numbers: Rows of the pairs.
            rng: Source of the augmentation's random numbers; None: no augmentation.
            images: Images to show with the captions instead of their own.
            part: Which pairs to make, if several processes share the batch. Their augmentation and padding are those
                that they have in the whole batch.
        """
        own = slice(None) if part is None else part.own
        shown = self.pairs.image_index[numbers] if images is None else images
        regions = self.pairs.gather(shown[own])
        if self.standardize is not None:
            regions = self.standardize(regions)
        mask = np.ones(regions.shape[:2], dtype=bool)
        if isinstance(self.tokens, Tokens):
            tokens, real = self.tokens.side_by_side(numbers)
            if rng is not None and self.mask_token is not None:  # else there are no words to drop
                tokens, real = self._augment_words(tokens, real, rng, self.mask_token)
            tokens, real = tokens[own], real[own]
        else:
            tokens, real = self.tokens.side_by_side(numbers[own])
        if rng is not None:
            keep = rng.random((len(numbers), regions.shape[1])) > _REGION_DROPPED
            regions, mask = self._drop_regions(regions, keep, own)
        pairs = torch.from_numpy(np.asarray(numbers, dtype=np.int64))
        return Batch(
            pairs[own],
            torch.from_numpy(regions),
            torch.from_numpy(mask),
            torch.from_numpy(tokens),
            torch.from_numpy(real.sum(1)),
            part,
            None if part is None else pairs,
        )

    def _augment_words(
        self, tokens: np.ndarray, real: np.ndarray, rng: np.random.Generator, mask_token: int
    ) -> tuple[np.ndarray, np.ndarray]:
        u = rng.random(tokens.shape)
        random_words = rng.integers(0, self.vocabulary, tokens.shape)
        tokens = np.where(u < _MASKED, mask_token, np.where(u < _REPLACED, random_words, tokens))
        keep = real & ~((u >= _REPLACED) & (u < _DROPPED))
        keep[~keep.any(1), 0] = True  # never an empty caption
        order, real = _keep_first(keep)
        return np.where(real, np.take_along_axis(tokens, order, 1), PAD), real

    def _drop_regions(self, regions: np.ndarray, keep: np.ndarray, own: slice) -> tuple[np.ndarray, np.ndarray]:
        """Regions without those to drop, and their mask; `keep` is of the whole batch, of which they are rows `own`."""
        keep[~keep.any(1), 0] = True
        if self.dropped_regions == "blanked":
            regions[~keep[own]] = _BLANK
            return regions, np.ones_like(keep[own])
        order, real = (kept[own] for kept in _keep_first(keep))
        regions = regions[np.arange(len(regions))[:, None], order]  # copies whole rows, unlike take_along_axis
        regions[~real] = 0
        return regions, real


@dataclass(frozen=True)
class Trusted:
    """Pairs known to match, for a method that learns from such pairs."""

    batches: Batches
    """Make batches of the trusted pairs."""
    rows: np.ndarray
    """(P,) int64, rows of the trusted pairs in `batches`."""
    held_out: np.ndarray
    """Rows of training pairs that serve as trusted pairs, and so are left out of the training."""


class _Epoch(Dataset[Batch | InputError]):
    """The batches of one epoch as a data set, so that worker processes can make them."""

    def __init__(
        self,
        batches: Batches,
        epoch: int,
        among: np.ndarray | None,
        stream: int,
        augment: bool,
        images: np.ndarray | None = None,
    ) -> None:
        self.batches = batches
        self.images = images
        # numpy pads a short key with zeros: without _STREAMS this order could be that of the noise
        self.key = (_STREAMS, batches.seed, epoch, stream)
        self.augment = augment
        self.process = distributed.rank(), distributed.count()
        rows = np.arange(len(batches.pairs)) if among is None else among
        places = batches.pairs.places(self.shown(rows))
        self.order = Order.shuffled(rows, places, np.random.default_rng([*self.key, 0]), batches.shuffle)

    def __len__(self) -> int:
        return self.batches.count(len(self.order))

    def __getitem__(self, number: int) -> Batch | InputError:
        """A batch, or the error with it: raised in a worker process, its message would end in a long traceback."""
        size = self.batches.batch_size
        start, stop = number * size, (number + 1) * size
        rng = np.random.default_rng([*self.key, 1 + number]) if self.augment else None
        try:
            numbers = self.order.rows[start:stop]
            self.read_ahead(self.order.ahead(start, stop))
            images = None if self.images is None else self.images[numbers]
            return self.batches.make(numbers, rng, images=images, part=Part.of(len(numbers), *self.process))
        except InputError as error:
            return error

    def shown(self, rows: np.ndarray) -> np.ndarray:
        """The images that some pairs show."""
        return (self.batches.pairs.image_index if self.images is None else self.images)[rows]

    def read_ahead(self, rows: np.ndarray) -> None:
        """Ask the system to read in the background what some pairs need."""
        if len(rows):
            self.batches.pairs.read_ahead(self.shown(rows))
            if not isinstance(self.batches.tokens, Tokens):
                self.batches.tokens.read_ahead(rows)


def _raising(loaded: Iterable[Batch | InputError]) -> Iterator[Batch]:
    for batch in loaded:
        if isinstance(batch, InputError):
            raise batch
        yield batch


def _widened(value: Tensor, width: int) -> Tensor:
    """The tensor padded with 0 along its second axis."""
    missing = value.new_full((len(value), width - value.shape[1], *value.shape[2:]), PAD)
    return torch.cat([value, missing], dim=1)


def _leave_interrupts_to_the_parent(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _keep_first(keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices that move the kept entries of each row to its front, cut to the longest row, and which are kept."""
    counts = keep.sum(1)
    longest = int(counts.max())
    order = np.argsort(~keep, axis=1, kind="stable")[:, :longest]
    return order, np.arange(longest) < counts[:, None]
