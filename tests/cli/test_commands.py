"""The command line: each command from start to end, its help, its exit codes."""

import importlib
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from reading import read
from tiny import Answer, Stop, StopAfter, call, command, environment, room, small_config, train_command, write_folder

from crcl import __version__, cli, config
from crcl.cli.audit import audit
from crcl.data import noise
from crcl.data.text.vocabulary import Vocabulary
from crcl.metrics import retrieval
from crcl.progress import Clock, StepLog
from crcl.retrieval.evaluation import mean_similarities
from crcl.retrieval.opening import open_scorer
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.terminal import Terminal
from crcl.training import inputs, session

COMMANDS = [
    "train",
    "features",
    "import",
    "evaluate",
    "audit",
    "clean",
    "index",
    "search",
    "serve",
    "verdicts",
    "export",
    "noise",
    "info",
    "plot",
    "reproduce",
    "demo",
]
Crcl = Callable[..., Answer]


@pytest.fixture
def crcl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Crcl:
    """The command line in this process."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: call(capsys, monkeypatch, *map(str, words))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("cli") / "data")


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    return session.train(small_config(data), data.parent / "trained").path


def test_the_help_lists_every_command(crcl: Crcl) -> None:
    for words in (["--help"], []):
        answer = crcl(*words)
        assert all(re.search(rf"\b{name}\b", answer.out) for name in COMMANDS)
    groups = re.findall(r"─ (\w+) ─", crcl("--help").out)
    assert groups == ["Options", *cli.GROUPS]
    assert "crcl demo" in crcl("--help").out  # where to begin


def test_the_list_says_of_each_command_what_its_own_help_begins_with() -> None:
    assert set(cli.COMMANDS) == set(COMMANDS)
    for name, summary in cli.COMMANDS.items():
        module = "import_" if name == "import" else name
        function = getattr(importlib.import_module(f"crcl.cli.{module}"), module)
        assert " ".join((function.__doc__ or "").split("\n\n")[0].split()) == summary


def test_a_command_that_is_not_there_gives_the_nearest(crcl: Crcl) -> None:
    answer = crcl("trian")
    assert answer.code == 2
    assert "No such command 'trian'. Did you mean 'train'?" in answer.err


def test_the_help_of_an_audit_begins_with_what_most_audits_need_and_has_every_option(crcl: Crcl) -> None:
    told = crcl("audit", "--help").out
    panels = re.split(r"─ ([A-Z][\w, ]+) ─", told)
    assert panels[1::2] == [
        "Arguments",
        "Options",
        "Which pairs are flagged",
        "Training, given data and not a run",
        "Files of features and names of columns",
        "Machine",
    ]
    assert len(panels[0].splitlines()) < 16
    first = re.findall(r"│ (--[a-z-]+)", panels[4])
    assert first[:5] == ["--images", "--model", "--quick", "--out", "--report"]
    assert "Columns: row (in the data, from 0)" in " ".join(panels[-1].split())
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(audit).parameters} - {"--source"}
    named = {"--output": "--out", "--settings": "--set"}
    assert {named.get(option, option) for option in options} <= set(re.findall(r"--[a-z-]+", told))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_has_an_example(crcl: Crcl, name: str) -> None:
    answer = crcl(name, "--help")
    assert answer.code == 0
    assert re.search(rf"Example: .*crcl {name}\b", answer.out)


def test_the_version_is_printed(crcl: Crcl) -> None:
    assert crcl("--version") == (0, f"crcl {__version__}\n", "")


@pytest.mark.slow
def test_train_and_audit_as_real_processes(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    answer = command(*train_command(data, tmp_path / "run"))
    assert answer.code == 0, answer.err
    assert f"crcl evaluate {tmp_path / 'run'}" in answer.out  # what to do next
    note, *lines = answer.err.splitlines()
    assert note.startswith("note: dev rSum is retrieval")
    assert len(lines) == 3  # plain lines, one per epoch, where there is no terminal
    assert all(re.match(r"piece \d/2 epoch \d/\d  loss .* dev rSum .* mean belief", line) for line in lines)
    answer = command("audit", str(tmp_path / "run"), "-o", str(tmp_path / "suspects.csv"))
    assert answer.code == 0, answer.err
    assert pyarrow.csv.read_csv(tmp_path / "suspects.csv").num_rows == 48


@pytest.mark.slow
def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    script = f"{Path(sys.executable).with_name('crcl')} info | head -n 1"
    done = subprocess.run(["bash", "-c", script], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("key")
    assert "Traceback" not in done.stderr


def test_train_takes_noise_seed_and_method_from_options_and_the_rest_from_settings(
    crcl: Crcl, data: Path, tmp_path: Path
) -> None:
    options = ["--noise-level", "image", "--noise-seed", "7", "--seed", "5", "--method", "infonce", "--matcher", "vse"]
    answer = crcl(*train_command(data, tmp_path / "run", *options))
    assert answer.code == 0, answer.err
    stored = stored_config(Run.open(tmp_path / "run"))
    assert (stored.method, stored.noise.level, stored.noise.seed, stored.train.seed) == ("infonce", "image", 7, 5)
    assert stored.matcher.name == "bow"  # a setting stands above an option
    index = noise.mismatch(read(data).image_index, 0.4, 7, level="image")
    np.testing.assert_array_equal(Run.open(tmp_path / "run").noise(), index)


def test_train_reads_a_preset_a_file_and_settings_each_above_the_one_before(
    crcl: Crcl, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "my.toml").write_text("[train]\npieces = [1, 2]\nlr = 0.25\n[matcher]\nembedding = 16\nword = 4\n")
    answer = crcl(
        "train", data, "-o", tmp_path / "run", "--preset", "demo", "--config", tmp_path / "my.toml",
        "--set", "train.lr=0.01", "--set", "ledger.freeze_epochs=1", "--device", "cpu",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    stored = stored_config(Run.open(tmp_path / "run"))
    assert (stored.train.lr, stored.matcher.embedding, stored.matcher.name) == (0.01, 16, "bow")


def test_train_uses_the_vocabulary_and_the_noise_file_given(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    words = Vocabulary.build(["dog cat on"], minimum=1)
    words.save(tmp_path / "vocab.json")
    assert crcl("noise", data, "--rate", "0.3", "--seed", "4", "-o", tmp_path / "noise.npy").code == 0
    given = [
        "--set",
        f"data.vocab={tmp_path / 'vocab.json'}",
        "--noise",
        "0",
        "--noise-file",
        str(tmp_path / "noise.npy"),
    ]
    answer = crcl(*train_command(data, tmp_path / "run", *given))
    assert answer.code == 0, answer.err
    run = Run.open(tmp_path / "run")
    assert run.vocabulary().words == words.words
    np.testing.assert_array_equal(run.noise(), noise.mismatch(read(data).image_index, 0.3, 4))


def test_what_to_do_next_can_be_pasted_whatever_the_names_are(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "my :car: run"
    answer = crcl(*train_command(data, run))
    _, heading, *commands = answer.out.splitlines()
    assert heading == "next:"
    assert [shlex.split(line) for line in commands] == [["crcl", "evaluate", str(run)], ["crcl", "audit", str(run)]]


def test_train_does_not_touch_an_existing_run_and_overwrites_it_if_asked(
    crcl: Crcl, data: Path, tmp_path: Path
) -> None:
    words = train_command(data, tmp_path / "run")
    assert crcl(*words).code == 0
    before = (tmp_path / "run" / "training.pt").read_bytes()
    answer = crcl(*words)
    assert answer.code == 2
    assert "exists already; pass --resume to continue it, or --overwrite to replace it" in answer.err
    assert (tmp_path / "run" / "training.pt").read_bytes() == before
    assert crcl(*words, "--overwrite", "--seed", "9").code == 0
    assert stored_config(Run.open(tmp_path / "run")).train.seed == 9


def test_resume_needs_nothing_but_data_and_run(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        session.train(small_config(data), tmp_path / "run", progress=StopAfter(5))
    answer = crcl("train", data, "-o", tmp_path / "run", "--resume")
    assert answer.code == 0, answer.err
    assert len(Run.open(tmp_path / "run").metrics()) == 3
    assert crcl("train", data, "-o", tmp_path / "run", "--resume").code == 0  # finished: nothing to do


def test_resume_refuses_another_training(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    assert crcl(*train_command(data, tmp_path / "run")).code == 0
    answer = crcl("train", data, "-o", tmp_path / "run", "--resume", "--seed", "3", "--set", "loss.tau=0.1")
    assert answer.code == 2
    assert "train.seed: the run has 0, now given 3" in answer.err
    assert "loss.tau: the run has 0.05, now given 0.1" in answer.err


def test_resume_follows_data_that_has_moved(crcl: Crcl, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    with pytest.raises(Stop):
        session.train(small_config(data), tmp_path / "run", progress=StopAfter(5))
    data.rename(tmp_path / "moved")
    answer = crcl("train", tmp_path / "moved", "-o", tmp_path / "run", "--resume")
    assert answer.code == 0, answer.err


def test_tensorboard_events_are_written_if_asked(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    answer = crcl(*train_command(data, tmp_path / "run", "--tensorboard"))
    assert answer.code == 0, answer.err
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))
    assert crcl(*train_command(data, tmp_path / "run", "--tensorboard", "--overwrite")).code == 0


def test_nan_ends_with_exit_code_1_and_the_pairs(crcl: Crcl, data: Path, tmp_path: Path) -> None:
    answer = crcl(*train_command(data, tmp_path / "run", settings=["train.lr=1e30"]))
    assert answer.code == 1
    assert re.search(r"NaN or infinite in the batch of pairs \[\d+, ", answer.err)
    assert "train.lr" in answer.err


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["train", "my data", "-o", "run", "--overwrite"], "crcl train 'my data' -o run --overwrite"),
        (["demo", "-o", "there"], "crcl demo -o there"),
    ],
)
def test_ctrl_c_outside_of_training_says_how_to_go_on_too(
    crcl: Crcl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], again: str
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("crcl.data.pairs.Pairs.of", interrupted)
    monkeypatch.setattr("crcl.experiments.demo.demo", interrupted)
    answer = crcl(*words)
    assert answer.code == 130
    assert answer.err.rstrip().endswith(f"\n  {again}")


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_training_never_advises_to_overwrite_what_was_saved(
    crcl: Crcl, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: int
) -> None:
    class Stopping(Terminal):
        def step_done(self, clock: Clock, log: StepLog) -> None:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("crcl.cli.train.shown", Stopping())
    words = train_command(data, tmp_path / "run", "--overwrite")
    answer = crcl(*words)
    assert answer.code == 130
    advice = answer.err.rstrip().rpartition("\n")[2]
    assert shlex.split(advice) == ["crcl", *(word for word in words if word != "--overwrite"), "--resume"]
    monkeypatch.undo()
    assert crcl(*shlex.split(advice)[1:]).code == 0


def test_evaluate_prints_a_table(crcl: Crcl, trained: Path) -> None:
    answer = crcl("evaluate", trained)
    assert answer.code == 0, answer.err
    for expected in ("test: 8 images, 16 captions", "image to text", "text to image", "R@10", "median rank", "rSum"):
        assert expected in answer.out


def test_evaluate_prints_json_that_parses(crcl: Crcl, trained: Path) -> None:
    answer = crcl("evaluate", trained, "--split", "dev", "--json")
    scores = json.loads(answer.out)
    best = max(record["dev"]["rsum"] for record in Run.open(trained).metrics()[1:])
    assert scores["rsum"] == pytest.approx(best)
    assert set(scores["i2t"]) == {"r1", "r5", "r10", "median_rank", "mean_rank"}
    assert (scores["split"], scores["folds"]) == ("dev", 1)


def test_evaluate_averages_folds(crcl: Crcl, trained: Path) -> None:
    whole, folds = (json.loads(crcl("evaluate", trained, "--json", *words).out) for words in ([], ["--folds", "4"]))
    assert folds["folds"] == 4
    assert folds["rsum"] > whole["rsum"]  # fewer items to confuse
    answer = crcl("evaluate", trained, "--folds", "3")
    assert answer.code == 2
    assert "8 images cannot be split into 3 folds of equal size" in answer.err


def test_several_runs_are_evaluated_as_one_ensemble(crcl: Crcl, data: Path, trained: Path, tmp_path: Path) -> None:
    other = session.train(small_config(data, "train.seed=1", "data.standardize=true"), tmp_path / "other").path
    answer = crcl("evaluate", trained, other, "--json")
    assert answer.code == 0, answer.err
    pairs = read(data, "test")
    scorers = [open_scorer(path)[2] for path in (trained, other)]
    expected = retrieval(mean_similarities(scorers, pairs), pairs.image_index)
    assert json.loads(answer.out)["rsum"] == pytest.approx(expected.rsum)
    alone = [open_scorer(path)[2].similarities(pairs) for path in (trained, other)]
    assert expected == retrieval((alone[0] + alone[1]) / 2, pairs.image_index)


def test_each_of_several_runs_is_told_alone_best_first(crcl: Crcl, data: Path, trained: Path, tmp_path: Path) -> None:
    other = session.train(small_config(data, "train.seed=1"), tmp_path / "other").path
    alone = [json.loads(crcl("evaluate", run, "--json").out) for run in (trained, other)]
    members = json.loads(crcl("evaluate", trained, other, "--json").out)["members"]
    assert [member["run"] for member in members] == [str(trained), str(other)]
    for member, single in zip(members, alone, strict=True):
        assert {name: member[name] for name in ("rsum", "i2t", "t2i")} == {
            name: single[name] for name in ("rsum", "i2t", "t2i")
        }
        assert single["members"] == [member]
    printed = re.findall(r"^  rSum ([\d.]+)  (\S+):", crcl("evaluate", trained, other).out, flags=re.MULTILINE)
    ranked = sorted(members, key=lambda member: -member["rsum"])
    assert printed == [(f"{member['rsum']:.1f}", member["run"]) for member in ranked]


def test_similarities_are_written_for_other_tools(crcl: Crcl, data: Path, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "sims.npy"
    answer = crcl("evaluate", trained, "--save-sims", path)
    assert answer.code == 0, answer.err
    assert f"similarities written to {path}" in answer.out
    _, _, scorer = open_scorer(trained)
    sims = np.load(path, allow_pickle=False)
    np.testing.assert_array_equal(sims, scorer.similarities(read(data, "test")))
    answer = crcl("evaluate", trained, "--save-sims", path)
    assert answer.code == 2
    assert "exists already; pass --overwrite to replace it" in answer.err
    assert crcl("evaluate", trained, trained, "--save-sims", path, "--overwrite").code == 0
    np.testing.assert_allclose(np.load(path, allow_pickle=False), sims, atol=1e-6)
    assert [file.name for file in tmp_path.iterdir()] == ["sims.npy"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--save-sims", "new.npy", "--folds", "2"], "folds do not compare all images with all captions"),
        (["--save-sims", "nowhere/new.npy"], "there is no folder nowhere"),
        (["--save-sims", "new.csv"], "similarities are written as .npy"),
        (["--save-sims", "data/test_ims.npy", "--overwrite"], "not similarities, so it is not overwritten"),
        (["--save-sims", "run/noise.npy", "--overwrite"], "not similarities, so it is not overwritten"),
        (["--save-sims", "data/test_caps.npy", "--overwrite"], "not a complete .npy file"),
    ],
)
def test_similarities_are_never_written_where_they_should_not_be(
    crcl: Crcl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    data = write_folder(tmp_path / "data")
    (data / "test_caps.npy").write_text("text")
    session.train(small_config(data), tmp_path / "run")
    before = {file: file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()}
    answer = crcl("evaluate", "run", *words)
    assert answer.code == 2
    assert message in answer.err
    assert before == {file: file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()}


def test_similarities_are_not_written_over_features_that_look_like_them(crcl: Crcl, tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32))
    (tmp_path / "ids.txt").write_text("".join(f"{row}.jpg\n" for row in range(20)))
    rows = "".join(f"{row}.jpg,a dog number {row % 5},{'dev' if row > 15 else 'train'}\n" for row in range(20))
    (tmp_path / "pairs.csv").write_text(f"image,caption,split\n{rows}")
    files = ["--features", tmp_path / "features.npy", "--ids", tmp_path / "ids.txt"]
    assert crcl(*train_command(tmp_path / "pairs.csv", tmp_path / "run"), *files).code == 0
    words = ["--split", "dev", "--save-sims", tmp_path / "features.npy", "--overwrite"]
    answer = crcl("evaluate", tmp_path / "run", *words)
    assert answer.code == 2
    assert "is an input file" in answer.err
    assert np.load(tmp_path / "features.npy").shape == (20, 6)


def test_a_full_disk_is_told_with_what_is_needed(crcl: Crcl, trained: Path, tmp_path: Path) -> None:
    with room(300):
        answer = crcl("evaluate", trained, "--save-sims", tmp_path / "sims.npy")
    assert answer.code == 1
    assert f"could not write {tmp_path / 'sims.npy'}: " in answer.err
    assert f"{8 * 16 * 4} bytes are needed" in answer.err
    assert not list(tmp_path.iterdir())


def test_evaluate_on_other_data(crcl: Crcl, trained: Path, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "other", train=6, held_out=12, seed=1)
    assert "dev: 12 images, 24 captions" in crcl("evaluate", trained, "--data", other, "--split", "dev").out


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_audit_writes_all_training_pairs_worst_first(
    crcl: Crcl, trained: Path, data: Path, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"suspects{suffix}"
    answer = crcl("audit", trained, "-o", path, "--threshold", "0.7")
    assert answer.code == 0, answer.err
    table = (pyarrow.csv.read_csv if suffix == ".csv" else pyarrow.parquet.read_table)(path)
    columns = ["row", "image", "caption", "correspondence", "suspect", "similarity", "truth"]
    assert table.column_names == [*columns, "near_copy_of"]  # some of the images show the same
    rows = table.to_pylist()
    beliefs = Run.open(trained).load_ledger()
    assert sorted(row["row"] for row in rows) == list(range(48))
    order = [(row["correspondence"], row["similarity"]) for row in rows]
    assert order == sorted(order)
    pairs = inputs.audited_pairs(Run.open(trained), small_config(data))
    for row in rows:
        number = row["row"]
        assert row["caption"] == pairs.captions[number]
        assert row["image"] == pairs.image_ids[pairs.image_index[number]]
        assert row["truth"] == pairs.truth[number]
        assert row["correspondence"] == pytest.approx(beliefs[number])
        assert row["suspect"] == (beliefs[number] < 0.7)
    suspects = int((beliefs < 0.7).sum())
    assert f"At threshold 0.7, {suspects} of 48 pairs ({100 * suspects / 48:.1f} %) are flagged." in answer.out
    assert re.search(r"auroc [\d.]+, average precision [\d.]+, precision [\d.]+, recall [\d.]+, f1 [\d.]+", answer.out)
    assert f"written to {path}" in answer.out


def test_audit_without_known_truth_prints_no_scores_and_writes_into_the_run(
    crcl: Crcl, data: Path, tmp_path: Path
) -> None:
    session.train(small_config(data, "noise.rate=0.0"), tmp_path / "run")
    answer = crcl("audit", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert "auroc" not in answer.out
    assert "truth" not in pyarrow.csv.read_csv(tmp_path / "run" / "audit.csv").column_names


@pytest.mark.parametrize(("level", "length"), [("caption", 48), ("image", 24)])
def test_noise_writes_the_fields_index(crcl: Crcl, data: Path, tmp_path: Path, level: str, length: int) -> None:
    words = ["noise", data, "--rate", "0.5", "--level", level, "--seed", "3"]
    answer = crcl(*words, "-o", tmp_path / "noise.npy")
    assert answer.code == 0, answer.err
    index = np.load(tmp_path / "noise.npy", allow_pickle=False)
    assert index.shape == (length,)
    assert index.dtype == np.int64
    truth = noise.apply(read(data), index).truth
    assert truth is not None
    assert f"{(~truth).sum()} of 48 training pairs are mismatched" in answer.out
    crcl(*words, "-o", tmp_path / "again.npy")
    assert (tmp_path / "again.npy").read_bytes() == (tmp_path / "noise.npy").read_bytes()


def test_info_describes_data_a_run_and_every_setting(crcl: Crcl, data: Path, trained: Path) -> None:
    assert "48 pairs, 24 images, 2 captions per image" in crcl("info", data).out
    assert "3 of 3 epochs" in crcl("info", trained).out
    listed = crcl("info").out
    assert all(key.key in listed for key in config.describe_keys())


def test_hostile_captions_are_plain_text_everywhere(crcl: Crcl, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    captions = (data / "train_caps.txt").read_text().splitlines()
    captions[:4] = ["[bold]dog[/bold] [/]", "=HYPERLINK(0)", "a" * 500, "{0} %s \\n dog"]
    (data / "train_caps.txt").write_text("\n".join(captions) + "\n")
    assert crcl(*train_command(data, tmp_path / "[red]run")).code == 0
    answer = crcl("audit", tmp_path / "[red]run", "-o", tmp_path / "[b].csv")
    assert answer.code == 0, answer.err
    assert "[b].csv" in answer.out
    assert captions[0] in pyarrow.csv.read_csv(tmp_path / "[b].csv")["caption"].to_pylist()


def test_control_characters_of_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs.csv").write_text("image,caption\nx\x1b]0;pwned\x07\x1b[31m.jpg,a dog\nb.jpg,a cat\n")
    np.save(tmp_path / "features.npy", np.zeros((1, 4, 6), np.float32))
    (tmp_path / "ids.txt").write_text("b.jpg\n")
    answer = call(capsys, monkeypatch, "train", str(tmp_path / "pairs.csv"), "-o", str(tmp_path / "run"))
    assert answer.code == 2
    assert "\x1b" not in answer.err
    assert "pwned" in answer.err


def test_an_unfinished_run_is_told_and_a_finished_one_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = write_folder(tmp_path / "data"), tmp_path / "run"
    with pytest.raises(Stop):
        session.train(small_config(data), run, progress=StopAfter(7))
    for word in ("audit", "evaluate"):
        assert "stopped after" in call(capsys, monkeypatch, word, str(run)).err
    assert call(capsys, monkeypatch, *train_command(data, run, "--resume")).code == 0
    answer = call(capsys, monkeypatch, *train_command(data, run, "--resume"))
    assert "finished already: 3 of 3 epochs" in answer.err
    assert "stopped after" not in call(capsys, monkeypatch, "audit", str(run)).err


def test_a_run_is_found_from_another_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert call(capsys, monkeypatch, *train_command(Path("data"), Path("run"))).code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert call(capsys, monkeypatch, "evaluate", "../run").code == 0


def printing_to(target: int, work: Callable[[], None], told: Path) -> int:
    """The exit code of a forked process that prints to a file of this number."""
    process = os.fork()
    if not process:
        code = 99
        try:
            error = os.open(told, os.O_WRONLY | os.O_CREAT)
            os.dup2(target, 1)
            os.dup2(error, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
            work()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
            with suppress(OSError):
                sys.stdout.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.parametrize("words", [["info"], ["--help"], ["--version"]])
def test_a_full_disk_under_the_output_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["crcl", *words])
    full = os.open("/dev/full", os.O_WRONLY)
    assert printing_to(full, cli.main, tmp_path / "told") == 1
    os.close(full)
    told = (tmp_path / "told").read_text()
    assert "crcl: the output could not be written (No space left on device)" in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_closed_pipe_does_not_lose_the_table_and_the_report(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, table = tmp_path / "report", tmp_path / "audit.csv"
    monkeypatch.setattr(sys, "argv", ["crcl", "audit", str(trained), "-o", str(table), "--report", str(report)])
    reader, writer = os.pipe()
    os.close(reader)
    assert printing_to(writer, cli.main, tmp_path / "told") == 0
    os.close(writer)
    assert table.is_file()
    assert (report / "index.html").is_file()
    assert "Traceback" not in (tmp_path / "told").read_text()
