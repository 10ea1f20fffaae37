"""The training loop `fit`: pieces and epochs of a method, with validation, checkpoints and interruption."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl import distributed
from crcl.data.batches import Batches
from crcl.errors import InputError, Interrupted
from crcl.matchers.base import Matcher, as_module
from crcl.methods.base import Method, Partners
from crcl.metrics import Retrieval
from crcl.progress import SILENT, Clock, Progress
from crcl.runs.beliefs import JUDGED, write_beliefs
from crcl.runs.folder import Run

BELIEF_BINS = 20
"""Bins of the histogram of beliefs that every epoch's metrics hold."""


@dataclass(frozen=True)
class Schedule:
    """Epochs of each piece, and the learning rate, which decays in the last piece only.

    The decay does not count the first `warmup` epochs of that piece.
    """

    pieces: tuple[int, ...]
    learning_rate: float = 5e-4
    decay_after: int = 15
    decay: float = 0.1
    warmup: int = 0

    def clock(self, piece: int, epoch: int, step: int) -> Clock:
        """The clock at a step of the training."""
        decays = max(epoch - self.warmup, 0) // self.decay_after if piece == len(self.pieces) - 1 else 0
        return Clock(
            piece, epoch, step, sum(self.pieces[:piece]) + epoch, learning_rate=self.learning_rate * self.decay**decays
        )


@dataclass
class _Position:
    """Position of a training in its schedule, with the running totals of the epoch."""

    piece: int = 0
    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    loss_pairs: int = 0
    seconds: float = 0.0
    """Of this epoch, without steps that were lost by an interruption."""
    best_rsum: float = -1.0
    best_epoch: int = -1
    finished: bool = False
    metrics_length: int = 0
    records: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "records"}


def fit(
    method: Method,
    batches: Batches,
    schedule: Schedule,
    *,
    validate: Callable[[Matcher], Retrieval],
    seed: int = 0,
    decoys: int = 0,
    run: Run | None = None,
    save_minutes: float = 10.0,
    progress: Progress = SILENT,
) -> list[dict[str, Any]]:
    """Train to the end of the schedule and return the metrics of each epoch.

    With a run folder the state is saved after each epoch, every `save_minutes` and on Ctrl-C, and training resumes
    from a state found there, with a result that is bit-identical to an uninterrupted training. The run keeps the
    matcher with the best dev rSum of the last piece. The last `decoys` pairs are decoys, which the metrics exclude.
    """
    position = _restore(method, run, schedule)
    run = run if distributed.is_first() else None  # one process writes; the others know the same
    with _deferred_interrupts() as interrupted, _reporting_end(progress):
        while not position.finished:
            if position.epoch == 0 and position.step == 0:
                torch.manual_seed(int(np.random.SeedSequence([seed, position.piece]).generate_state(1)[0]))
                method.begin_piece(position.piece)
                position.best_rsum, position.best_epoch = -1.0, -1
            _train_epoch(method, batches, schedule, position, run, save_minutes, progress, interrupted)
            _finish_epoch(method, schedule, position, validate(method.matcher), decoys, run, progress)
    return position.records


def _train_epoch(
    method: Method,
    batches: Batches,
    schedule: Schedule,
    position: _Position,
    run: Run | None,
    save_minutes: float,
    progress: Progress,
    interrupted: "_Interrupt",
) -> None:
    clock = schedule.clock(position.piece, position.epoch, position.step)
    saved = time.monotonic()
    started = saved - position.seconds
    distributed.meet()  # the first one may have been writing for long
    progress.epoch_started(clock, len(batches))
    for log in method.train_epoch(batches, clock):
        position.step += 1
        position.seconds = time.monotonic() - started
        if log.phase == "train":
            position.loss_sum += log.loss * log.pairs
            position.loss_pairs += log.pairs
        progress.step_done(clock, log)
        if distributed.any_process(interrupted.is_set()):
            _save(method, position, run)
            distributed.wait_for_first()
            raise Interrupted(interrupted.signal)
        if run is not None and time.monotonic() - saved >= save_minutes * 60:
            _save(method, position, run)
            saved = time.monotonic()
    if run is not None:
        seconds = round(time.monotonic() - started, 3)
        run.append("timing.jsonl", {"piece": position.piece, "epoch": position.epoch, "seconds": seconds})


def _finish_epoch(
    method: Method,
    schedule: Schedule,
    position: _Position,
    scores: Retrieval,
    decoys: int,
    run: Run | None,
    progress: Progress,
) -> None:
    best = scores.rsum > position.best_rsum
    if best:
        position.best_rsum, position.best_epoch = scores.rsum, position.epoch
    correspondence = method.correspondence
    beliefs = correspondence[: len(correspondence) - decoys]
    record = {
        "piece": position.piece,
        "epoch": position.epoch,
        "learning_rate": schedule.clock(position.piece, position.epoch, 0).learning_rate,
        "loss": position.loss_sum / max(position.loss_pairs, 1),
        "dev": {"rsum": scores.rsum, **asdict(scores)},
        "best": best,
        "mean_belief": float(beliefs.mean(dtype=np.float64)),
        "beliefs": np.histogram(beliefs, bins=BELIEF_BINS, range=(0, 1))[0].tolist(),
    }
    position.records.append(record)
    position.step, position.loss_sum, position.loss_pairs, position.seconds = 0, 0.0, 0, 0.0
    position.epoch += 1
    if position.epoch == schedule.pieces[position.piece]:
        position.piece, position.epoch = position.piece + 1, 0
        position.finished = position.piece == len(schedule.pieces)
    if run is not None:
        run.keep_beliefs(len(position.records) - 1, beliefs)
        run.append("metrics.jsonl", record)
        if best:
            run.save_matcher(as_module(method.matcher).state_dict())
        run.save_ledger(correspondence)
        judged: np.ndarray | None = getattr(method, "judged", None)
        if judged is not None:
            write_beliefs(run.path / JUDGED, judged, run.sizes["pairs"])
        partners: Partners | None = getattr(method, "partners", None)
        if partners is not None:
            run.save_partners(partners.images, partners.beliefs)
        _save(method, position, run)
    progress.epoch_done(record)


def _save(method: Method, position: _Position, run: Run | None) -> None:
    if run is None:
        return
    position.metrics_length = run.length("metrics.jsonl")
    run.save_state({"method": method.state_dict(), "progress": position.state(), "random": _random_state(method)})


def _random_state(method: Method) -> dict[str, Tensor]:
    """States of the random generators that a training uses: of the CPU and of its device."""
    device = next(as_module(method.matcher).parameters()).device
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def _set_random_state(method: Method, states: dict[str, Tensor]) -> None:
    """Restore the random generators; a run resumed on another kind of device restores that of the CPU only."""
    device = next(as_module(method.matcher).parameters()).device
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    elif device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(states["mps"])


def _restore(method: Method, run: Run | None, schedule: Schedule) -> _Position:
    """Load the state of the run folder into the method and return its position, or the first position if none."""
    state = run.load_state() if run is not None else None
    if run is None or state is None:
        if run is not None and distributed.is_first():
            run.truncate("metrics.jsonl", 0)
        return _Position()
    try:
        position = _Position(**state["progress"])
        if not position.finished and position.epoch >= schedule.pieces[position.piece]:
            raise ValueError(f"piece {position.piece + 1} has no epoch {position.epoch + 1}")
        method.begin_piece(position.piece)
        method.load_state_dict(state["method"])
        _set_random_state(method, state["random"])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        raise InputError(
            f"training.pt does not fit the run ({error})", where=run.path, hint="train again with {overwrite}"
        ) from error
    if distributed.is_first():
        run.truncate("metrics.jsonl", position.metrics_length)
    position.records = run.metrics()
    if position.records:  # these files may not be written again, so they must be complete
        run.require("matcher.safetensors", "ledger.npz")
        run.load_matcher()
        run.load_ledger()
    return position


@contextmanager
def _reporting_end(progress: Progress) -> Iterator[None]:
    """Report the end of the training, however it ends."""
    try:
        yield
    finally:
        progress.training_ended()


class _Interrupt(threading.Event):
    """Whether the training is to stop, and the number of the signal that said so."""

    signal = int(signal.SIGINT)


STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Ctrl-C, what clusters send before they end a job, and the end of the terminal (which Windows does not have)."""


@contextmanager
def _deferred_interrupts() -> Iterator[_Interrupt]:
    """Defer Ctrl-C and signals that end a process to the end of a step; a second one stops immediately.

    A signal that is ignored, as SIGHUP under nohup, stays ignored.
    """
    requested = _Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return

    def request(signum: int, frame: Any) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.signal = signum
        requested.set()
        distributed.stopping.set()

    known = [getattr(signal, name) for name in STOPPING if hasattr(signal, name)]
    heard = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, request) for number in heard}
    try:
        yield requested
    finally:
        distributed.stopping.clear()
        for number, handler in before.items():
            signal.signal(number, handler)
