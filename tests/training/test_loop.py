"""fit(): pieces and epochs, learning rates, the best epoch, saving and stopping."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import Stop, StopAfter, small_config, write_folder
from torch import nn

from crcl.data.batches import Batches
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError, Interrupted, TrainingError
from crcl.matchers.base import Matcher
from crcl.methods import METHODS
from crcl.methods.base import Learner
from crcl.metrics import Recall, Retrieval
from crcl.progress import Clock, Progress, ProgressGroup, StepLog
from crcl.runs.folder import Run
from crcl.training import inputs, session
from crcl.training.loop import BELIEF_BINS, Schedule, fit


class Counting:
    """A method that learns nothing: its only weight counts the epochs it was trained for in this piece."""

    def __init__(self, losses: Sequence[float] = (1.0, 2.0)) -> None:
        self.losses = losses
        self.clocks: list[Clock] = []
        self.begun: list[int] = []
        self.correspondence = np.array([0.0, 0.25, 1.0], dtype=np.float32)

    def begin_piece(self, piece: int) -> None:
        self.begun.append(piece)
        self.module = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.module.weight)

    @property
    def matcher(self) -> Matcher:
        return self.module  # type: ignore[return-value]

    def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
        self.clocks.append(clock)
        for step, loss in list(enumerate(self.losses))[clock.step :]:
            if step == len(self.losses) - 1:
                with torch.no_grad():
                    self.module.weight += 1
            yield StepLog(1 + step, loss)

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.module.weight.detach().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.module.weight.copy_(state["weight"])


class Listening(Progress):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def epoch_started(self, clock: Clock, steps: int) -> None:
        self.told.append(("began", clock.piece, clock.epoch, steps))

    def step_done(self, clock: Clock, log: StepLog) -> None:
        self.told.append("stepped")

    def epoch_done(self, record: dict[str, Any]) -> None:
        self.told.append(("measured", record["piece"], record["epoch"]))

    def training_ended(self) -> None:
        self.told.append("ended")


def scores(rsum: float) -> Retrieval:
    return Retrieval(Recall(rsum, 0, 0, 1, 1), Recall(0, 0, 0, 1, 1))


def scripted(*rsums: float) -> Callable[[Matcher], Retrieval]:
    """A validation that gives these scores, epoch by epoch."""
    left = iter(rsums)
    return lambda matcher: scores(next(left))


class TwoSteps:
    """As much of `Batches` as `fit` itself looks at."""

    def __len__(self) -> int:
        return 2


def fit_counting(method: Counting, schedule: Schedule, **options: Any) -> list[dict[str, Any]]:
    options.setdefault("validate", lambda matcher: scores(0))
    return fit(method, TwoSteps(), schedule, **options)  # type: ignore[arg-type]


def make_run(folder: Path) -> Run:
    sizes = {"pairs": 3, "images": 3, "regions": 1, "features": 1, "vocabulary": 5}
    return Run.create(
        folder, config={}, sizes=sizes, fingerprint="known", vocabulary=Vocabulary.build(["word"], minimum=9)
    )


def test_the_learning_rate_decays_in_the_last_piece_only() -> None:
    method = Counting()
    fit_counting(method, Schedule((3, 5), learning_rate=1.0, decay_after=2, decay=0.5))
    rates = [clock.learning_rate for clock in method.clocks]
    assert rates == [1, 1, 1, 1, 1, 0.5, 0.5, 0.25]


def test_the_decay_does_not_count_the_epochs_of_the_warm_up() -> None:
    schedule = Schedule((1, 7), learning_rate=1.0, decay_after=2, decay=0.5, warmup=3)
    assert [schedule.clock(1, epoch, 0).learning_rate for epoch in range(7)] == [1, 1, 1, 1, 1, 0.5, 0.5]


def test_epochs_are_counted_within_the_piece_and_over_all_pieces() -> None:
    method = Counting()
    fit_counting(method, Schedule((2, 1, 2)))
    assert [(clock.piece, clock.epoch) for clock in method.clocks] == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    assert [clock.total_epoch for clock in method.clocks] == [0, 1, 2, 3, 4]
    assert method.begun == [0, 1, 2]


def test_dev_is_measured_after_each_epoch_with_the_matcher_of_that_epoch() -> None:
    seen = []

    def validate(matcher: Matcher) -> Retrieval:
        seen.append(matcher.weight.item())  # type: ignore[attr-defined]
        return scores(len(seen))

    records = fit_counting(Counting(), Schedule((2, 3)), validate=validate)
    assert seen == [1, 2, 1, 2, 3]
    assert [record["dev"]["rsum"] for record in records] == [1, 2, 3, 4, 5]


def test_the_matcher_kept_is_that_of_the_last_pieces_best_epoch_and_the_first_of_equals(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    records = fit_counting(Counting(), Schedule((2, 4)), validate=scripted(90, 80, 10, 40, 40, 30), run=run)
    assert [record["best"] for record in records] == [True, False, True, True, False, False]
    assert run.load_matcher()["weight"].item() == 2
    assert torch.load(run.path / "training.pt", weights_only=True)["method"]["weight"].item() == 4  # the last state


def test_a_record_holds_the_mean_loss_per_pair_and_the_beliefs() -> None:
    records = fit_counting(Counting(losses=(1.0, 4.0)), Schedule((1,), learning_rate=0.5))
    (record,) = records
    assert record["loss"] == (1 * 1.0 + 2 * 4.0) / 3
    assert record["learning_rate"] == 0.5
    assert record["mean_belief"] == pytest.approx(1.25 / 3)
    assert len(record["beliefs"]) == BELIEF_BINS
    assert (sum(record["beliefs"]), record["beliefs"][0], record["beliefs"][-1]) == (3, 1, 1)


def test_steps_that_do_not_train_are_not_in_the_loss() -> None:
    class Looking(Counting):
        def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
            yield from super().train_epoch(batches, clock)
            yield StepLog(5, float("nan"), phase="probabilities")

    (record,) = fit_counting(Looking(losses=(3.0,)), Schedule((1,)))
    assert record["loss"] == 3.0


def test_metrics_are_written_line_by_line_and_returned_whole_after_a_resume(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(Stop):
        fit_counting(Counting(), Schedule((1, 2)), run=run, progress=StopAfter(5))
    assert len(run.metrics()) == 2
    records = fit_counting(Counting(), Schedule((1, 2)), run=run)
    assert [(record["piece"], record["epoch"]) for record in records] == [(0, 0), (1, 0), (1, 1)]
    assert run.metrics() == records
    assert "seconds" not in (run.path / "metrics.jsonl").read_text()
    assert (run.path / "timing.jsonl").read_text().count("seconds") == 3


def test_seconds_of_an_epoch_count_what_was_done_before_it_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    class Slow(Counting):
        def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
            for log in super().train_epoch(batches, clock):
                now[0] += 10
                yield log

    monkeypatch.setattr("crcl.training.loop.time", SimpleNamespace(monotonic=lambda: now[0]))
    run = make_run(tmp_path / "run")
    with pytest.raises(Stop):  # in the second step of two; the first is saved
        fit_counting(Slow(), Schedule((1,)), run=run, save_minutes=0, progress=StopAfter(2))
    fit_counting(Slow(), Schedule((1,)), run=run, save_minutes=0)
    assert (run.path / "timing.jsonl").read_text() == '{"piece": 0, "epoch": 0, "seconds": 20.0}\n'


def test_lines_written_after_the_state_are_taken_back(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(Stop):
        fit_counting(Counting(), Schedule((3,)), run=run, progress=StopAfter(3))
    run.append("metrics.jsonl", {"epoch": "of a training that was killed before it could save"})
    assert [record["epoch"] for record in fit_counting(Counting(), Schedule((3,)), run=run)] == [0, 1, 2]


def test_a_finished_training_is_not_trained_further(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    records = fit_counting(Counting(), Schedule((2,)), run=run)
    again = Counting()
    assert fit_counting(again, Schedule((2,)), run=run) == records
    assert again.clocks == []


def test_listeners_hear_of_every_step_and_epoch_and_of_the_end() -> None:
    listening = Listening()
    fit_counting(Counting(), Schedule((1, 1)), progress=listening)
    epochs = [[("began", p, 0, 2), "stepped", "stepped", ("measured", p, 0)] for p in (0, 1)]
    assert listening.told == [*epochs[0], *epochs[1], "ended"]


def test_listeners_hear_of_the_end_after_an_error_too() -> None:
    listening = Listening()
    with pytest.raises(Stop):
        fit_counting(Counting(), Schedule((1,)), progress=ProgressGroup(listening, StopAfter(1)))
    assert listening.told[-1] == "ended"


class Signalling(StopAfter):
    """A listener that sends this process a signal instead of raising."""

    def __init__(self, steps: int, number: signal.Signals, times: int = 1) -> None:
        super().__init__(steps)
        self.number, self.times = number, times

    def step_done(self, clock: Clock, log: StepLog) -> None:
        try:
            super().step_done(clock, log)
        except Stop:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_training_after_the_step_with_its_state_saved(tmp_path: Path, number: signal.Signals) -> None:
    run = make_run(tmp_path / "run")
    before = signal.getsignal(number)
    with pytest.raises(Interrupted):
        fit_counting(Counting(), Schedule((2,)), run=run, progress=ProgressGroup(Signalling(3, number)))
    assert signal.getsignal(number) is before
    state = torch.load(run.path / "training.pt", weights_only=True)
    assert (state["progress"]["epoch"], state["progress"]["step"]) == (1, 1)


def test_a_second_ctrl_c_stops_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        fit_counting(Counting(), Schedule((2,)), progress=ProgressGroup(Signalling(1, signal.SIGINT, times=2)))


def test_a_training_in_another_thread_leaves_signals_alone() -> None:
    records: list[Any] = []
    thread = threading.Thread(target=lambda: records.extend(fit_counting(Counting(), Schedule((2,)))))
    thread.start()
    thread.join()
    assert len(records) == 2


def test_weights_depend_on_seed_and_piece_alone(tmp_path: Path) -> None:
    weights: list[float] = []

    class Random(Counting):
        def begin_piece(self, piece: int) -> None:
            super().begin_piece(piece)
            weights.append(torch.rand(()).item())

    for seed, noise in ((1, 5), (1, 6), (2, 5)):
        torch.manual_seed(noise)
        fit_counting(Random(), Schedule((1, 1)), seed=seed)
    assert weights[0:2] == weights[2:4]
    assert len(set(weights)) == 4


@pytest.mark.parametrize(
    "state", [{}, {"progress": {}, "method": {}, "random": {}}, {"progress": {"nonsense": 1}, "method": 1, "random": 1}]
)
def test_a_state_of_something_else_is_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    run = make_run(tmp_path / "run")
    run.save_state(state)
    with pytest.raises(InputError, match="does not fit the run"):
        fit_counting(Counting(), Schedule((1,)), run=run)


def test_nan_ends_the_training_with_the_pairs_numbers(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    with pytest.raises(TrainingError, match=r"NaN or infinite in the batch of pairs \[\d+, .*smaller learning rate"):
        session.train(small_config(data, "train.lr=1e30"), tmp_path / "run")


def test_nan_after_an_epochs_last_step_is_noticed_on_dev(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    config = small_config(data, "train.lr=1e38", "train.batch_size=1000")
    with pytest.raises(TrainingError, match=r"dev_ims.npy.*similarities are NaN"):
        session.train(config, tmp_path / "run")


def test_training_never_sees_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Spy(Counting):
        def train_epoch(self, batches: Batches, clock: Clock) -> Iterator[StepLog]:
            seen.append(batches.pairs.truth)
            yield StepLog(1, 1.0)

    def build(*, make_learner: Callable[[], Learner], **given: Any) -> Any:
        spy, learner = Spy(), make_learner()
        monkeypatch.setattr(spy, "begin_piece", lambda piece: setattr(spy, "module", learner.make_matcher()))
        monkeypatch.setattr(spy, "state_dict", lambda: {})
        return spy

    monkeypatch.setitem(METHODS, "crcl", replace(METHODS["crcl"], build=build))
    config = small_config(write_folder(tmp_path / "data"))
    run = session.train(config, tmp_path / "run")
    assert seen == [None, None, None]
    truth = inputs.audited_pairs(run, config).truth
    assert truth is not None
    assert not truth.all()


def test_the_clock_stands_where_the_schedule_says() -> None:
    schedule = Schedule((2, 3), learning_rate=1.0, decay_after=2)
    assert schedule.clock(1, 2, 7) == Clock(1, 2, 7, total_epoch=4, learning_rate=0.1)
    assert replace(schedule, pieces=(2, 3, 1)).clock(1, 2, 7).learning_rate == 1.0
