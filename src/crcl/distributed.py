"""Several processes that `torchrun` starts to share one piece of work: who they are, and what they exchange.

The unit is the whole batch: each process computes a part of it, and gets what this needs of the others. Without
`torchrun` there is one process, and every function here returns what it is given.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from itertools import count as numbers
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from crcl.errors import Interrupted, TrainingError

TIMEOUT = timedelta(seconds=45)
"""How long a process waits for the others within a step, before it takes one of them for dead."""
stopping = threading.Event()
"""Set while a training is asked to stop: it then does not wait much longer for the other processes."""
_PATIENCE = 10.0  # seconds that it still waits for them, since they may be asked to stop, too
_BUCKET = 2**23  # numbers that are summed over the processes at a time: 32 MB
_alone: ContextVar[bool] = ContextVar("alone", default=False)
_turns = numbers()


@dataclass(frozen=True)
class Part:
    """The part of a batch that this process computes: pairs `start` to `stop` of `whole`."""

    start: int
    stop: int
    whole: int

    @property
    def own(self) -> slice:
        return slice(self.start, self.stop)

    @classmethod
    def of(cls, whole: int, number: int, processes: int) -> "Part | None":
        """The part of one of several processes of a batch of so many pairs; parts differ by one pair at most.

        None: the batch is not divided. There is one process, or there are fewer pairs than processes, and each of
        these then computes all of them.
        """
        if processes == 1 or whole < processes:
            return None
        size, rest = divmod(whole, processes)
        start = number * size + min(number, rest)
        return cls(start, start + size + (number < rest), whole)


_part: ContextVar[Part | None] = ContextVar("part", default=None)


def current_part() -> Part | None:
    """The part that is being encoded or compared; None if the batch is not divided."""
    return _part.get()


@contextmanager
def dividing(part: Part | None) -> Iterator[None]:
    """Compute with a part of a batch: statistics and dropout within this context are those of the whole batch."""
    before = _part.set(part)
    try:
        yield
    finally:
        _part.reset(before)


def launched() -> bool:
    """Whether `torchrun` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_first() -> bool:
    """Whether this process writes files and messages."""
    return rank() == 0


def together() -> int:
    """The number of processes that `torchrun` started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def count() -> int:
    """The number of processes that work together here: 1 where each process works by itself."""
    return 1 if _alone.get() else together()


def leads() -> bool:
    """Whether this process writes what those that work together here have made."""
    return count() == 1 or is_first()


def own_share(number: int) -> slice:
    """The places of those of so many pieces of work that this process does: every P-th of P processes."""
    return slice(0, number) if count() == 1 else slice(rank(), number, count())


@contextmanager
def processes() -> Iterator[None]:
    """Connect the processes that `torchrun` started, and disconnect them at the end; without it, do nothing.

    `torchrun` sends SIGTERM to the others when one of them ends: they then stop with a message.
    """
    if not launched() or dist.is_initialized():
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "cpu:gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        with _stopped_by_launcher():
            yield
    finally:
        # waits for nobody: others may be dead, or still at work
        dist.destroy_process_group()


@contextmanager
def _stopped_by_launcher() -> Iterator[None]:
    def stop(signum: int, frame: Any) -> None:
        raise Interrupted(signum)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def first_process_first() -> Iterator[None]:
    """Let the first process finish this block, alone, before the others begin it, however long that takes.

    What the first one writes, the others find. If it fails, `torchrun` ends the others.
    """
    if count() == 1:
        yield
        return
    key, store = _next_turn()
    if not is_first():
        _wait_for(store, key)
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)
    if is_first():
        _reaching(store.set, key, "done")


def wait_for_first() -> None:
    """Wait until the first process gets here."""
    with first_process_first():
        pass


def meet() -> None:
    """Wait until all processes get here, however long that takes.

    The exchange that follows then does not wait for long work of one of them, which `TIMEOUT` would end.
    """
    if count() > 1:
        key, store = _next_turn()
        if _reaching(store.add, f"{key}/here", 1) == count():
            _reaching(store.set, key, "done")
        _wait_for(store, key)


def _next_turn() -> tuple[str, Any]:
    """A key that all processes use next, and the store that connects them."""
    return f"crcl/turn/{next(_turns)}", dist.distributed_c10d._get_default_store()


def _wait_for(store: Any, key: str) -> None:
    """Wait for a key of the store that connects the processes; asks again and again, so that signals are heard."""
    pause, patience = 0.001, _PATIENCE
    while not _reaching(store.check, [key]):
        time.sleep(pause)
        patience -= pause if stopping.is_set() else 0
        if patience <= 0:
            raise TrainingError(_lost(f"waited for {_PATIENCE} seconds after it was told to stop"))
        pause = min(1.5 * pause, 0.5)


def collect(own: bytes) -> list[bytes]:
    """What each process gives, in the order of the processes; waits for all of them."""
    if count() == 1:
        return [own]
    meet()
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(count())]
    _exchange(dist.all_gather, sizes, torch.tensor([len(own)]))
    longest = max(1, *(int(size) for size in sizes))
    given = torch.zeros(longest, dtype=torch.uint8)
    given[: len(own)] = torch.from_numpy(np.frombuffer(own, np.uint8).copy())
    found = [torch.empty_like(given) for _ in sizes]
    _exchange(dist.all_gather, found, given)
    return [content[: int(size)].numpy().tobytes() for content, size in zip(found, sizes, strict=True)]


def summed(own: np.ndarray) -> np.ndarray:
    """The sum of the arrays of all processes, where each has zeros for what others made; waits for all of them."""
    if count() == 1:
        return own
    meet()
    held = torch.from_numpy(np.ascontiguousarray(own).copy())
    _exchange(dist.all_reduce, held)
    return held.numpy()


def gather(own: Tensor, part: Part | None) -> Tensor:
    """The rows of all processes, in the order of the batch; gradients flow back. `(k, ...)` -> `(K, ...)`"""
    return own if part is None else _Gather.apply(own, part)


def own_first(whole: Tensor, part: Part | None, *, dim: int = 0) -> Tensor:
    """The entries of a whole batch along a dimension, rotated so that those of this process come first."""
    return whole if part is None else whole.roll(-part.start, dims=dim)


def total(own: Tensor) -> Tensor:
    """The sum over all processes; gradients flow back."""
    return _Total.apply(own) if count() > 1 else own


def sum_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace the gradient of each parameter by its sum over all processes."""
    if count() == 1:
        return
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    while found:
        taken, size = 1, found[0].numel()
        while taken < len(found) and size + found[taken].numel() <= _BUCKET and found[taken].dtype == found[0].dtype:
            size, taken = size + found[taken].numel(), taken + 1
        bucket, found = found[:taken], found[taken:]
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        _exchange(dist.all_reduce, flat)
        for gradient, summed in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
            gradient.copy_(summed.view_as(gradient))


def any_process(flag: bool) -> bool:
    """Whether any process says yes."""
    if count() == 1:
        return flag
    votes = torch.tensor([int(flag)])
    _exchange(dist.all_reduce, votes)
    return bool(votes.item())


def from_first(array: np.ndarray) -> np.ndarray:
    """The array that the first process has here; those of the others have the same shape, and nearly its values."""
    if count() == 1:
        return array
    held = torch.from_numpy(np.ascontiguousarray(array).copy())
    spread_from_first([held])
    return held.numpy()


def spread_from_first(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by those of the first process."""
    if count() > 1:
        for tensor in tensors:
            _exchange(dist.broadcast, tensor.detach(), 0)


def _exchange(collective: Callable[..., Any], *arguments: Any) -> None:
    """Run a collective operation; a process that is gone is an error with a message."""
    _reaching(collective, *arguments)


def _reaching(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call what needs other processes or the store of `torchrun`; one that is gone is an error with a message."""
    try:
        return call(*arguments)
    except (RuntimeError, dist.DistError) as error:
        raise TrainingError(_lost(str(error).splitlines()[0][:200])) from error


def _lost(why: str) -> str:
    return (
        f"process {rank() + 1} of {together()} lost contact with another one, which ended or did not answer for "
        f"{TIMEOUT.seconds} seconds; the last checkpoint and all finished work are intact: the same command goes on, "
        f"a training with resume, in any number of processes ({why})"
    )


class _Gather(torch.autograd.Function):
    """All processes' rows. Its gradient sums what all processes want of the rows of this one."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, part: Part) -> Tensor:
        ctx.part = part
        size, rest = divmod(part.whole, count())
        sizes = [size + (number < rest) for number in range(count())]
        padded = _padded(own, sizes[0])
        gathered = [torch.empty_like(padded) for _ in sizes]
        _exchange(dist.all_gather, gathered, padded)
        return torch.cat([rows[:size] for rows, size in zip(gathered, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        _exchange(dist.all_reduce, summed)
        return summed[ctx.part.own], None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        summed = own.clone(memory_format=torch.contiguous_format)
        _exchange(dist.all_reduce, summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        _exchange(dist.all_reduce, summed)
        return summed


def _padded(rows: Tensor, size: int) -> Tensor:
    missing = size - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows.contiguous()
