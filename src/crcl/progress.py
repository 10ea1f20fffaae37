"""What long work reports while it runs: messages, counted tasks, and the epochs of a training."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

Advance = Callable[[int, int], None]
"""Called with how much of a task is done, and how much there is in all."""

_log = logging.getLogger("crcl")


@dataclass(frozen=True)
class Clock:
    """Where a training stands. All numbers count from 0; `step` is the next step of the epoch."""

    piece: int
    epoch: int
    """Within the piece."""
    step: int
    total_epoch: int
    """Over all pieces: shuffling and augmentation depend on it."""
    learning_rate: float


@dataclass(frozen=True)
class StepLog:
    """The result of one step: how many pairs, their mean loss, and what the step was for."""

    pairs: int
    loss: float
    phase: str = "train"


class Progress:
    """Receives what long work reports. This one stays silent; override what you want to see.

    Example:
        >>> class Notes(Progress):
        ...     def note(self, message):
        ...         print(message)
        >>> Notes().note("3 images were skipped")
        3 images were skipped
    """

    def note(self, message: str) -> None:
        """A message worth knowing although nothing is wrong; goes to the logger `crcl` unless overridden."""
        _log.info(message)

    def status(self, message: str) -> None:
        """What is being done now, one line for each of several long steps."""
        _log.info(message)

    @contextmanager
    def task(self, name: str) -> Iterator[Advance]:
        """A named piece of counted work; yields the function that reports how much is done."""
        yield lambda done, total: None

    def training_started(self, name: str, pieces: Sequence[int], networks: int) -> None:
        """A training begins or resumes: its name, the epochs of each piece, and how many networks take each step."""

    def epoch_started(self, clock: Clock, steps: int) -> None:
        """An epoch of so many training steps begins or resumes."""

    def step_done(self, clock: Clock, log: StepLog) -> None:
        """A step is done."""

    def epoch_done(self, record: dict[str, Any]) -> None:
        """An epoch is done and evaluated on dev; `record` is its line of metrics.jsonl."""

    def training_ended(self) -> None:
        """The training finished or was interrupted."""


SILENT = Progress()
"""The default everywhere: reports nothing."""


class Together(Progress):
    """Passes everything on to several receivers."""

    def __init__(self, *receivers: Progress) -> None:
        self.receivers = receivers

    def note(self, message: str) -> None:
        for receiver in self.receivers:
            receiver.note(message)

    def status(self, message: str) -> None:
        for receiver in self.receivers:
            receiver.status(message)

    @contextmanager
    def task(self, name: str) -> Iterator[Advance]:
        with ExitStack() as stack:
            advances = [stack.enter_context(receiver.task(name)) for receiver in self.receivers]

            def advance(done: int, total: int) -> None:
                for each in advances:
                    each(done, total)

            yield advance

    def training_started(self, name: str, pieces: Sequence[int], networks: int) -> None:
        for receiver in self.receivers:
            receiver.training_started(name, pieces, networks)

    def epoch_started(self, clock: Clock, steps: int) -> None:
        for receiver in self.receivers:
            receiver.epoch_started(clock, steps)

    def step_done(self, clock: Clock, log: StepLog) -> None:
        for receiver in self.receivers:
            receiver.step_done(clock, log)

    def epoch_done(self, record: dict[str, Any]) -> None:
        for receiver in self.receivers:
            receiver.epoch_done(record)

    def training_ended(self) -> None:
        for receiver in self.receivers:
            receiver.training_ended()


def duration(seconds: float) -> str:
    """Minutes and seconds as `m:ss`, or `h:mm:ss` from an hour on."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"
