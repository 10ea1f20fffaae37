"""How long work is shown: a live bar on a terminal, plain lines elsewhere, TensorBoard if asked."""

import time
from functools import partial
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from crcl.errors import InputError
from crcl.progress import Clock, StepLog, duration
from crcl.training.loop import Schedule

_PLAIN_SECONDS = 30.0  # between two lines where there is no terminal


class Work:
    """Progress of work that is counted, called with what is done and what there is to do: percentage and time left."""

    def __init__(self, what: str, console: Console) -> None:
        self.what = what
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(what, total=None)
        self.spoken_share = 0.0

    def __enter__(self) -> Self:
        self.begun = self.spoken = time.monotonic()
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total)
        now, share = time.monotonic(), done / max(total, 1)
        further = share - self.spoken_share >= 0.01  # a day of work is a hundred lines too
        if not self.console.is_terminal and further and now - self.spoken >= _PLAIN_SECONDS:
            self.spoken, self.spoken_share = now, share
            left = (now - self.begun) * (1 - share) / share
            line = f"{self.what}  {share:.0%}  {duration(now - self.begun)}  left {duration(left)}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)


class Terminal:
    """Progress of a training on a console; every network takes the steps of an epoch, some of them at least."""

    def __init__(self, schedule: Schedule, console: Console | None = None, *, networks: int = 1) -> None:
        self.schedule = schedule
        self.networks = networks
        self.console = console or Console(stderr=True)
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("starting", total=None, numbers="")
        self.start: tuple[float, int] | None = None  # when the first epoch began, and how many steps were done then

    def began(self, clock: Clock, steps: int) -> None:
        steps *= self.networks
        self.total = sum(self.schedule.pieces) * steps
        self.done = clock.total_epoch * steps + min(clock.step, steps)
        pieces = self.schedule.pieces
        self.where = f"piece {clock.piece + 1}/{len(pieces)} epoch {clock.epoch + 1}/{pieces[clock.piece]}"
        self.begun = self.spoken = time.monotonic()
        self.start = self.start or (self.begun, self.done)
        self.pairs = 0
        self.loss: float | None = None  # of this epoch's training steps
        self.bar.start()
        self.bar.update(self.task, description=self.where, completed=self.done, total=self.total)

    def ended(self) -> None:
        self.bar.stop()

    def stepped(self, clock: Clock, log: StepLog) -> None:
        self.pairs += log.pairs
        now = time.monotonic()
        if log.phase == "train":
            self.done += 1
            self.loss = log.loss if self.loss is None else 0.98 * self.loss + 0.02 * log.loss
        rate = self.pairs / max(now - self.begun, 1e-9)
        loss = "" if self.loss is None else f"loss {self.loss:.3f}  lr {clock.learning_rate:.1e}  "
        numbers = f"{log.phase}: {loss}{rate:,.0f} pairs/s"
        self.bar.update(self.task, completed=self.done, numbers=numbers)
        if not self.console.is_terminal and now - self.spoken >= _PLAIN_SECONDS:
            self.spoken = now
            self._say(f"{self.where}  step {self.done}/{self.total}  {numbers}{self._left(now)}")

    def _left(self, now: float) -> str:
        """By all steps since the start and what stands between them: an epoch may divide its pairs before it trains."""
        begun, first = self.start or (now, self.done)
        if self.done == first:
            return ""
        return f"  left {duration((self.total - self.done) * (now - begun) / (self.done - first))}"

    def measured(self, record: dict[str, Any]) -> None:
        dev = record["dev"]
        seconds = time.monotonic() - self.begun
        self._say(
            f"{self.where}  loss {record['loss']:.3f}  dev rSum {dev['rsum']:.1f}  "
            f"mean belief {record['mean_belief']:.3f}  {duration(seconds)}{'  *best' if record['best'] else ''}"
        )

    def _say(self, line: str) -> None:
        self.bar.console.print(line, highlight=False, markup=False, soft_wrap=True)


class TensorBoard:
    """Scalars of each epoch, for TensorBoard."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("--tensorboard needs the package tensorboard: pip install 'crcl[tensorboard]'") from error
        self.open = partial(SummaryWriter, str(folder))
        self.writer: SummaryWriter | None = None
        self.epochs = 0

    def began(self, clock: Clock, steps: int) -> None:
        self.epochs = clock.total_epoch
        if self.writer is None:  # not before: the run folder must not exist yet when a training begins
            self.writer = self.open(purge_step=self.epochs)

    def stepped(self, clock: Clock, log: StepLog) -> None:
        """Steps are not written: an epoch's mean says as much."""

    def measured(self, record: dict[str, Any]) -> None:
        values = {"loss": record["loss"], "dev rSum": record["dev"]["rsum"], "mean belief": record["mean_belief"]}
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, self.epochs)
            self.writer.flush()

    def ended(self) -> None:
        if self.writer is not None:
            self.writer.close()
