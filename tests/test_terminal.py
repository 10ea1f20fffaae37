"""How long work is shown: a bar on a terminal, plain lines elsewhere, TensorBoard events."""

import io
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny import Stop, StopAfter, small_config, write_folder

from crcl import terminal as progress
from crcl.progress import Advance, Clock, ProgressGroup, StepLog
from crcl.terminal import Screen, Terminal
from crcl.training import session
from crcl.training.tensorboard import TensorBoard

PIECES = (1, 3)
RECORD: dict[str, Any] = {"loss": 1.5, "dev": {"rsum": 123.45}, "mean_belief": 0.75, "best": True}


def clock(epoch: int, *, step: int = 0) -> Clock:
    return Clock(1, epoch, step, 1 + epoch, learning_rate=5e-4)


def shown(*, terminal: bool) -> tuple[Terminal, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=150, highlight=False, color_system=None)
    listener = Terminal(console)
    listener.training_started("run", PIECES, 1)
    assert not text.getvalue()
    listener.explained = True  # which its own test shows
    return listener, text


def test_without_a_terminal_each_epoch_is_one_plain_line() -> None:
    listener, text = shown(terminal=False)
    listener.epoch_started(clock(0), 4)
    for _ in range(4):
        listener.step_done(clock(0), StepLog(8, 2.0))
    listener.epoch_done(RECORD)
    listener.epoch_done({**RECORD, "best": False})
    listener.training_ended()
    best, other = text.getvalue().splitlines()
    assert best == "piece 2/2 epoch 1/3  loss 1.500  dev rSum 123.5  mean belief 0.750  0:00  best so far"
    assert "best" not in other
    assert "\x1b" not in text.getvalue()


def told_of(pieces: tuple[int, ...], *, phase: str) -> list[str]:
    """The lines of the first epoch of a training."""
    text = io.StringIO()
    listener = Terminal(Console(file=text, width=300, color_system=None))
    listener.training_started("run", pieces, 1)
    first = Clock(0, 0, 0, 0, learning_rate=5e-4)
    listener.epoch_started(first, 1)
    listener.step_done(first, StepLog(8, 1.5, phase=phase))
    listener.epoch_done(RECORD)
    return text.getvalue().splitlines()


def test_pieces_and_the_best_epoch_are_told_where_there_are_several_and_explained_once() -> None:
    note, line = told_of((2, 3), phase="train")
    assert "the epoch with the highest one is kept" in note
    assert note.endswith("each piece begins with fresh weights and the beliefs of the one before")
    assert line == "piece 1/2 epoch 1/2  loss 1.500  dev rSum 123.5  mean belief 0.750  0:00  best so far"
    note, line = told_of((30,), phase="train")
    assert "piece" not in note
    assert line == "epoch 1/30  loss 1.500  dev rSum 123.5  mean belief 0.750  0:00  best so far"
    (line,) = told_of((1,), phase="train")
    assert line == "training  loss 1.500  dev rSum 123.5  mean belief 0.750  0:00"


def test_a_fitted_linear_model_is_told_without_epochs() -> None:
    assert told_of((1,), phase="linear model") == [
        "linear model fitted in 0:00: retrieval on held-out pairs (dev rSum) 123.5 of 600, mean belief 0.750 in the "
        "pairs"
    ]


def test_an_epoch_without_training_steps_tells_no_loss() -> None:
    listener, text = shown(terminal=False)
    listener.epoch_started(clock(0), 4)
    listener.step_done(clock(0), StepLog(8, float("nan"), phase="linear model"))
    listener.epoch_done({**RECORD, "loss": 0.0})
    assert text.getvalue() == "piece 2/2 epoch 1/3  dev rSum 123.5  mean belief 0.750  0:00  best so far\n"


def test_without_a_terminal_a_long_epoch_tells_loss_rate_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    listener, text = shown(terminal=False)
    listener.epoch_started(clock(0), 4)  # 4 of 16 steps were done in the piece before
    for step in range(3):
        now[0] += 20
        listener.step_done(clock(0), StepLog(8, 2.0 + step))
    listener.training_ended()
    (line,) = text.getvalue().splitlines()  # one for each 30 seconds
    assert line == "piece 2/2 epoch 1/3  step 6/16  train: loss 2.020  lr 5.0e-04  0 pairs/s  left 3:20"


def test_the_time_left_goes_by_all_epochs_since_an_epoch_may_begin_without_a_training_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    listener, text = shown(terminal=False)
    division = StepLog(8, float("nan"), phase="division")
    listener.epoch_started(clock(0), 4)
    now[0] += 40
    listener.step_done(clock(0), division)
    for _ in range(4):
        now[0] += 10
        listener.step_done(clock(0), StepLog(8, 2.0))
    listener.epoch_started(clock(1), 4)
    now[0] += 40
    listener.step_done(clock(1), division)
    first, trained, second = text.getvalue().splitlines()
    assert first == "piece 2/2 epoch 1/3  step 4/16  division: 0 pairs/s"  # nothing to tell the time by
    assert trained.endswith("train: loss 2.000  lr 5.0e-04  0 pairs/s  left 3:30")  # 9 steps, 3 took 70 seconds
    assert second == "piece 2/2 epoch 2/3  step 8/16  division: 0 pairs/s  left 4:00"  # 8 steps, 4 took 120 seconds


def test_steps_of_another_phase_do_not_count_as_training() -> None:
    listener, _ = shown(terminal=False)
    listener.epoch_started(clock(0), 4)
    listener.step_done(clock(0), StepLog(8, 2.0))
    listener.step_done(clock(0), StepLog(8, float("nan"), phase="probabilities"))
    assert listener.done == 5
    assert listener.loss == 2.0


def test_the_steps_of_two_networks_count_twice() -> None:
    listener = Terminal(Console(file=io.StringIO()))
    listener.training_started("run", PIECES, 2)
    listener.epoch_started(clock(0, step=3), 4)
    assert (listener.done, listener.total) == (8 + 3, 32)


def test_a_resumed_epoch_begins_in_the_middle() -> None:
    listener, _ = shown(terminal=False)
    listener.epoch_started(clock(1, step=3), 4)
    assert (listener.done, listener.total) == (11, 16)
    listener.epoch_started(clock(1, step=7), 4)  # in the pass that follows the training steps
    assert listener.done == 12


def test_on_a_terminal_a_bar_shows_loss_rate_speed_and_time_left() -> None:
    listener, text = shown(terminal=True)
    listener.epoch_started(clock(0), 4)
    listener.step_done(clock(0), StepLog(8, 2.0))
    listener.epoch_done(RECORD)
    listener.training_ended()
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.getvalue())
    assert "dev rSum 123.5" in written
    assert re.search(r"piece 2/2 epoch 1/3 .*5/16 train: loss 2\.000  lr 5\.0e-04  [\d,]+ pairs/s .* left", written)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (125, "2:05"), (3599.7, "1:00:00"), (7325, "2:02:05")]
)
def test_times_are_written_as_people_do(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


def working(*, terminal: bool) -> tuple[AbstractContextManager[Advance], io.StringIO]:
    text = io.StringIO()
    return Terminal(Console(file=text, force_terminal=terminal, width=100, color_system=None)).task("scoring"), text


def test_counted_work_is_a_plain_line_now_and_then_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    work, text = working(terminal=False)
    with work as advance:
        for done in range(1, 301):
            now[0] += 1
            advance(done, 300)
    lines = text.getvalue().splitlines()
    assert lines[:2] == ["scoring  10%  0:30  left 4:30", "scoring  20%  1:00  left 4:00"]
    assert len(lines) == 10


def test_counted_work_of_a_day_is_a_hundred_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    work, text = working(terminal=False)
    with work as advance:
        for done in range(1, 8641):
            now[0] += 10
            advance(done, 8640)
    assert 90 <= len(text.getvalue().splitlines()) <= 100


def test_quick_counted_work_is_not_mentioned_without_a_terminal() -> None:
    work, text = working(terminal=False)
    with work as advance:
        for done in range(1, 301):
            advance(done, 300)
    assert text.getvalue() == ""


def test_counted_work_on_a_terminal_is_a_bar_with_percentage_and_time_left() -> None:
    work, text = working(terminal=True)
    with work as advance:
        advance(25, 100)
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.getvalue())
    assert re.search(r"scoring .* 25% \d:\d\d:\d\d left ", written)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard_gets_the_scalars_of_every_epoch_once_though_the_training_was_resumed(tmp_path: Path) -> None:
    config = small_config(write_folder(tmp_path / "data"))
    folder = tmp_path / "run" / "tensorboard"
    with pytest.raises(Stop):
        session.train(config, tmp_path / "run", progress=ProgressGroup(TensorBoard(folder), StopAfter(5)))
    run = session.train(config, tmp_path / "run", resume=True, progress=TensorBoard(folder))
    found = scalars(folder)
    records = run.metrics()
    assert [step for step, _ in found["loss"]] == [0, 1, 2]
    assert [value for _, value in found["loss"]] == pytest.approx([record["loss"] for record in records])
    assert [value for _, value in found["dev rSum"]] == pytest.approx([record["dev"]["rsum"] for record in records])
    assert [value for _, value in found["mean belief"]] == pytest.approx([record["mean_belief"] for record in records])


def test_tensorboard_writes_nothing_before_the_training_begins(tmp_path: Path) -> None:
    listener = TensorBoard(tmp_path / "events")
    listener.training_ended()
    assert not (tmp_path / "events").exists()


def test_of_a_task_within_another_nothing_is_shown() -> None:
    listener, text = shown(terminal=True)
    with listener.task("report") as outer:
        outer(1, 2)
        with listener.task("indexing tars") as inner:
            inner(1, 2)
    assert "report" in text.getvalue()
    assert "indexing" not in text.getvalue()
    with listener.task("copies") as after:
        after(1, 1)
    assert "copies" in text.getvalue()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError()])
def test_work_goes_on_when_nothing_more_can_be_printed(error: OSError) -> None:
    class Full(io.StringIO):
        def write(self, text: str, /) -> int:
            raise error

    screen = Screen(file=Full())
    screen.print("lost")
    with Terminal(screen).task("work") as advance:
        advance(1, 2)
    assert screen.lost is not None
    assert type(screen.lost) is type(error)
