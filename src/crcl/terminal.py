"""Progress on a terminal: live bars, or plain lines if the output is not a terminal. Escapes control characters."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from crcl.progress import Advance, Clock, Progress, StepLog, duration

_WIDE = 130  # columns that a whole line of progress takes
_PLAIN_SECONDS = 30.0  # between two lines if the output is not a terminal
_LEGEND = (
    "dev rSum is retrieval on held-out pairs, 600 at most, and the epoch with the highest one is kept; mean belief is "
    "how much the training pairs are believed to match"
)
_OF_PIECES = "; each piece begins with fresh weights and the beliefs of the one before"


class Screen(Console):
    """A console that escapes control characters, since file names and captions may be hostile.

    Work goes on when nothing more can be printed, because a reader has gone or a disk is full; `lost` tells why.
    """

    lost: OSError | None = None
    """Why nothing is printed any longer; None where all is printed."""

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            self._be_quiet(error)

    def on_broken_pipe(self) -> None:
        """Go on without printing; rich would end the program."""
        self._be_quiet(BrokenPipeError())

    def _be_quiet(self, error: OSError) -> None:
        self.lost, self.quiet = error, True
        del self._buffer[:]
        discard(self.file)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as a Console does."""
        super().print(*(printable(item) if isinstance(item, str) else item for item in objects), **options)


def discard(stream: IO[str]) -> None:
    """Send all that is still written to a stream nowhere, so that Python does not fail on it at its end."""
    with suppress(OSError, ValueError):  # a stream of a test has no number
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def printable(text: str) -> str:
    """The text with every control character but line breaks escaped."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def is_launched() -> bool:
    """Whether `torchrun` started this process: `distributed.launched` without loading torch."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_follower() -> bool:
    """Whether `torchrun` started this process beside a first one, which shows what there is to show."""
    return is_launched() and os.environ.get("RANK", "0") != "0"


def standard_error() -> Screen:
    """The screen that progress and messages go to."""
    return Screen(stderr=True, highlight=False, markup=False, emoji=False)


class Terminal(Progress):
    """Shows messages, counted tasks and trainings on a console."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or standard_error()
        self.pieces: Sequence[int] = ()
        self.networks = 1
        self.shows_task = False

    def note(self, message: str) -> None:
        self.console.print(f"note: {message}", soft_wrap=True)

    def status(self, message: str) -> None:
        self._print(message)

    @contextmanager
    def task(self, name: str) -> Iterator[Advance]:
        """Show a bar with percentage and time left, or a line every 30 seconds if the output is not a terminal.

        Of a task within another one nothing is shown, since a console has room for one bar.
        """
        if self.shows_task:
            yield lambda done, total: None
            return
        self.shows_task = True
        try:
            with self._shown(name) as advance:
                yield advance
        finally:
            self.shows_task = False

    @contextmanager
    def _shown(self, name: str) -> Iterator[Advance]:
        columns = (TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        with self._bar(BarColumn(bar_width=24), *columns, transient=True) as bar:
            task = bar.add_task(name, total=None)
            started = printed = time.monotonic()
            printed_share = 0.0

            def advance(done: int, total: int) -> None:
                nonlocal printed, printed_share
                bar.update(task, completed=done, total=total)
                now, share = time.monotonic(), done / max(total, 1)
                further = share - printed_share >= 0.01  # at most a hundred lines, however long it takes
                if not self.console.is_terminal and further and now - printed >= _PLAIN_SECONDS:
                    printed, printed_share = now, share
                    left = (now - started) * (1 - share) / share
                    self._print(f"{name}  {share:.0%}  {duration(now - started)}  left {duration(left)}")

            yield advance

    def training_started(self, name: str, pieces: Sequence[int], networks: int) -> None:
        self.pieces = pieces
        self.networks = networks
        self.explained = sum(pieces) == 1  # what the numbers of an epoch are
        self.bar = self._bar(
            BarColumn(bar_width=24 if self.console.width >= _WIDE else 8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            spinner=True,
        )
        self.bar_task = self.bar.add_task("starting", total=None, numbers="")
        self.start: tuple[float, int] | None = None  # when the first epoch began, and how many steps were done then

    def epoch_started(self, clock: Clock, steps: int) -> None:
        steps *= self.networks
        self.total = sum(self.pieces) * steps
        self.done = clock.total_epoch * steps + min(clock.step, steps)
        self.where = self._where(clock)
        if not self.explained:  # not before: a training that is finished already has no epoch to explain
            self.note(_LEGEND + (_OF_PIECES if len(self.pieces) > 1 else ""))
            self.explained = True
        self.epoch_start = self.printed = time.monotonic()
        self.start = self.start or (self.epoch_start, self.done)
        self.pairs = 0
        self.loss: float | None = None  # of this epoch's training steps
        self.bar.start()
        self.bar.update(self.bar_task, description=self.where, completed=self.done, total=self.total)

    def step_done(self, clock: Clock, log: StepLog) -> None:
        self.pairs += log.pairs
        now = time.monotonic()
        if log.phase == "train":
            self.done += 1
            self.loss = log.loss if self.loss is None else 0.98 * self.loss + 0.02 * log.loss
        rate = self.pairs / max(now - self.epoch_start, 1e-9)
        loss = "" if self.loss is None else f"loss {self.loss:.3f}  lr {clock.learning_rate:.1e}  "
        numbers = f"{log.phase}: {loss}{rate:,.0f} pairs/s"
        room = self.console.width >= _WIDE  # in a narrow window the time left matters more
        self.bar.update(self.bar_task, completed=self.done, numbers=numbers if room else "")
        if not self.console.is_terminal and now - self.printed >= _PLAIN_SECONDS:
            self.printed = now
            self._print(f"{self.where}  step {self.done}/{self.total}  {numbers}{self._left(now)}")

    def epoch_done(self, record: dict[str, Any]) -> None:
        dev = record["dev"]
        seconds = time.monotonic() - self.epoch_start
        belief = f"mean belief {record['mean_belief']:.3f}"
        if self.single and self.loss is None:  # nothing was learnt in steps
            told = f"retrieval on held-out pairs (dev rSum) {dev['rsum']:.1f} of 600, {belief} in the pairs"
            self._print(f"linear model fitted in {duration(seconds)}: {told}")
            return
        loss = "" if self.loss is None else f"  loss {record['loss']:.3f}"  # none without a training step
        best = "  best so far" if record["best"] and not self.single else ""
        self._print(f"{self.where}{loss}  dev rSum {dev['rsum']:.1f}  {belief}  {duration(seconds)}{best}")

    @property
    def single(self) -> bool:
        """Whether the training has a single epoch."""
        return sum(self.pieces) == 1

    def _where(self, clock: Clock) -> str:
        """The epoch, and the piece where there are several."""
        if self.single:
            return "training"
        epoch = f"epoch {clock.epoch + 1}/{self.pieces[clock.piece]}"
        return epoch if len(self.pieces) == 1 else f"piece {clock.piece + 1}/{len(self.pieces)} {epoch}"

    def training_ended(self) -> None:
        self.bar.stop()

    def _left(self, now: float) -> str:
        """Time left, from the duration of all steps since the start, including other phases of the epochs."""
        started, first = self.start or (now, self.done)
        if self.done == first:
            return ""
        return f"  left {duration((self.total - self.done) * (now - started) / (self.done - first))}"

    def _bar(self, *columns: ProgressColumn, spinner: bool = False, transient: bool = False) -> Bar:
        first = [SpinnerColumn()] if spinner else []
        return Bar(
            *first,
            TextColumn("{task.description}"),
            *columns,
            console=self.console,
            transient=transient,
            disable=not self.console.is_terminal,
        )

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
