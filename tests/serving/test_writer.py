"""Steps that wait for the disk are written together, and one that is refused takes no other with it."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from crcl.errors import InputError
from crcl.runs.verdicts import Step, Verdict, Verdicts
from crcl.serving.writer import Writer


def step(row: int) -> Step:
    return Step("Ana", (Verdict(row, "right"),))


def test_steps_that_wait_are_written_together_each_with_its_own_number(tmp_path: Path) -> None:
    verdicts, sizes, first = Verdicts(tmp_path, "known"), list[int](), threading.Event()

    def store(steps: Sequence[Step]) -> list[int]:
        sizes.append(len(steps))
        first.wait(30)
        return verdicts.add_steps(steps)

    async def run() -> list[int]:
        writer = Writer(store)
        begun = asyncio.create_task(writer.add(step(0)))
        while not sizes:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(writer.add(step(row))) for row in range(1, 8)]
        await asyncio.sleep(0.01)
        first.set()
        return [await task for task in (begun, *others)]

    numbers = asyncio.run(run())
    assert sizes == [1, 7]
    assert numbers == list(range(1, 9))
    assert verdicts.history()["row"].to_pylist() == list(range(8))


def test_a_step_that_is_refused_takes_no_other_with_it(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path, "known")

    async def run() -> list[int | BaseException]:
        writer = Writer(verdicts.add_steps)
        steps = [step(1), Step("Ana", (Verdict(2, "right", caption="another"),)), step(3)]
        return await asyncio.gather(*(writer.add(one) for one in steps), return_exceptions=True)

    one, refused, other = asyncio.run(run())
    assert (one, other) == (1, 2)
    assert isinstance(refused, InputError)
    assert sorted(verdicts.current()) == [1, 3]


def test_an_error_of_the_store_reaches_everybody_who_waits() -> None:
    def store(steps: Sequence[Step]) -> list[int]:
        raise OSError("no disk")

    async def run() -> list[int | BaseException]:
        writer = Writer(store)
        return await asyncio.gather(*(writer.add(step(row)) for row in range(3)), return_exceptions=True)

    found = asyncio.run(run())
    assert all(isinstance(one, InputError | OSError) for one in found)
    with pytest.raises(OSError, match="no disk"):
        raise next(one for one in found if isinstance(one, OSError))
