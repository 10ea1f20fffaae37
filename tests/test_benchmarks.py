"""The benchmarks do what their reports say, on tiny data."""

import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import SMALL, write_folder

from crcl import plots
from crcl.errors import TrainingError
from crcl.methods import METHODS
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.training import session

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import cost
import robustness


def words(data: Path, runs: Path, *more: str) -> list[str]:
    given = [word for setting in SMALL for word in ("--set", setting)]
    return [str(data), "--runs", str(runs), "--matcher", "bow", "--seeds", "1", *given, *more]


def test_robustness_measures_every_method_at_every_rate_with_its_own_settings(tmp_path):
    data, runs = write_folder(tmp_path / "data"), tmp_path / "runs"
    asked = ["--methods", "crcl", "ncr", "--rates", "0.2", "0.4", "--for", "ncr", "train.lr=0.02", "loss.curve=sine"]
    options = robustness.parse(words(data, runs, *asked))
    results = [robustness.measure(job) for job in robustness.plan(options)]
    assert [(row["method"], row["rate"]) for row in results] == [
        (method, rate) for rate in (0.2, 0.4) for method in ("crcl", "ncr")
    ]
    for row in results:
        stored = stored_config(Run.open(runs / f"bow-{row['rate']:g}-{row['method']}-0"))
        assert stored.train.lr == (0.02 if row["method"] == "ncr" else 0.01)
        assert 0 <= row["rsum"] <= 600
        assert 0 <= row["belief"]["auroc"] <= 1
    report = robustness.render(results, options)
    assert "Settings of single methods: ncr `train.lr=0.02 loss.curve=sine`." in report
    assert "--for ncr train.lr=0.02 loss.curve=sine --methods crcl ncr" in report
    assert str(tmp_path) not in report
    for method in ("crcl", "ncr"):
        assert report.count(f"\n| {method} | ") == 2
    figure = robustness.draw(results, options)
    drawn = [container.lines[0].get_ydata().tolist() for container in figure.axes[0].containers]
    assert drawn == [[row["rsum"] for row in results if row["method"] == method] for method in ("crcl", "ncr")]
    plots.save(figure, tmp_path / "figure.png")
    again = [robustness.measure(job) for job in robustness.plan(options)]  # read, not trained
    assert again == results
    asked = ["--methods", "crcl", "triplet", "--rates", "0.2", "--gather"]
    there, missing = (robustness.measure(job) for job in robustness.plan(robustness.parse(words(data, runs, *asked))))
    assert there == results[0]
    assert missing["failed"] == "not trained yet"
    assert not (runs / "bow-0.2-triplet-0").exists()


def test_robustness_draws_the_seeds_that_are_there(tmp_path):
    asked = ["--methods", "crcl", "ncr", "--rates", "0.2", "0.4", "--seeds", "2"]
    options = robustness.parse(words(write_folder(tmp_path / "data"), tmp_path / "runs", *asked))
    found = [("crcl", 0.2, 10.0), ("crcl", 0.2, 14.0), ("crcl", 0.4, 8.0), ("crcl", 0.4, 9.0), ("ncr", 0.4, 7.0)]
    results = [{"method": method, "rate": rate, "rsum": rsum} for method, rate, rsum in found]
    results.append({"method": "ncr", "rate": 0.4, "failed": "not trained yet"})
    crcl, ncr = robustness.draw(results, options).axes[0].containers
    assert crcl.lines[0].get_ydata().tolist() == [12.0, 8.5]
    np.testing.assert_array_equal(ncr.lines[0].get_ydata(), [np.nan, 7.0])


def test_robustness_goes_on_after_a_training_that_fails(tmp_path, monkeypatch, capsys):
    data, out, train = write_folder(tmp_path / "data"), tmp_path / "report.md", session.train

    def failing(chosen, *rest, **options):
        if chosen.method == "infonce":
            raise TrainingError("the loss became NaN")
        return train(chosen, *rest, **options)

    class Here:
        """A pool that works in this process."""

        def __init__(self, *rest, **options):
            self.map = map

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(session, "train", failing)
    monkeypatch.setattr(robustness, "ProcessPoolExecutor", Here)
    figure = ["--figure", str(tmp_path / "figure.png")]
    asked = words(data, tmp_path / "runs", "--methods", "infonce", "triplet", "--out", str(out), *figure)
    monkeypatch.setattr(sys, "argv", ["robustness.py", *asked])
    with pytest.raises(SystemExit) as ended:
        robustness.main()
    assert ended.value.code == 1
    report = out.read_text("utf-8")
    assert "| infonce | – | – | – | – | – | – | – | – |" in report
    assert "Missing: infonce at 40%, seed 0: the loss became NaN" in report
    assert "| triplet | –" not in report


def test_robustness_asks_people_of_runs_that_were_measured_without_them(tmp_path):
    data, runs = write_folder(tmp_path / "data"), tmp_path / "runs"
    crowd = tmp_path / "crowd.txt"
    names = [f"test{row}.jpg" for row in range(8)]
    lines = [f"{one}\t{other}#0\t{(row + 1) % 2}" for row, one in enumerate(names) for other in names if one != other]
    crowd.write_text("\n".join(lines), "utf-8")
    alone, asked = (
        robustness.parse(words(data, runs, "--methods", "infonce", *more)) for more in ([], ["--crowd", str(crowd)])
    )
    (before,) = map(robustness.measure, robustness.plan(alone))
    (after,) = map(robustness.measure, robustness.plan(asked))
    assert "people" not in before
    assert 0 <= after["people"] <= 1
    assert (after["rsum"], after["seconds"]) == (before["rsum"], before["seconds"])
    assert [robustness.measure(job) for job in robustness.plan(alone)] == [after]


def test_cost_goes_through_the_epochs_of_every_method(tmp_path):
    options = cost.parse(["--warmup", "1", "--half", "1", "--embedding", "8"])
    data = write_folder(tmp_path / "data")
    seconds, pairs = cost.measure("bow", data, options)
    assert list(seconds) == ["infonce", *(name for name in METHODS if name != "infonce")]
    assert all((found > 0).all() and len(found) == 3 for found in seconds.values())
    assert pairs["crcl"].tolist() == [1, 1, 1]
    assert pairs["ncr"][0] == 2  # two networks learn from all pairs in the warm-up
    report = cost.render("bow", data, options)
    assert all(f"\n| {name} | {METHODS[name].networks} | " in report for name in METHODS)


def test_cost_can_be_measured_of_some_methods_beside_plain_training():
    assert cost.methods_for("bow", ["l2rm", "gsc"]) == ["infonce", "gsc", "l2rm"]
    assert cost.methods_for("scan", ["gsc", "ncr"]) == ["infonce", "ncr"]
    options = cost.parse(["--methods", "gsc", "--matchers", "bow"])
    assert "    python benchmarks/cost.py --matchers bow --methods gsc --images 200" in "\n".join(cost.opening(options))


def test_robustness_takes_every_method_that_goes_with_the_matcher(tmp_path):
    assert robustness.parse(words(tmp_path, tmp_path)).methods == list(METHODS)
    on_scan = robustness.parse([*words(tmp_path, tmp_path), "--set", "matcher.name=scan", "--matcher", "scan"]).methods
    assert on_scan == [name for name in METHODS if name not in ("mscn", "gsc", "l2rm")]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--for", "ncrr", "train.lr=0.1"], "--for ncrr: not one of the methods to measure, crcl,"),
        (["--for", "ncr"], "--for ncr: no setting"),
        (["--for", "ncr", "division.warmups=3"], "did you mean 'division.warmup'"),
        (["--for", "ncr", "division.warmup=9"], "no pair would ever be called noisy"),
        (["--methods", "nrc"], "did you mean 'ncr'"),
    ],
)
def test_robustness_refuses_settings_before_it_trains(tmp_path, capsys, asked, message):
    with pytest.raises(SystemExit):
        robustness.parse(words(tmp_path, tmp_path / "runs", *asked))
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
