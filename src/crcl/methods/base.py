"""What every method of training is, what the package knows of it, and the optimizer step that they share."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from crcl.data.batches import Batch, Batches
from crcl.errors import TrainingError
from crcl.matchers import MATCHERS, MatcherRecord
from crcl.matchers.base import Encoded, Matcher, raw_scores
from crcl.progress import Clock, StepLog
from crcl.settings import Section

Precision = Literal["auto", "float32", "bfloat16", "float16"]
_SMALLEST_SCALE = 1e-4  # of float16 losses: halved at each step that is skipped, so thirty of them in a row


class Method(Protocol):
    """How a matcher is trained.

    `train_epoch` is a generator: the method keeps its loop in plain sight, `fit` owns logging, validation, saving and
    stopping. After each yielded step the state must be complete, since it may be saved there: a method that gets a
    clock with `step > 0` goes on in the middle of the epoch.
    """

    @property
    def matcher(self) -> Matcher:
        """What evaluation uses."""

    @property
    def correspondence(self) -> np.ndarray:
        """Belief in each training pair, (N,): 0 suspect, 1 match."""

    def begin_piece(self, piece: int) -> None:
        """Prepare a piece; CRCL: a fresh matcher and optimizer."""

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        """Train for one epoch, yielding after each step."""

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on: tensors and plain values only."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a method may need to know of the training that it is built for, besides its settings."""

    epochs: int
    """Epochs of the last piece."""
    batch_size: int
    beliefs: np.ndarray | None = None
    """(N,) to begin with, where the training continues another run and the method learns from beliefs."""


@dataclass(frozen=True, kw_only=True)
class TrustedPairs:
    """Keys of the settings that say which pairs are known to match."""

    rows: str
    """Key of the file with row numbers of training pairs."""
    share: str
    """Key of the share of the dev pairs that are taken where no file is given."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodRecord:
    """All that the package needs to know of a method.

    A `key` below is the full name of a setting, e.g. `division.warmup`.
    """

    name: str
    summary: str
    """What it does, in one line."""
    build: Callable[..., Method]
    """Makes the method. Called with keywords only: `make_learner` (a function; a method of two networks calls it
    twice), `pairs` (their number), `plan`, and each section of `sections` by its name."""
    sections: Mapping[str, type[Section]]
    """The sections of a config that the training depends on."""
    networks: int = 1
    """Networks that it trains; evaluation takes the mean of their similarities."""
    pieces: Literal["all", "last"] = "last"
    """Which pieces of `train.pieces` it trains."""
    warmup: str | None = None
    """Key of the number of first epochs that the decay of the learning rate does not count."""
    threshold: str | float | None = None
    """Below which belief the method itself takes a pair as mismatched, or the key of that; None: it takes none so."""
    believes: bool = False
    """Whether it learns from beliefs, and so can begin with those of another run."""
    trusted: TrustedPairs | None = None
    """Where its pairs known to match come from; None: it needs none."""
    meta: str | None = None
    """Key of the hidden units of the meta-network that replaces a matcher's last layer; None: there is none."""
    refuses: Callable[[MatcherRecord], str] = lambda matcher: ""
    """Why the method does not work with a matcher; empty where it does."""
    contradictions: Callable[..., Iterator[str]] = lambda **given: iter(())
    """Messages about settings that make no sense together. Called with `pieces` and the sections, by keyword."""
    checkpoints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Layouts of published checkpoints that it trained, as `runs.published` names them, and settings they had."""

    @property
    def matchers(self) -> tuple[str, ...]:
        """Names of the matchers that it works with."""
        return tuple(name for name, matcher in MATCHERS.items() if not self.refuses(matcher))


class Descent:
    """AdamW with gradient clipping and, on a GPU, autocast: one matcher's way down its loss."""

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
        self.dtype = _autocast_dtype(self.device, precision)
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=weight_decay, fused=True)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)

    def autocast(self) -> AbstractContextManager[Any]:
        """Where the forward pass runs."""
        enabled = self.dtype != torch.float32
        return torch.autocast(self.device.type, dtype=self.dtype if enabled else None, enabled=enabled)

    def step(self, losses: Tensor, batch: Batch, learning_rate: float) -> float:
        """One optimizer step on the mean of the pairs' losses `(K,)`; returns that mean."""
        loss = losses.mean()
        value = float(loss.detach())
        if not np.isfinite(value):
            raise TrainingError(_describe_failure(losses, batch))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        # a loss may depend on other weights too, which are not to move
        self.scaler.scale(loss).backward(inputs=[weight for weight in self.module.parameters() if weight.requires_grad])
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.clip if self.clip > 0 else float("inf"))
        if not self.scaler.is_enabled() and not np.isfinite(float(norm)):
            raise TrainingError(_gradient_failure(losses, batch))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < _SMALLEST_SCALE:
            raise TrainingError(f"{_gradient_failure(losses, batch)}; so does train.precision=float32")
        return value

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # none in a run that goes on from another precision
            self.scaler.load_state_dict(state["scaler"])


class Learner:
    """A matcher that is being trained, with its way down: what a method has one of, or two."""

    def __init__(
        self,
        make_matcher: Callable[[], nn.Module],
        *,
        weight_decay: float = 0.01,
        clip: float = 2.0,
        precision: Precision = "auto",
    ) -> None:
        self.make_matcher = make_matcher
        self.options: dict[str, Any] = {"weight_decay": weight_decay, "clip": clip, "precision": precision}

    @property
    def matcher(self) -> Matcher:
        return cast(Matcher, self.module)

    def renew(self) -> None:
        """Fresh weights, fresh optimizer."""
        self.module = self.make_matcher()
        self.descent = Descent(self.module, **self.options)

    def encode(self, batch: Batch) -> tuple[Encoded, Encoded]:
        """The batch's images and its texts."""
        batch = batch.to(self.descent.device)
        with self.descent.autocast():
            return (
                self.matcher.encode_images(batch.regions, batch.region_mask),
                self.matcher.encode_texts(batch.tokens, batch.lengths),
            )

    def similarities(self, batch: Batch) -> Tensor:
        """Every image of the batch with every text of it. (K, K)"""
        with self.descent.autocast():
            return self.matcher.similarity(*self.encode(batch))

    def scores(self, batch: Batch) -> Tensor:
        """The same before the sigmoid, where the matcher has one. (K, K)"""
        with self.descent.autocast():
            return raw_scores(self.matcher, *self.encode(batch))

    def state_dict(self) -> dict[str, Any]:
        return {"matcher": self.module.state_dict(), "descent": self.descent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["matcher"])
        self.descent.load_state_dict(state["descent"])


def _autocast_dtype(device: torch.device, precision: Precision) -> torch.dtype:
    if precision == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if _has_bfloat16(device) else torch.float16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]


def _has_bfloat16(device: torch.device) -> bool:
    """In hardware: torch itself also counts what it can only imitate, slowly."""
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def _gradient_failure(losses: Tensor, batch: Batch) -> str:
    return _describe_failure(losses * float("nan"), batch).replace("the loss", "the gradient", 1)


def _describe_failure(losses: Tensor, batch: Batch) -> str:
    bad = batch.pairs.cpu()[~torch.isfinite(losses.detach()).cpu()].tolist()  # a batch need not be where its losses are
    guilty = "" if len(bad) == len(batch) else f" ({len(bad)} of them with such a loss: {bad[:10]})"
    return (
        f"the loss became NaN or infinite in the batch of pairs {batch.pairs.tolist()}{guilty}; "
        "a smaller learning rate (train.lr), a larger temperature (loss.tau) or standardised features "
        "(data.standardize=true) usually help"
    )
