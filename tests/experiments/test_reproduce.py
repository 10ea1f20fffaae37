"""`crcl reproduce`: every table and figure on tiny data, sharing runs, killed and gone on with, on a cluster."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from reproduced import SEEDS, TINY, Crcl, rows, words
from tiny import Noting, call, environment, start, write_folder

from crcl import experiments, plots
from crcl.config import differences
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import Interrupted, TrainingError
from crcl.experiments import drawing, gathering, jobs, reproduce
from crcl.experiments.blocks import Job
from crcl.experiments.planning import Planner
from crcl.experiments.store import Store
from crcl.metrics import retrieval
from crcl.progress import SILENT
from crcl.retrieval.evaluation import mean_similarities
from crcl.retrieval.opening import open_scorer
from crcl.storage import is_locked, locked
from crcl.training import inputs, session

NAMES = [name for name in experiments.NAMES if name != "table3"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("reproduce") / "pairs")


@pytest.fixture(scope="module")
def out(data: Path) -> Path:
    """Shared by all tests of this file: what one has trained another does not."""
    return data.parent / "out"


@pytest.fixture
def crcl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Crcl:
    return lambda *given: call(capsys, monkeypatch, *given)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_name_gives_its_table_and_figure(crcl: Crcl, data: Path, out: Path, name: str) -> None:
    answer = crcl(*words(name, data, out))
    assert answer.code == 0, answer.err
    written = {Path(line) for line in answer.out.splitlines()}
    assert {path.name for path in written} >= {f"{name}.md", f"{name}.png", f"{name}.svg"}
    for path in written:
        if path.suffix == ".png":
            assert np.asarray(Image.open(path).convert("L")).std() > 0
        elif path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
    page = (out / f"{name}.md").read_text("utf-8")
    assert str(data.parent) not in page
    assert f"crcl reproduce {name}" in page
    declared = experiments.experiment(name)
    if not declared.rows:
        return
    found = rows(out / f"{name}.csv")
    measured = {line["method"] for line in found if line["mean"]}
    added = {line["method"] for line in found} - {row.name for row in declared.rows}
    assert {line["method"] for line in found} >= {row.name for row in declared.rows}
    assert added <= measured  # what stands for rows that one matcher makes equal
    assert len(measured) >= 2
    seeds = SEEDS.get(name, 2)
    assert all(line["seeds"] == str(seeds) for line in found if line["mean"])
    for row in declared.rows:
        line = re.search(rf"^\| {re.escape(row.name)} \|.*$", page, flags=re.MULTILINE)
        assert line is not None
        assert ("±" in line[0]) == (row.name in measured and seeds > 1)
    told = ["; paired t-test p = ", "the same with every seed"] if seeds > 1 else ["no test, which needs two seeds"]
    assert any(words in page for words in told)


@pytest.mark.parametrize(
    ("name", "given", "warned"),
    [
        ("table1", [], True),
        ("fig2", [], True),
        ("table1", ["--matcher", "vse"], False),
        ("table4", [], False),
    ],
)
def test_matchers_of_the_small_profile_are_not_to_be_compared(
    crcl: Crcl, data: Path, tmp_path: Path, name: str, given: list[str], warned: bool
) -> None:
    asked = [name, "--data", str(data), "-o", str(tmp_path), "--noise", "0.6", "--seeds", "1", *given, "--gather"]
    answer = crcl("reproduce", *asked)
    assert answer.code == 0, answer.err
    page = (tmp_path / f"{name}.md").read_text("utf-8")
    assert ("compare methods on one matcher, not matchers" in page) == warned
    assert ("the mean of SAF and SGR" in page) == (name == "table1" and not given)


def test_distributions_of_one_kind_have_one_axis(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, object] = {}
    monkeypatch.setattr(plots, "distributions", lambda panels, truths, **options: drawn.update(options, panels=panels))
    truth = np.array([True, False])
    near, far = (np.array([0.2, 0.4]), truth / 3, truth), (np.array([-0.1, 0.3]), truth / 2, truth)
    drawing._distributions([("without", near), ("with", far)], "a title")
    assert drawn["ranges"] == [(-0.1, 0.4), (0.0, 1.0)] * 2
    assert "seed 0" in str(drawn["title"])
    (note,) = [note for note in experiments.experiment("fig2").notes if "distributions" in note]
    assert "similarities by the matcher of the epoch that is best on dev" in note
    assert "correspondences as the last epoch used them" in note


def test_a_table_of_ones_own_is_made_by_its_path(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'noise = [0.4]\n[[rows]]\nname = "GSC"\nruns = ["gsc/bow"]\n[[rows]]\nname = "L2RM"\nruns = ["l2rm/bow"]\n'
    )
    given = [word for setting in TINY for word in ("--set", setting)]
    asked = [str(tmp_path / "mine.toml"), "--data", str(data), "-o", str(tmp_path / "out"), "--seeds", "1", *given]
    answer = crcl("reproduce", *asked)
    assert answer.code == 0, answer.err
    assert {line["method"] for line in rows(tmp_path / "out" / "mine.csv") if line["mean"]} == {"GSC", "L2RM"}
    assert (tmp_path / "out" / "mine.png").is_file()
    assert "    crcl reproduce mine.toml --data DATA" in (tmp_path / "out" / "mine.md").read_text("utf-8")
    (tmp_path / "more").mkdir()
    shutil.copy(tmp_path / "mine.toml", tmp_path / "more")
    answer = crcl("reproduce", str(tmp_path / "more" / "mine.toml"), *asked)
    assert answer.code == 2
    assert "mine.toml: two files of this name" in answer.err


@pytest.mark.slow
def test_a_second_call_trains_and_scores_nothing_and_writes_the_same(
    crcl: Crcl, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = words("table4", data, out)
    assert crcl(*asked).code == 0
    before = {path: path.read_bytes() for path in sorted(out.glob("table4*"))}
    assert len(before) == 4

    def refuse(*given: object, **options: object) -> None:
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(session, "train", refuse)
    monkeypatch.setattr(session, "open_scorer", refuse)
    answer = crcl(*asked)
    assert answer.code == 0
    assert not answer.err
    assert {path: path.read_bytes() for path in sorted(out.glob("table4*"))} == before


@pytest.mark.slow
def test_numbers_are_those_of_the_runs(crcl: Crcl, data: Path, out: Path) -> None:
    assert crcl(*words("table4", data, out)).code == 0
    planner = Planner(experiments.profile("cpu"), data, seeds=2, settings=TINY, matcher="bow")
    (block,) = planner.blocks(experiments.experiment("table4"))
    store = Store(out)
    for entry in block.entries:
        sums = []
        for trial in entry.trials:
            _, stored, scorer = open_scorer(store.run(trial.jobs[0]))
            test = inputs.open_pairs(stored).split("test")
            sums.append(retrieval(mean_similarities([scorer], test), test.image_index).rsum)
        (line,) = [
            line for line in rows(out / "table4.csv") if (line["method"], line["score"]) == (entry.row.name, "rSum")
        ]
        assert float(line["mean"]) == pytest.approx(np.mean(sums), abs=1e-3)
        assert float(line["deviation"]) == pytest.approx(np.std(sums, ddof=1), abs=1e-3)


SWEPT = {"τ": "loss.tau", "β": "ledger.momentum", "ε": "ledger.threshold"}


def test_runs_of_a_sweep_differ_in_its_parameter_alone(data: Path) -> None:
    planner = Planner(experiments.profile("cpu"), data, seeds=1, settings=TINY, matcher="bow")
    (block,) = planner.blocks(experiments.experiment("supp-fig-params"))
    for parameter, key in SWEPT.items():
        swept = [entry for entry in block.entries if entry.row.sweep and entry.row.sweep[0] == parameter]
        configs = [entry.trials[0].jobs[0].config for entry in swept]
        values = [entry.row.sweep[1] for entry in swept if entry.row.sweep]
        section, _, leaf = key.partition(".")
        assert [getattr(getattr(config, section), leaf) for config in configs] == values
        assert all(set(differences(configs[0], config)) == {key} for config in configs[1:])
        assert len({entry.trials[0].jobs[0].key for entry in swept}) == len(values) == len(set(values))


@pytest.mark.slow
@pytest.mark.parametrize("parameter", SWEPT)
def test_every_swept_parameter_changes_what_comes_out(parameter: str, tmp_path: Path) -> None:
    """With enough epochs and pairs that beliefs are corrected and thresholds reached."""
    folder = write_folder(tmp_path / "pairs", train=48, held_out=32)
    longer = (*TINY, "train.pieces=[3,6]", "train.augment=false")
    planner = Planner(experiments.profile("cpu"), folder, seeds=1, settings=longer, matcher="bow")
    (block,) = planner.blocks(experiments.experiment("supp-fig-params"))
    swept = [entry for entry in block.entries if entry.row.sweep and entry.row.sweep[0] == parameter]
    store, sums = Store(tmp_path / "out"), set()
    for entry in (swept[0], swept[2], swept[-1]):
        (trial,) = entry.trials
        session.train(trial.jobs[0].config, store.run(trial.jobs[0]), resume=True)
        sums.add(store.measure(trial)[6])
    assert len(sums) > 1


@pytest.mark.slow
def test_an_ensemble_is_the_mean_of_similarities(data: Path, out: Path) -> None:
    planner = Planner(experiments.profile("cpu"), data, seeds=1, settings=TINY, rates=(0.2,))
    (block,) = planner.blocks(experiments.experiment("table1"))
    trial = next(entry for entry in block.entries if entry.row.name == "CRCL").trials[0]
    assert [job.config.matcher.name for job in trial.jobs] == ["saf", "sgr"]
    store = Store(out)
    for job in trial.jobs:
        session.train(job.config, store.run(job), resume=True)
    found = store.measure(trial)
    scorers = [open_scorer(store.run(job))[2] for job in trial.jobs]
    test = inputs.open_pairs(trial.jobs[0].config).split("test")
    each = [scorer.similarities(test) for scorer in scorers]
    assert found[6] == pytest.approx(retrieval((each[0] + each[1]) / 2, test.image_index).rsum)
    for job, sims in zip(trial.jobs, each, strict=True):
        alone = store.scores(trial.alone(job))
        assert alone is not None
        assert alone[6] == pytest.approx(retrieval(sims, test.image_index).rsum)


@pytest.mark.slow
def test_killed_it_goes_on_where_it_was(crcl: Crcl, data: Path, out: Path, tmp_path: Path) -> None:
    assert crcl(*words("table4", data, out)).code == 0
    process = start(*words("table4", data, tmp_path))
    runs = tmp_path / "runs"
    until = time.monotonic() + 120
    while len(list(runs.glob("*/metrics.jsonl"))) < 3 and time.monotonic() < until:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path: path.read_bytes() for path in runs.glob("*/timing.jsonl")}
    assert 0 < len(done) < 12
    answer = crcl(*words("table4", data, tmp_path))
    assert answer.code == 0, answer.err
    kept = [path for path, lines in done.items() if path.read_bytes() == lines]
    assert len(kept) >= len(done) - 1  # all but the one that was being trained
    assert all(path.read_bytes().startswith(lines) for path, lines in done.items())
    assert (tmp_path / "table4.csv").read_bytes() == (out / "table4.csv").read_bytes()


def test_what_a_cluster_was_given_is_not_changed_by_what_is_printed_later(data: Path, tmp_path: Path) -> None:
    planner = Planner(experiments.profile("cpu"), data, seeds=1, settings=TINY, matcher="bow")
    planned = reproduce.jobs_of(planner, [experiments.experiment("table4")])
    store = Store(tmp_path / "o u t")
    kept = jobs.write_jobs(store, planned[:3], "my table").read_text()
    assert "#SBATCH --job-name=crcl-my_table\n" in kept
    jobs.write_jobs(store, planned[3:], "another")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "crcl").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "bin" / "crcl").chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for number in (1, 2, 3, 4):
        task = {"PATH": path, "SLURM_ARRAY_TASK_ID": str(number)}
        done = subprocess.run(["bash"], input=kept, env=task, capture_output=True, text=True)
        assert done.returncode == (1 if number == 4 else 0)
        wanted = planned[number - 1].command(store.run(planned[number - 1]).absolute())[1:] if number < 4 else []
        assert done.stdout.splitlines() == wanted
    assert "job 4: there are 3" in done.stderr


def test_a_figure_of_one_rate_is_drawn_for_each(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(experiments.profile("cpu"), data, seeds=1, settings=TINY, matcher="bow")
    experiment = replace(experiments.experiment("table1"), figure="epochs")
    blocks, seen = planner.blocks(experiment), []
    monkeypatch.setitem(
        drawing.DRAWN, "epochs", lambda store, blocks, parts, title: seen.append([block.noise for block in blocks])
    )
    assert list(drawing.figures_of(Store(tmp_path), experiment, blocks, [None] * len(blocks), [])) == []
    assert seen == [[0.2], [0.4], [0.6], [0.8]]


@pytest.mark.parametrize("content", ['{"scores": {"i2t R@1": null}}', "[" * 100_000, "{", "[]", "NaN"])
def test_damaged_scores_are_none(data: Path, tmp_path: Path, content: str) -> None:
    planner = Planner(experiments.profile("cpu"), data, seeds=1, settings=TINY, matcher="bow")
    trial = planner.blocks(experiments.experiment("table4"))[0].entries[0].trials[0]
    store = Store(tmp_path)
    store.scored.mkdir()
    (store.scored / f"{trial.key}.json").write_text(content)
    assert store.scores(trial) is None
    numbers = dict.fromkeys(experiments.SCORES, 1.0)
    (store.scored / f"{trial.key}.json").write_text(json.dumps({"scores": numbers}))
    assert store.scores(trial) is not None
    (store.scored / f"{trial.key}.json").write_text(json.dumps({"scores": numbers | {"rSum": float("nan")}}))
    assert store.scores(trial) is None


@pytest.mark.slow
def test_damaged_records_cost_a_line_and_are_named(crcl: Crcl, data: Path, out: Path, tmp_path: Path) -> None:
    assert crcl(*words("supp-fig-losses", data, out)).code == 0
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    planner = Planner(experiments.profile("cpu"), data, seeds=2, settings=TINY, matcher="bow")
    trials = planner.blocks(experiments.experiment("supp-fig-losses"))[0].entries[0].trials
    for trial, content in zip(trials, ("{\n", ""), strict=True):
        (tmp_path / "runs" / trial.jobs[0].key / "metrics.jsonl").write_text(content)
    answer = crcl(*words("supp-fig-losses", data, tmp_path, "--gather"))
    assert answer.code == 1
    assert "2 of " in answer.err
    assert answer.err.count("and the same command trains it again") == 2
    assert (tmp_path / "supp-fig-losses.csv").read_bytes() == (out / "supp-fig-losses.csv").read_bytes()
    assert (tmp_path / "supp-fig-losses.png").read_bytes() != (out / "supp-fig-losses.png").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"no", None])
def test_what_was_kept_of_the_pairs_is_made_again_if_it_is_damaged(
    crcl: Crcl, data: Path, out: Path, tmp_path: Path, damage: bytes | None
) -> None:
    assert crcl(*words("fig2", data, out)).code == 0
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    (kept, *_) = sorted((tmp_path / "scores").glob("*.npz"))
    before = kept.read_bytes()
    kept.write_bytes(before[: len(before) // 2] if damage is None else damage)
    assert crcl(*words("fig2", data, tmp_path, "--gather")).code == 0
    assert (tmp_path / "fig2-pairs.png").read_bytes() == (out / "fig2-pairs.png").read_bytes()
    with np.load(kept) as found:
        assert set(found) == {"similarity", "belief", "truth"}


@pytest.mark.slow
def test_a_cluster_does_the_same_and_the_same_command_gathers(
    crcl: Crcl, data: Path, out: Path, tmp_path: Path
) -> None:
    assert crcl(*words("table4", data, out)).code == 0
    answer = crcl(*words("table4", data, tmp_path, "--print-jobs"))
    commands = answer.out.splitlines()
    assert answer.code == 0
    assert "12 of 12 runs are left" in answer.err
    assert commands == (tmp_path / "jobs.txt").read_text().splitlines()
    assert "#SBATCH --array=1-12\n" in (tmp_path / "jobs.sh").read_text()
    assert not (tmp_path / "runs").exists()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    task = {**environment(), "SLURM_ARRAY_TASK_ID": "7", "PATH": path}
    subprocess.run(["bash", tmp_path / "jobs.sh"], env=task, check=True, capture_output=True)
    (run,) = (tmp_path / "runs").iterdir()
    same = out / "runs" / run.name
    assert (run / "matcher.safetensors").read_bytes() == (same / "matcher.safetensors").read_bytes()
    assert "11 of 12 runs are left" in crcl(*words("table4", data, tmp_path, "--print-jobs")).err
    answer = crcl(*words("table4", data, tmp_path, "--gather"))
    assert answer.code == 0
    found = [line for line in rows(tmp_path / "table4.csv") if line["score"] == "rSum"]
    assert sorted(line["seeds"] for line in found) == ["0", "0", "0", "0", "0", "1"]
    assert "has 0 of 2 seeds" in (tmp_path / "table4.md").read_text("utf-8")
    finished = crcl(*shlex.split(commands[6])[1:])  # the printed command is the run's own
    assert "finished already" in finished.err


def test_printed_commands_find_the_files_of_settings_from_anywhere(
    crcl: Crcl, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("known rows.npy", np.arange(4))
    Vocabulary.build((data / "train_caps.txt").read_text().splitlines(), minimum=1).save("words.json")
    files = ["--set", "data.vocab=words.json", "--set", 'mscn.trusted="known rows.npy"']
    answer = crcl(*words("table1", data, tmp_path / "out", *files, "--print-jobs"))
    assert answer.code == 0, answer.err
    commands = [shlex.split(line) for line in answer.out.splitlines()]
    assert all(f"data.vocab={tmp_path / 'words.json'}" in command for command in commands)
    (trusting,) = {command[command.index("--method") + 1] for command in commands if "mscn" in " ".join(command)}
    assert trusting == "mscn"
    monkeypatch.chdir("/")
    command = next(command for command in commands if "mscn" in command)
    assert f"mscn.trusted={tmp_path / 'known rows.npy'}" in command
    assert crcl(*command[1:]).code == 0


@pytest.mark.slow
def test_processes_train_beside_each_other_and_tell_of_failures(data: Path, tmp_path: Path) -> None:
    planner = Planner(experiments.profile("cpu"), data, seeds=1, settings=TINY, matcher="bow")
    (block,) = planner.blocks(experiments.experiment("table4"))
    good, bad = (entry.trials[0].jobs[0] for entry in block.entries[:2])
    broken = Job("broken", "a broken one", 0, bad.config, (*bad.words, "--set", "train.lr=-1"))
    store, told = Store(tmp_path), []
    failed = jobs.train_apart(store, [good, broken], 2, progress=Noting(told))
    assert store.finished(good)
    assert len(failed) == 1
    assert failed[0].startswith("a broken one: ")
    assert "train.lr: must be greater than 0" in failed[0]
    assert [line.partition(" runs")[0] for line in told] == ["1 of 2", "2 of 2"]
    assert sum("; failed: a broken one" in line for line in told) == 1
    assert sum(f"; done: {good.about}" in line for line in told) == 1
    log = tmp_path / "logs" / "broken.log"
    before = log.read_bytes()
    assert jobs.train_apart(store, [broken], 2, progress=Noting(told)) == failed
    assert log.read_bytes() == before * 2  # what was said before is kept


@pytest.mark.slow
def test_killed_outright_with_processes_the_next_call_takes_what_they_leave(
    crcl: Crcl, data: Path, tmp_path: Path
) -> None:
    """The trainings of a killed call go on; they are waited for, and none is begun twice or called failed."""
    longer = ["--seeds", "1", "--set", "train.pieces=[1,60]", "--jobs", "2"]
    asked = words("table4", data, tmp_path / "killed", *longer)
    process = start(*asked)
    runs = tmp_path / "killed" / "runs"
    until = time.monotonic() + 120
    while sum(is_locked(run) for run in runs.glob("*")) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    left = {run.name for run in runs.iterdir() if is_locked(run)}
    assert left
    answer = crcl(*asked)
    assert answer.code == 0, answer.err
    assert "another process is training it already: " in answer.err
    assert "6 of 6 runs" in answer.err
    assert "failed" not in answer.err
    assert len(list(runs.iterdir())) == 6
    logs = [(tmp_path / "killed" / "logs" / f"{name}.log").read_text("utf-8") for name in left]
    assert not any("another process" in log for log in logs)
    assert crcl(*words("table4", data, tmp_path / "whole", *longer[:-2])).code == 0
    assert (tmp_path / "killed" / "table4.csv").read_bytes() == (tmp_path / "whole" / "table4.csv").read_bytes()


@pytest.mark.slow
def test_a_run_that_another_process_trains_is_waited_for(data: Path, tmp_path: Path) -> None:
    planner = Planner(experiments.profile("cpu"), data, seeds=1, settings=(*TINY, "train.pieces=[1,60]"), matcher="bow")
    entries = planner.blocks(experiments.experiment("table4"))[0].entries
    first, second = (entry.trials[0].jobs[0] for entry in entries[:2])
    store, told = Store(tmp_path), []
    process = start(*first.command(store.run(first))[1:])
    until = time.monotonic() + 120
    while not is_locked(store.run(first)) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)  # it stands still until it is waited for

    class Waking(Noting):
        def status(self, message: str) -> None:
            super().status(message)
            if "waiting for" in message:
                process.send_signal(signal.SIGCONT)

    assert jobs.train_here(store, [first, second], progress=Waking(told)) == []
    assert process.wait() == 0
    assert store.finished(first)
    assert store.finished(second)
    assert told[-1].endswith(f"waiting for {store.run(first)}")  # after what could be done meanwhile


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "damage", "told"),
    [
        ("1", lambda run: (run / "training.pt").write_bytes(b"broken"), "training.pt: damaged"),
        ("1", lambda run: (run / "config.json").unlink(), "exists already"),
        ("1", lambda run: (run / "matcher.safetensors").write_bytes(b"broken"), "matcher.safetensors: damaged"),
        ("2", lambda run: (run / "config.json").write_text("{"), "config.json: damaged"),
    ],
    ids=["state", "no config", "weights", "config"],
)
def test_a_damaged_run_costs_its_own_cell_and_is_named(
    crcl: Crcl,
    data: Path,
    out: Path,
    tmp_path: Path,
    processes: str,
    damage: Callable[[Path], object],
    told: str,
) -> None:
    assert crcl(*words("table4", data, out)).code == 0
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    planner = Planner(experiments.profile("cpu"), data, seeds=2, settings=TINY, matcher="bow")
    trial = planner.blocks(experiments.experiment("table4"))[0].entries[-1].trials[1]
    run = tmp_path / "runs" / trial.jobs[0].key
    (tmp_path / "scores" / f"{trial.key}.json").unlink()
    if not told.startswith("matcher"):  # only then the rest is looked at again
        (run / "finished").unlink()
    damage(run)
    answer = crcl(*words("table4", data, tmp_path, "--jobs", processes))
    assert answer.code == 1
    assert "1 of 12 runs failed:\ninfonce on bow, pairs, 60 % mismatched, seed 1: " in answer.err
    assert told in answer.err
    assert f"; delete {run}, and the same command trains it again" in answer.err
    assert "--" not in answer.err.partition("runs failed:")[2]
    assert {line["seeds"] for line in rows(tmp_path / "table4.csv") if line["method"] == "L_d"} == {"1"}
    shutil.rmtree(run)
    assert crcl(*words("table4", data, tmp_path)).code == 0
    assert (tmp_path / "table4.csv").read_bytes() == (out / "table4.csv").read_bytes()


@pytest.mark.slow
def test_a_failed_run_costs_its_own_cell_alone(
    crcl: Crcl, data: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert crcl(*words("table4", data, out)).code == 0
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    planner = Planner(experiments.profile("cpu"), data, seeds=2, settings=TINY, matcher="bow")
    trial = planner.blocks(experiments.experiment("table4"))[0].entries[-1].trials[1]
    shutil.rmtree(tmp_path / "runs" / trial.jobs[0].key)
    (tmp_path / "scores" / f"{trial.key}.json").unlink()

    def stumble(*given: object, **options: object) -> None:
        raise TrainingError("the loss is NaN")

    monkeypatch.setattr(session, "train", stumble)
    answer = crcl(*words("table4", data, tmp_path))
    assert answer.code == 1
    assert "1 of 12 runs failed:\ninfonce on bow, pairs, 60 % mismatched, seed 1: the loss is NaN" in answer.err
    assert "L_d has 1 of 2 seeds." in (tmp_path / "table4.md").read_text("utf-8")
    seeds = {line["method"]: line["seeds"] for line in rows(tmp_path / "table4.csv")}
    assert seeds.pop("L_d") == "1"
    assert set(seeds.values()) == {"2"}


def test_ctrl_c_says_how_to_go_on(crcl: Crcl, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*given: object, **options: object) -> None:
        raise Interrupted

    monkeypatch.setattr(session, "train", stop)
    asked = words("table4", data, tmp_path)
    answer = crcl(*asked)
    assert answer.code == 130
    assert answer.err.endswith(f"Continue with:\n  {shlex.join(['crcl', *asked])}\n")


@pytest.mark.slow
def test_ctrl_c_is_passed_on_to_processes(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They save what they have, and nobody is left behind."""
    planner = Planner(
        experiments.profile("cpu"), data, seeds=1, settings=(*TINY, "train.pieces=[1,5000]"), matcher="bow"
    )
    job = planner.blocks(experiments.experiment("table4"))[0].entries[0].trials[0].jobs[0]
    sleep = time.sleep

    def press(seconds: float) -> None:
        if (tmp_path / "runs" / job.key / "training.pt").is_file():
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", press)
    with pytest.raises(KeyboardInterrupt):
        jobs.train_apart(Store(tmp_path), [job], 2, progress=SILENT)
    assert "stopped; finished work is saved" in (tmp_path / "logs" / f"{job.key}.log").read_text("utf-8")
    with locked(tmp_path / "runs" / job.key):  # nobody trains there any more
        assert not Store(tmp_path).finished(job)


def test_the_list_names_all(crcl: Crcl) -> None:
    answer = crcl("reproduce", "LIST")
    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.splitlines()] == list(experiments.NAMES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["tabel1"], "did you mean 'table1'"),
        (["table1"], "say with --data where they are"),
        (["table1", "--data", "nowhere"], "none of its data is there: nowhere"),
        (["table1", "--data", "DATA", "--profile", "papper"], "did you mean 'paper'"),
        (["table1", "--data", "DATA", "--profile", "paper"], "coco_precomp, "),
        (["table1", "--data", "DATA", "--noise", "0.3"], "table1 (has the rates 0.2, 0.4, 0.6, 0.8, not 0.3)"),
        (["table1", "--data", "DATA", "--noise-level", "img"], "noise level: 'img', expected caption or image"),
        (["table2", "--data", "DATA", "--noise-level", "image"], "noise level: no image is mismatched at the rate 0"),
        (["table1", "--data", "DATA", "--matcher", "vsee"], "needs the matcher vsee"),
        (["table1", "--data", "DATA", "--matcher", "clip"], "matcher: clip begins as a published model"),
        (["table1", "--data", "DATA", "--matcher", "dual"], "matcher dual reads vectors of captions"),
        (["table1", "--data", "DATA", "--gather", "--print-jobs"], "--print-jobs or --gather"),
        (["table1", "--data", "DATA", "--set", "train.lrr=1"], "did you mean 'train.lr'"),
        (["table4", "--data", "DATA", "--set", "data.vocab=nowhere.json"], "nowhere.json: cannot be read"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(
    crcl: Crcl, data: Path, tmp_path: Path, given: list[str], message: str
) -> None:
    answer = crcl("reproduce", *(str(data) if word == "DATA" else word for word in given), "-o", str(tmp_path / "out"))
    assert answer.code == 2
    assert message in answer.err
    assert not (tmp_path / "out").exists()


def test_a_table_without_the_rate_is_left_out_beside_one_that_has_it(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    asked = ["table1", "table4", "supp-fig-c", "--data", str(data), "-o", str(tmp_path), "--matcher", "bow"]
    answer = crcl("reproduce", *asked, "--noise", "0.4", "--noise", "0.3", "--gather")
    assert answer.code == 0, answer.err
    assert "left out: table4 (has the rates 0.6, not 0.4, 0.3)" in answer.err
    assert "left out: table1 at the rates 0.3 (it has 0.2, 0.4, 0.6, 0.8)" in answer.err
    assert {path.name for path in tmp_path.glob("*.md")} == {"table1.md", "supp-fig-c.md"}
    assert "Left out: table1 at the rates 0.3" in (tmp_path / "table1.md").read_text("utf-8")


@pytest.mark.parametrize("asked", [["--noise-level", "image"], []])
def test_the_page_says_that_images_are_mismatched(crcl: Crcl, data: Path, tmp_path: Path, asked: list[str]) -> None:
    level = "" if asked else 'level = "image"\n'
    rows_of_it = '[[rows]]\nname = "linear"\nruns = ["relink/linear"]\n'
    (tmp_path / "mine.toml").write_text(f"{level}noise = [0.0, 0.4]\n{rows_of_it}")
    out = tmp_path / "out"
    answer = crcl(
        *("reproduce", str(tmp_path / "mine.toml"), "--data", str(data), "-o", str(out), "--seeds", "1"),
        *("--matcher", "bow", *asked),
    )
    assert answer.code == 0, answer.err
    page = (out / "mine.md").read_text("utf-8")
    assert ("--seeds 1 --matcher bow --noise-level image" in page) == bool(asked)
    assert "\n## pairs, no mismatches put in\n" in page
    assert "\n## pairs, 40 % of the training images mismatched, with all their captions\n" in page
    assert "- Every row but those fitted in closed form is trained on `bow`" in page
    assert "not matchers" not in page
    assert {line["trained"] for line in rows(out / "mine.csv") if line["mean"]} == {"relink on linear"}


def test_the_page_says_how_well_the_pairs_of_the_distributions_are_told_apart() -> None:
    truth = np.array([True, True, False, False])
    apart = (np.array([0.9, 0.1, 0.2, 0.0]), np.array([0.95, 0.6, 0.92, 0.3]), truth)
    *_, line, _ = gathering._told_apart([("with SCC", apart)])
    assert line == "| with SCC | 0.750 | 0.750 | 100.0 % | 50.0 % | 50.0 % |"
    assert gathering._told_apart([("no mismatches", (*apart[:2], np.ones(4, bool)))]) == []


def test_distributions_of_another_rate_are_left_out_with_a_line(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    answer = crcl("reproduce", "fig2", "--data", str(data), "-o", str(tmp_path), "--noise", "0.4", "--gather")
    assert answer.code == 0, answer.err
    page = (tmp_path / "fig2.md").read_text("utf-8")
    for name in ("without SCC", "with SCC"):
        assert f"note: left out: the distributions {name} (it is of the rate 0.6)" in answer.err
        assert f"- Left out: the distributions {name} (it is of the rate 0.6)." in page


def test_distributions_without_regions_are_left_out_with_a_line(crcl: Crcl, tmp_path: Path) -> None:
    table, pixels = tmp_path / "pairs.csv", tmp_path / "pixels"
    table.write_text("image,caption,split\n" + "".join(f"{n}.jpg,a dog,train\n" for n in range(4)))
    asked = ["fig2", "--data", str(table), "--pixels", str(pixels), "-o", str(tmp_path / "out"), "--noise", "0.6"]
    answer = crcl("reproduce", *asked, "--gather", "--profile", "cpu")
    assert answer.code == 0, answer.err
    assert "left out: the distributions with SCC (no features of regions are given)" in answer.err
    assert "| CRCL-SGR | no features of regions are given |" in (tmp_path / "out" / "fig2.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("method=triplet", "the rows of a table say it"),
        ("matcher.name=vse", "give --matcher"),
        ("matcher.model=clip", "give --model"),
        ("noise.rate=0.2", "give --noise"),
        ("noise.file=index.npy", "give --noise"),
        ("noise.level=image", "give --noise-level"),
        ("noise={rate=0.2}", "give --noise"),
        ("train.seed=7", "give --seeds"),
        ("train.start=runs/one", "no row begins from another run"),
        ("data.path=elsewhere", "give --data"),
    ],
)
def test_no_setting_changes_what_a_row_is_about(
    crcl: Crcl, data: Path, tmp_path: Path, setting: str, instead: str
) -> None:
    out = tmp_path / "out"
    answer = crcl("reproduce", "table4", "--data", str(data), "-o", str(out), "--set", "loss.tau=0.1", "--set", setting)
    assert answer.code == 2
    assert f"crcl: {setting.partition('=')[0]}" in answer.err
    assert f"what a row is about cannot be set; {instead}" in answer.err
    assert "loss.tau" not in answer.err
    assert not out.exists()


HOLD = """
import fcntl, pathlib, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
pathlib.Path(sys.argv[1]).with_name("let go").touch()
"""


@contextmanager
def held(lock: Path, seconds: float) -> Iterator[None]:
    """Another process has a lock for some seconds."""
    command = [sys.executable, "-c", HOLD, str(lock), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield
        finally:
            process.kill()


def test_two_at_once_do_not_train_but_what_there_is_can_be_written_meanwhile(crcl: Crcl, tmp_path: Path) -> None:
    asked = ["reproduce", "supp-fig-c", "-o", str(tmp_path)]
    with held(tmp_path / ".lock", 600):
        answer = crcl(*asked)
        assert answer.code == 2
        assert "another process is reproducing tables here; pass --gather to write what is finished" in answer.err
        assert not (tmp_path / "supp-fig-c.md").exists()
        assert crcl(*asked, "--gather").code == 0
        assert (tmp_path / "supp-fig-c.md").exists()


def test_two_write_one_after_the_other(crcl: Crcl, tmp_path: Path) -> None:
    (tmp_path / "scores").mkdir()
    with held(tmp_path / "scores" / ".lock", 1):
        assert crcl("reproduce", "supp-fig-c", "-o", str(tmp_path)).code == 0
        assert (tmp_path / "scores" / "let go").exists()
