"""`crcl plot`: what it draws of a run is what the run recorded."""

from pathlib import Path

import numpy as np
import pytest
from tiny import Stop, StopAfter, call, small_config, write_folder

from crcl.errors import InputError
from crcl.experiments import figures as drawing
from crcl.metrics import detection
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.training import inputs, session


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("drawing") / "data")


@pytest.fixture(scope="module")
def run(data: Path) -> Run:
    return session.train(small_config(data), data.parent / "run")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_run_is_drawn(run, tmp_path, capsys, monkeypatch, ending):
    answer = call(
        capsys, monkeypatch, "plot", str(run.path), "-o", str(tmp_path), *(["--svg"] if ending == "svg" else [])
    )
    assert answer.code == 0, answer.err
    names = [f"{name}.{ending}" for name in ("curves", "ridge", "detected", "ranks")]
    assert [Path(line).name for line in answer.out.splitlines()] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_without_noise_or_a_split_there_is_less_to_draw(data, tmp_path, capsys, monkeypatch):
    clean = session.train(small_config(data, "noise.rate=0.0"), tmp_path / "clean")
    answer = call(capsys, monkeypatch, "plot", str(clean.path), "--split", "none")
    assert answer.code == 0, answer.err
    assert sorted(path.name for path in (clean.path / "plots").iterdir()) == ["curves.png", "ridge.png"]


def test_beliefs_are_kept_after_every_epoch(run):
    kept = run.kept_beliefs()
    assert kept.shape == (len(run.metrics()), run.sizes["pairs"])
    np.testing.assert_array_equal(kept[-1], run.load_ledger().astype(np.float16))
    for line, record in zip(kept, run.metrics(), strict=True):
        assert line.mean() == pytest.approx(record["mean_belief"], abs=1e-3)


def test_curves_are_those_of_the_metrics(run):
    curves = dict(drawing.history(run))["curves"]
    loss, rsum = (axes.lines[0].get_ydata().tolist() for axes in curves.axes[:2])
    assert loss == [record["loss"] for record in run.metrics()]
    assert rsum == [record["dev"]["rsum"] for record in run.metrics()]


def test_detection_is_measured_against_the_injected_noise(run):
    truth = inputs.audited_pairs(run, stored_config(run)).truth
    figure = drawing.detected(run, truth, threshold=0.5)
    drawn = [line.get_ydata()[-1] for line in figure.axes[0].lines[:3]]
    last = detection(run.load_ledger().astype(np.float16), truth, threshold=0.5)
    assert drawn == pytest.approx([last.auroc, last.precision, last.recall])


def test_beliefs_of_epochs_that_were_lost_are_noticed(data, tmp_path):
    config = small_config(data, "train.pieces=[3]")
    with pytest.raises(Stop):
        session.train(config, tmp_path / "run", progress=StopAfter(5))
    run = Run.open(tmp_path / "run")
    (run.path / "beliefs.f16").unlink()
    for reads in (run.kept_beliefs, lambda: session.train(config, run.path, resume=True)):
        with pytest.raises(InputError, match=r"beliefs\.f16: damaged \(not the beliefs of 1 epochs\)"):
            reads()


def test_a_run_without_epochs_or_with_damaged_metrics_is_refused(data, tmp_path, capsys, monkeypatch):
    with pytest.raises(Stop):
        session.train(small_config(data), tmp_path / "run", progress=StopAfter(1))
    answer = call(capsys, monkeypatch, "plot", str(tmp_path / "run"))
    assert answer.code == 2
    assert "there are no epochs to draw" in answer.err
    (tmp_path / "run/metrics.jsonl").write_text('{"piece": 0, "epoch": 0, "loss": 1, "dev": {}}\n')
    answer = call(capsys, monkeypatch, "plot", str(tmp_path / "run"))
    assert answer.code == 2
    assert "metrics.jsonl: damaged" in answer.err


@pytest.mark.parametrize("threshold", ["5", "-0.1", "nan"])
def test_a_threshold_that_no_belief_can_have_is_refused(capsys, monkeypatch, tmp_path, threshold):
    answer = call(capsys, monkeypatch, "plot", str(tmp_path), "--threshold", threshold)
    assert answer.code == 2
    assert f"the threshold must be between 0 and 1, got {threshold}" in answer.err
