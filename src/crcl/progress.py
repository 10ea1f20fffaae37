"""Progress of long work: messages, counted tasks, and the epochs of a training."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

Advance = Callable[[int, int], None]
"""Called with the completed amount of a task, and its total."""

_log = logging.getLogger("crcl")


@dataclass(frozen=True)
class Clock:
    """Position of a training. All numbers count from 0; `step` is the next step of the epoch."""

    piece: int
    epoch: int
    """Within the piece."""
    step: int
    total_epoch: int
    """Over all pieces: shuffling and augmentation depend on it."""
    learning_rate: float


@dataclass(frozen=True)
class StepLog:
    """Result of one step: number of pairs, their mean loss, and the phase of the epoch."""

    pairs: int
    loss: float
    phase: str = "train"


class Progress:
    """Receives the progress of long work. This base class shows nothing; override the methods you need.

    Example:
        >>> class Notes(Progress):
        ...     def note(self, message):
        ...         print(message)
        >>> Notes().note("3 images were skipped")
        3 images were skipped
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def note(self, message: str) -> None:
        """A message for the user although nothing is wrong; goes to the logger `crcl` unless overridden."""
        _log.info(message)

    def status(self, message: str) -> None:
        """A line for each of several long steps, when it starts."""
        _log.info(message)

    @contextmanager
    def task(self, name: str) -> Iterator[Advance]:
        """A named task; yields the function to report its progress with."""
        yield lambda done, total: None

    def training_started(self, name: str, pieces: Sequence[int], networks: int) -> None:
        """A training starts or resumes: its name, the epochs of each piece, and the number of networks."""

    def epoch_started(self, clock: Clock, steps: int) -> None:
        """An epoch with this number of training steps starts or resumes."""

    def step_done(self, clock: Clock, log: StepLog) -> None:
        """A step is done."""

    def epoch_done(self, record: dict[str, Any]) -> None:
        """An epoch is done and evaluated on dev; `record` is its line of metrics.jsonl."""

    def training_ended(self) -> None:
        """The training finished or was interrupted."""


SILENT = Progress()
"""The default everywhere: reports nothing."""

_reading: ContextVar[Progress] = ContextVar("reading", default=SILENT)


@contextmanager
def reading_shown_by(progress: Progress) -> Iterator[None]:
    """Show the progress of reading data, which begins when a part of the data is first needed, wherever that is."""
    before = _reading.set(progress)
    try:
        yield
    finally:
        _reading.reset(before)


def reading_task(name: str) -> AbstractContextManager[Advance]:
    """A task of reading data, shown by what `reading_shown_by` was given; by default not at all."""
    return _reading.get().task(name)


class ProgressGroup(Progress):
    """Forwards everything to several receivers."""

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
