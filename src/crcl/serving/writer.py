"""One writer of verdicts for all requests: steps that come while the disk is busy are written together."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from anyio import to_thread

from crcl.errors import InputError
from crcl.runs.verdicts import Step

Some = TypeVar("Some")
_Waiting = tuple[Step, "asyncio.Future[int]"]


class Writer:
    """Stores steps in the order in which they came."""

    def __init__(self, store: Callable[[Sequence[Step]], list[int]]) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._waiting: list[_Waiting] = []

    async def add(self, step: Step) -> int:
        """Store a step; returns its number when it is on disk, and raises an error if it is refused."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((step, done))
        async with self._lock:
            if not done.done():  # else a write before has taken it along
                together, self._waiting = self._waiting, []
                await self._write(together)
        return await done

    async def alone(self, work: Callable[[], Some]) -> Some:
        """The result of other work on the store, while nothing else is written."""
        async with self._lock:
            return await to_thread.run_sync(work)

    async def _write(self, together: list[_Waiting]) -> None:
        try:
            numbers = await to_thread.run_sync(self._store, [step for step, _ in together])
            for (_, done), number in zip(together, numbers, strict=True):
                done.set_result(number)
        except InputError as error:
            if len(together) == 1:
                together[0][1].set_exception(error)
                return
            for one in together:  # a step that is refused takes no other with it
                await self._write([one])
        finally:
            for _, done in together:
                if not done.done():
                    done.set_exception(InputError("not saved: the writing was interrupted"))
