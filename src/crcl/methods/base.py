"""Protocol and record of a training method, and the optimizer step that all methods share."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from crcl import distributed
from crcl.data.batches import Batch, Batches
from crcl.errors import TrainingError
from crcl.losses import PartSims, Sims
from crcl.matchers import MATCHERS, MatcherRecord
from crcl.matchers.base import Encoded, Matcher, raw_scores, within_modality
from crcl.matchers.encoding import compared, encoded, encoded_in_chunks
from crcl.matchers.kernels.products import Precision, computing_in, product_type
from crcl.progress import Clock, StepLog
from crcl.settings import Section

_SMALLEST_SCALE = 1e-4  # of the float16 loss scaler, halved by each skipped step: reached after about thirty in a row


class Method(Protocol):
    """Protocol of a training method.

    `train_epoch` is a generator: the method writes its own loop over batches, and `fit` does logging, validation,
    saving and stopping between the steps. The state may be saved after each yielded step, so it must be complete
    there. A clock with `step > 0` means that the method resumes in the middle of the epoch.
    """

    @property
    def matcher(self) -> Matcher:
        """The matcher to evaluate."""

    @property
    def correspondence(self) -> np.ndarray:
        """Belief in each training pair, (N,): 0 suspect, 1 match."""

    # A method that keeps the beliefs of `Plan.fixed` also has `judged`, what it believes of all pairs by itself, (N,);
    # None where nothing is fixed.
    # A method that judges which other images a caption may belong to also has `partners`, a `Partners`. One that judges
    # captions by vectors that these had no part in also has `spaces(batches)`, which yields `Space`s.

    def begin_piece(self, piece: int) -> None:
        """Prepare to train a piece, for CRCL with fresh weights and a new optimizer."""

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        """Train for one epoch, yielding after each step."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume, as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state."""


@dataclass(frozen=True)
class Partners:
    """Other images that each of N captions may belong to, and the beliefs in these, best first."""

    images: np.ndarray
    """(N, K) int64"""
    beliefs: np.ndarray
    """(N, K) float32, in [0, 1]"""

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """The most believed other image of each caption, and the belief in it, (N,) each; -1 and 0 without any."""
        if not self.images.shape[1]:
            return np.full(len(self.images), -1, dtype=np.int64), np.zeros(len(self.images), dtype=np.float32)
        best = self.beliefs.argmax(1)[:, None]
        return np.take_along_axis(self.images, best, axis=1)[:, 0], np.take_along_axis(self.beliefs, best, axis=1)[:, 0]


@dataclass(frozen=True)
class Space:
    """Some pairs, with unit vectors of their images and captions that can be compared with each other."""

    rows: np.ndarray
    """(n,) int64, the pairs"""
    images: Tensor
    """(m, D), the images that they show"""
    texts: Tensor
    """(n, D), their captions"""
    image_index: Tensor
    """(n,) int64, the image of each pair, a row of `images`"""

    @classmethod
    def of(
        cls,
        rows: np.ndarray,
        image_index: np.ndarray,
        images: Callable[[np.ndarray], Tensor],
        texts: Callable[[np.ndarray], Tensor],
    ) -> "Space":
        """The space of some pairs.

        Args:
            rows: The pairs, `(n,)`.
            image_index: The image of every pair, `(N,)`.
            images: Returns the vectors of images by their numbers.
            texts: Returns the vectors of captions by theirs.
        """
        numbers, place = np.unique(image_index[rows], return_inverse=True)
        return cls(rows, images(numbers), texts(rows), torch.from_numpy(place))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Facts about a training that its method may need besides the method's own settings."""

    epochs: int
    """Epochs of the last piece."""
    matcher: MatcherRecord
    """The record of the matcher that is trained."""
    batch_size: int
    beliefs: np.ndarray | None = None
    """Correspondences `(N,)` to start from, if the training starts from another run and the method can use them."""
    originals: np.ndarray | None = None
    """The pair whose caption each decoy repeats, `(decoys,)`; the decoys are the last pairs. None: no decoys."""
    fixed: np.ndarray | None = None
    """Beliefs that verdicts fix, `(N,)`, NaN where there is no verdict; for methods that take verdicts. None: none."""
    make_companion: Callable[[], nn.Module] | None = None
    """Makes the matcher of `MethodRecord.companion` with fresh weights; None: the method has none."""


@dataclass(frozen=True, kw_only=True)
class TrustedPairs:
    """Keys of the settings that select pairs known to match."""

    rows: str
    """Key of the file with row numbers of training pairs."""
    share: str
    """Key of the share of the dev pairs to use if no file is given."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodRecord:
    """Description of a method: how to build it, its settings, and its requirements.

    A `key` below is the full name of a setting, e.g. `division.warmup`.
    """

    name: str
    summary: str
    """What it does, in one line."""
    build: Callable[..., Method]
    """Builds the method. Called with keywords only: `make_learner` (a function; a method with two networks calls it
    twice), `pairs` (the number of pairs), `plan`, and each section of `sections` by its name."""
    sections: Mapping[str, type[Section]]
    """Sections of the config that the training depends on."""
    networks: int = 1
    """Number of networks trained; evaluation takes the mean of their similarities."""
    pieces: Literal["all", "last"] = "last"
    """Which pieces of `train.pieces` are trained."""
    warmup: str | None = None
    """Key of the number of warm-up epochs, which the decay of the learning rate does not count."""
    threshold: str | float | None = None
    """Correspondence below which the method treats a pair as mismatched, or the key of it; None: no such threshold."""
    starts_from_beliefs: bool = False
    """Whether the method can start from the correspondences of another run."""
    takes_verdicts: bool = False
    """Whether it keeps the beliefs that verdicts fix."""
    trusted: TrustedPairs | None = None
    """Settings that select the pairs known to match; None: the method needs none."""
    meta: str | None = None
    """Key of the hidden units of the meta-network that replaces a matcher's last layer; None: no meta-network."""
    companion: Callable[..., str | None] = lambda matcher, **sections: None
    """Returns the name of a matcher that the method fits besides, which is scored together with the network, each with
    the share that is best on dev; None: there is none. Called with the record of the network, and the sections by
    keyword."""
    fits_closed_form: bool = False
    """Whether it fits matchers with `closed_form` at once, without epochs."""
    able: Callable[[int], bool] = lambda images: True
    """Whether the packages that it needs for so many images are installed."""
    undivided: str = ""
    """Why several processes cannot share a training by it; empty if they can."""
    refuses: Callable[[MatcherRecord], str] = lambda matcher: ""
    """Returns why the method does not work with a matcher; empty if it does."""
    contradictions: Callable[..., Iterator[str]] = lambda **given: iter(())
    """Yields messages about settings that contradict each other. Called with `pieces` and the sections, by keyword."""
    checkpoints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Layouts of published checkpoints trained by this method, as `runs.published` names them, and their settings."""

    @property
    def matchers(self) -> tuple[str, ...]:
        """Names of the matchers that the method works with."""
        return tuple(name for name, matcher in MATCHERS.items() if not self.refuses(matcher))


class Optimizer:
    """Optimizer step with gradient clipping and autocast: AdamW on the weights of one module."""

    def __init__(
        self,
        module: nn.Module,
        *,
        weight_decay: float = 0.01,
        clip: float = 2.0,
        precision: Precision = "auto",
    ) -> None:
        self.module = module
        self.clip = clip
        self.device = next(module.parameters()).device
        self.dtype = product_type(self.device, precision)
        self.adamw = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=weight_decay, fused=True)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)

    def autocast(self) -> AbstractContextManager[Any]:
        """Context for forward passes: autocast, unless the precision is float32."""
        return computing_in(self.device, self.dtype)

    def step(self, losses: Tensor, batch: Batch, learning_rate: float) -> float:
        """One optimizer step on the mean of the pairs' losses `(K,)`; returns that mean.

        If several processes share the batch, these are the losses of the own pairs, and the mean is that of all.
        """
        loss = losses.mean()
        if distributed.count() > 1:  # the gradients of all processes are summed
            loss = loss * (1 / distributed.count() if batch.part is None else len(batch) / batch.size)
        value = float(distributed.total(loss.detach()))
        if not np.isfinite(value):
            raise TrainingError(_describe_failure(losses, batch))
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        self.adamw.zero_grad(set_to_none=True)
        # a loss may also depend on weights of other modules, which need no gradient
        learnt = [weight for weight in self.module.parameters() if weight.requires_grad]
        self.scaler.scale(loss).backward(inputs=learnt)
        distributed.sum_gradients(learnt)
        self.scaler.unscale_(self.adamw)
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.clip if self.clip > 0 else float("inf"))
        if not self.scaler.is_enabled() and not np.isfinite(float(norm)):
            raise TrainingError(_gradient_failure(losses, batch))
        self.scaler.step(self.adamw)
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < _SMALLEST_SCALE:
            raise TrainingError(f"{_gradient_failure(losses, batch)}; so does train.precision=float32")
        return value

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.adamw.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty if the state was saved with another precision
            self.scaler.load_state_dict(state["scaler"])


class Learner:
    """A matcher in training with its optimizer; a method has one or two."""

    def __init__(
        self,
        make_matcher: Callable[[], nn.Module],
        *,
        weight_decay: float = 0.01,
        clip: float = 2.0,
        precision: Precision = "auto",
        chunk: int = 0,
    ) -> None:
        self.make_matcher = make_matcher
        self.chunk = chunk
        self.options: dict[str, Any] = {"weight_decay": weight_decay, "clip": clip, "precision": precision}

    @property
    def matcher(self) -> Matcher:
        return cast(Matcher, self.module)

    def reset(self) -> None:
        """Create the matcher with fresh weights, and a new optimizer."""
        self.module = self.make_matcher()
        distributed.spread_from_first([*self.module.parameters(), *self.module.buffers()])
        self.optimizer = Optimizer(self.module, **self.options)

    def encode(self, batch: Batch) -> tuple[Encoded, Encoded]:
        """Encode the images and the texts of a batch; of a batch that processes share, the own ones."""
        with self.optimizer.autocast(), distributed.dividing(batch.part):
            if self.chunk and len(batch) > self.chunk:
                return encoded_in_chunks(self.matcher, batch, self.chunk, self.optimizer.device)
            return encoded(self.matcher, batch.to(self.optimizer.device))

    def similarities(self, batch: Batch) -> Sims:
        """Similarity of every image of the batch with every text of it. (K, K)"""
        return self.compare(*self.encode(batch), batch)

    def matrix(self, batch: Batch) -> Tensor:
        """The similarities as one matrix, for methods that never share a batch among processes. (K, K)"""
        sims = self.similarities(batch)
        if isinstance(sims, PartSims):
            raise TypeError("the batch is shared among processes, so this one has a part of its similarities alone")
        return sims

    def scores(self, batch: Batch) -> Sims:
        """Similarities before the matcher's final sigmoid, if it has one. (K, K)"""
        with self.optimizer.autocast(), distributed.dividing(batch.part):
            return compared(partial(raw_scores, self.matcher), *self.encode(batch), batch.part)

    def compare(self, images: Encoded, texts: Encoded, batch: Batch) -> Sims:
        """Similarity of every image of an encoded batch with every text of it. (K, K)"""
        with self.optimizer.autocast(), distributed.dividing(batch.part):
            return compared(self.matcher.similarity, images, texts, batch.part)

    def within(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Similarities of images with all images of a batch, or of texts with all its texts, own rows. (K, K)"""
        part = batch.part
        with self.optimizer.autocast(), distributed.dividing(part):
            if part is None:
                return within_modality(self.matcher, encoded)
            everyone = encoded.each(lambda value: distributed.gather(value, part))
            columns = within_modality(self.matcher, encoded, everyone)  # (K, k)
            return columns.T if encoded.features.ndim == 2 else distributed.gather(columns.T, part).T[part.own]

    def state_dict(self) -> dict[str, Any]:
        return {"matcher": self.module.state_dict(), "descent": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["matcher"])
        self.optimizer.load_state_dict(state["descent"])


def _gradient_failure(losses: Tensor, batch: Batch) -> str:
    return _describe_failure(losses * float("nan"), batch).replace("the loss", "the gradient", 1)


def _describe_failure(losses: Tensor, batch: Batch) -> str:
    finite = batch.gather(losses.detach()).isfinite().cpu()
    bad = batch.all_pairs.cpu()[~finite].tolist()  # they may be on different devices
    which = "" if len(bad) == batch.size else f" ({len(bad)} of them with such a loss: {bad[:10]})"
    return (
        f"the loss became NaN or infinite in the batch of pairs {batch.all_pairs.tolist()}{which}; "
        "a smaller learning rate (train.lr), a larger temperature (loss.tau) or standardised features "
        "(data.standardize=true) usually help"
    )
