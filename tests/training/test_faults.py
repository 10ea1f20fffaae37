"""What goes wrong around a training: signals, clocks, files and folders that change under it. Nothing is lost."""

import multiprocessing
import multiprocessing.process
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny import Stop, StopAfter, assert_same_runs, call, small_config, train_command, write_folder

from crcl import cli
from crcl.config import Config
from crcl.errors import InputError, Interrupted, TrainingError
from crcl.progress import Clock, Progress, StepLog
from crcl.runs.folder import Run
from crcl.training import session

NOBODY = 65534
ENDLESS = ["train.pieces=[1,500]", "train.batch_size=8", "ledger.freeze_epochs=0", "train.save_minutes=0"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data")


def forked(work: Callable[[], object], told: Path) -> multiprocessing.process.BaseProcess:
    """A process of its own, whose messages go to a file; it need not import everything again."""

    def redirected() -> None:
        descriptor = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 2)
        os.dup2(descriptor, 1)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        work()

    process = multiprocessing.get_context("fork").Process(target=redirected)
    process.start()
    return process


def running_command(*words: str) -> None:
    sys.argv = ["crcl", *words]
    cli.main()


def wait_for(path: Path, process: multiprocessing.process.BaseProcess) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.is_alive(), "it ended before it was disturbed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Disturbing(Progress):
    """Does something after so many steps."""

    def __init__(self, steps: int, disturb: Callable[[], object]) -> None:
        self.left, self.disturb = steps, disturb

    def step_done(self, clock: Clock, log: StepLog) -> None:
        self.left -= 1
        if self.left == 0:
            self.disturb()


@contextmanager
def unprivileged(*owned: Path) -> Iterator[None]:
    """Root may write everywhere: be nobody for a while, to whom these folders and all in them belong."""
    if os.geteuid() != 0:
        yield
        return
    for folder in owned:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    above = [place for folder in owned for place in folder.parents if len(place.parts) > 2]
    modes = {place: place.stat().st_mode for place in above}
    for place, mode in modes.items():
        place.chmod(mode | 0o055)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        for place, mode in modes.items():
            place.chmod(mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_saves_says_how_to_go_on_and_ends_with_its_own_exit_code(
    data: Path, tmp_path: Path, name: str
) -> None:
    run, number = tmp_path / "run", getattr(signal, name)
    words = train_command(data, run, settings=ENDLESS)
    process = forked(lambda: running_command(*words), tmp_path / "told")
    wait_for(run / "training.pt", process)
    os.kill(process.pid or 0, number)
    process.join(60)
    told = (tmp_path / "told").read_text()
    assert process.exitcode == 128 + number, told
    assert "stopped; finished work is saved" in told
    assert "Traceback" not in told
    assert Run.open(run).load_state() is not None


def test_stopped_by_a_cluster_and_resumed_a_training_ends_bit_identical(data: Path, tmp_path: Path) -> None:
    config = small_config(data)
    expected = session.train(config, tmp_path / "reference").path
    stopping = Disturbing(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted) as stopped:
        session.train(config, tmp_path / "run", progress=stopping)
    assert stopped.value.signal == signal.SIGTERM
    session.train(config, tmp_path / "run", resume=True)
    assert_same_runs(tmp_path / "run", expected)


def test_what_is_ignored_stays_ignored_as_under_nohup(data: Path, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        hang_up = Disturbing(2, lambda: os.kill(os.getpid(), signal.SIGHUP))
        session.train(small_config(data), tmp_path / "run", progress=hang_up)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert hang_up.left < 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_features_that_become_shorter_end_the_training_with_a_message_and_not_with_a_crash(
    data: Path, tmp_path: Path, workers: int
) -> None:
    config = small_config(data, f"train.workers={workers}")
    expected = session.train(config, tmp_path / "reference").path
    file = data / "train_ims.npy"
    whole = file.read_bytes()

    def train() -> None:
        try:
            session.train(config, tmp_path / "run", progress=Disturbing(4, lambda: os.truncate(file, 128)))
        except InputError as error:
            sys.exit(str(error))

    process = forked(train, tmp_path / "told")
    process.join(60)
    assert process.exitcode == 1, process.exitcode  # -7 is a crash
    assert f"{file}: has become shorter: 128 bytes, and had {len(whole):,}" in (tmp_path / "told").read_text()
    file.write_bytes(whole)
    session.train(config, tmp_path / "run", resume=True)
    assert_same_runs(tmp_path / "run", expected)


def test_a_clock_that_goes_back_changes_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(data, "train.save_minutes=0")
    expected = session.train(config, tmp_path / "reference").path
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86400)
    with pytest.raises(Stop):
        session.train(config, tmp_path / "run", progress=StopAfter(5))
    for file in (tmp_path / "run").iterdir():  # as if all had been written tomorrow
        os.utime(file, (now + 86400, now + 86400))
    monkeypatch.setattr(time, "time", lambda: now - 2 * 86400)
    session.train(config, tmp_path / "run", resume=True)
    assert_same_runs(tmp_path / "run", expected)


def test_a_folder_that_is_removed_ends_the_training_with_a_message(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(TrainingError, match=r"could not save .*run/"):
        session.train(small_config(data), run, progress=Disturbing(4, lambda: shutil.rmtree(run)))
    assert not run.exists()
    session.train(small_config(data), run)


def test_a_read_only_folder_is_refused_and_a_run_that_becomes_read_only_is_kept(data: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    config = small_config(data)
    expected = session.train(config, tmp_path / "reference").path
    run = home / "run"
    with unprivileged(home):
        home.chmod(0o555)
        with pytest.raises(InputError, match="cannot be written"):
            session.train(config, run)
        home.chmod(0o755)
        with pytest.raises(TrainingError, match=r"could not save .*resume the training"):
            session.train(config, run, progress=Disturbing(5, lambda: run.chmod(0o555)))
        run.chmod(0o755)
        session.train(config, run, resume=True)
    assert_same_runs(run, expected)


def test_of_two_trainings_into_one_folder_one_goes_on_and_the_other_is_refused(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = small_config(data, *ENDLESS)
    first = forked(lambda: session.train(config, run), tmp_path / "first")
    wait_for(run / "training.pt", first)
    try:
        for how in ("resume", "overwrite"):
            with pytest.raises(InputError, match="another process is training this run"):
                session.train(config, run, **{how: True})
        with pytest.raises(InputError, match="exists already"):
            session.train(config, run)
        assert first.is_alive()
    finally:
        first.kill()
        first.join()


@pytest.mark.slow
def test_a_memory_limit_ends_the_command_with_a_message_and_the_run_goes_on_later(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    large = ["matcher.embedding=1200", "train.pieces=[1,1]", "ledger.freeze_epochs=0"]
    config = small_config(data, *large)
    assert call(capsys, monkeypatch, *train_command(data, tmp_path / "reference", settings=large)).code == 0
    with pytest.raises(Stop):
        session.train(config, tmp_path / "run", progress=StopAfter(5))
    words = train_command(data, tmp_path / "run", "--resume", settings=large)
    before = (tmp_path / "run" / "training.pt").read_bytes()

    def limited() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + len(before) // 4, used + len(before) // 4))
        running_command(*words)

    process = forked(limited, tmp_path / "told")
    process.join(60)
    told = (tmp_path / "told").read_text()
    assert process.exitcode == 1, told
    assert "crcl: not enough memory; finished work is saved" in told
    assert "Traceback" not in told
    assert (tmp_path / "run" / "training.pt").read_bytes() == before
    session.train(config, tmp_path / "run", resume=True)
    assert_same_runs(tmp_path / "run", tmp_path / "reference")


def test_a_matcher_too_large_for_the_machine_is_refused_before_anything_is_made(data: Path, tmp_path: Path) -> None:
    for settings in (["matcher.embedding=1000000000"], ["matcher.name=vse", "matcher.embedding=2147483647"]):
        config: Config = small_config(data, *settings)
        with pytest.raises(InputError, match=r"matcher: .*; choose smaller settings, such as matcher.embedding"):
            session.train(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()
