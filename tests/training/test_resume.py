"""A training that is killed or stopped, at whatever moment, and resumed ends as if nothing had happened."""

import multiprocessing
import multiprocessing.process
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny import (
    Stop,
    StopAfter,
    assert_same_runs,
    command,
    finish,
    small_config,
    start,
    train_command,
    write_folder,
)

from crcl.config import Config
from crcl.methods import METHODS
from crcl.runs.folder import Run
from crcl.training import session

LONGER = ["train.pieces=[3,6]", "train.batch_size=4"]
"""Settings of a training of some seconds, so that a kill can hit it."""
EACH_STEP = "train.save_minutes=0"
RESUME = {"resume": True}
VSE = ["matcher.name=vse", "train.pieces=[1,3]", "train.batch_size=8", EACH_STEP]


class Reference(NamedTuple):
    """A training that nobody disturbed."""

    data: Path
    run: Path

    @property
    def seconds(self) -> float:
        """From the making of its folder to the last state in it."""
        first, last = ((self.run / name).stat().st_mtime for name in ("config.json", "training.pt"))
        return last - first


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A training in its own process, from beginning to end."""
    folder = tmp_path_factory.mktemp("resume")
    data = write_folder(folder / "data", train=40)
    answer = command(*train_command(data, folder / "reference", settings=[*LONGER, EACH_STEP]))
    assert answer.code == 0, answer.err
    return Reference(data, folder / "reference")


Process = subprocess.Popen[str] | multiprocessing.process.BaseProcess


def exit_code_within(process: Process, seconds: float) -> int | None:
    """The exit code of a process that ends in time; `join` would also wait for workers that it leaves behind."""
    forked = isinstance(process, multiprocessing.process.BaseProcess)
    deadline = time.monotonic() + seconds
    while (code := process.exitcode if forked else process.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return code


def assert_ends_alike_when_killed(
    start_on: Callable[[Path], Process], reference: Reference, folder: Path, *, kills: int
) -> None:
    """Kill trainings at random moments of their lives until it has happened so often; each must end as the reference.

    A training that ends before its kill is compared, and the next kill hits a new one.
    """
    rng = random.Random(0)
    done = number = 0
    while True:
        run = folder / f"run{number}"
        process = start_on(run)
        deadline = time.monotonic() + 120
        while not (run / "config.json").exists() and time.monotonic() < deadline:
            time.sleep(0.002)  # a training that has not begun has nothing to lose
        code = exit_code_within(process, rng.uniform(0, reference.seconds) if done < kills else 120)
        if code is None:
            process.kill()
            code = exit_code_within(process, 120)
        if code == -signal.SIGKILL:
            done += 1
            assert done <= kills, "the last training did not end"
            continue
        assert code == 0  # also where it ended just before its kill
        assert_same_runs(run, reference.run)
        if done == kills:
            return
        number += 1


def forked(config: Config) -> Callable[[Path], Process]:
    """Starts trainings in processes of their own which need not import everything again."""

    def start_on(run: Path) -> Process:
        process = multiprocessing.get_context("fork").Process(target=session.train, args=(config, run), kwargs=RESUME)
        process.start()
        return process

    return start_on


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "kills"),
    [
        ([*LONGER, EACH_STEP], 8),
        (["train.pieces=[1,3]", "train.workers=2", "train.shuffle_block=4", "train.shuffle_mixed=2"], 4),
        (VSE, 4),
    ],
    ids=["bow, saved each step", "bow, saved each epoch, in blocks, with workers", "vse, saved each step"],
)
def test_killed_at_random_moments_a_training_ends_bit_identical(
    tmp_path: Path, settings: list[str], kills: int
) -> None:
    config = small_config(write_folder(tmp_path / "data", train=40), *settings)
    reference = Reference(tmp_path / "data", session.train(config, tmp_path / "reference").path)
    assert_ends_alike_when_killed(forked(config), reference, tmp_path, kills=kills)


@pytest.mark.slow
def test_the_command_killed_at_random_moments_ends_bit_identical_too(reference: Reference, tmp_path: Path) -> None:
    def start_on(run: Path) -> Process:
        words = train_command(reference.data, run, "--resume", settings=[*LONGER, EACH_STEP])
        return start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    assert_ends_alike_when_killed(start_on, reference, tmp_path, kills=4)


def train_and_die(config: Config, run: Path, operation: int) -> None:
    """Train in a forked process that dies in its n-th change of a file near the run: half-way through a write."""
    changes = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal changes
        near = arguments and isinstance(arguments[0], str | os.PathLike) and str(run.parent) in os.fspath(arguments[0])
        mode = str(arguments[1]) if near and event == "open" else "r"
        if near and (mode[0] in "wa" or event in ("os.rename", "os.truncate", "os.mkdir", "os.remove", "os.rmdir")):
            changes += 1
            if changes == operation:
                if event == "open":
                    Path(arguments[0]).open(mode).close()
                    os.truncate(arguments[0], Path(arguments[0]).stat().st_size + 5)
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    session.train(config, run, resume=True)


@pytest.mark.slow
def test_killed_in_any_change_of_a_file_a_training_ends_bit_identical(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    config = small_config(data, "train.pieces=[1,1]", "ledger.freeze_epochs=0", "train.batch_size=24", EACH_STEP)
    expected = session.train(config, tmp_path / "reference").path
    process_of = multiprocessing.get_context("fork").Process
    operation = 0
    while True:
        operation += 1
        run = tmp_path / f"killed{operation}" / "run"
        killed = process_of(target=train_and_die, args=(config, run, operation))
        killed.start()
        killed.join()
        if killed.exitcode == 0:
            break
        assert killed.exitcode == -signal.SIGKILL
        session.train(config, run, resume=True)
        assert_same_runs(run, expected)
    assert operation > 30  # every save makes several changes: all of them were hit


@pytest.mark.slow
@pytest.mark.parametrize("settings", [[], [EACH_STEP]], ids=["each epoch", "each step"])
@pytest.mark.parametrize(
    "kind",
    [
        "ledger.correction=paper",
        "ledger.correction=official",
        "ledger.correction=none",
        "ledger.probability=eval",
        "data.standardize=true",
        *(f"method={name}" for name in METHODS if name != "crcl"),
    ],
)
def test_lost_at_any_step_a_training_ends_bit_identical(tmp_path: Path, settings: list[str], kind: str) -> None:
    data = write_folder(tmp_path / "data", train=16)
    config = small_config(data, "train.pieces=[2,2]", *settings, kind)
    expected = session.train(config, tmp_path / "reference").path
    lost = 0
    while True:  # each training goes two steps further than the one before, over the ends of epochs and pieces
        lost += 1
        run = tmp_path / f"run{lost}"
        try:
            session.train(config, run, progress=StopAfter(2 * lost))
            break
        except Stop:
            session.train(config, run, resume=True)
        assert_same_runs(run, expected)
    assert lost > 2


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    runs = [
        session.train(small_config(data, f"train.workers={count}", "ledger.probability=eval"), tmp_path / str(count))
        for count in (0, 2)
    ]
    assert_same_runs(runs[0].path, runs[1].path)


def test_the_same_seed_gives_the_same_metrics_and_another_does_not(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        session.train(small_config(data, f"train.seed={seed}"), tmp_path / name)
    one, again, other = (Run.open(tmp_path / name).metrics() for name in ("one", "again", "other"))
    assert one == again
    assert one != other
    assert not any("second" in key or "time" in key for record in one for key in record)


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_go_on_and_the_resumed_training_ends_the_same(
    reference: Reference, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = start(*train_command(reference.data, run, settings=[*LONGER, "train.workers=2"]), start_new_session=True)
    deadline = time.monotonic() + 120
    while not (run / "training.pt").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers as well
    answer = finish(process)
    assert answer.code == 130, answer.err
    assert "Traceback" not in answer.err
    assert f"crcl train {reference.data} -o {run} " in answer.err
    assert answer.err.rstrip().endswith("--resume")
    assert torch.load(run / "training.pt", weights_only=True)["progress"]["step"] > 0  # in the middle of an epoch
    answer = command(*train_command(reference.data, run, "--resume", settings=LONGER))
    assert answer.code == 0, answer.err
    assert_same_runs(run, reference.run)


@pytest.mark.slow
def test_a_full_disk_ends_the_training_with_a_message_and_the_old_state(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    expected = session.train(small_config(data), tmp_path / "reference").path
    run = tmp_path / "run"
    with pytest.raises(Stop):
        session.train(small_config(data), run, progress=StopAfter(5))
    before = (run / "training.pt").read_bytes()
    room = len(before) // 2  # enough for all files but this one
    assert (run / "matcher.safetensors").stat().st_size < room
    answer = command(
        *train_command(data, run, "--resume"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert answer.code == 1
    assert "Traceback" not in answer.err
    assert f"could not save {run / 'training.pt'}" in answer.err
    assert "resume the training" in answer.err
    assert (run / "training.pt").read_bytes() == before
    session.train(small_config(data), run, resume=True)
    assert_same_runs(run, expected)
