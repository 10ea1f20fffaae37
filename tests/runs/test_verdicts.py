"""Verdicts: on disk when `add` returns, never lost between writers, undone without limit, bound to their pairs."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError
from crcl.runs.folder import Run
from crcl.runs.verdicts import Verdict, Verdicts

SIZES = {"pairs": 3, "images": 2, "regions": 1, "features": 4, "vocabulary": 6, "networks": 1}
WORDS = Vocabulary.build(["dog"], minimum=1)


def create(path: Path, pairs: str = "known", **options: Any) -> Run:
    return Run.create(path, config={"a": 1}, sizes=SIZES, fingerprint=pairs, vocabulary=WORDS, **options)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return create(tmp_path / "run")


def test_a_run_without_verdicts_has_none_and_no_file(run: Run) -> None:
    verdicts = Verdicts.open(run)
    assert verdicts.current() == verdicts.by_reviewer() == verdicts.disagreements() == {}
    assert verdicts.history().num_rows == 0
    assert not verdicts.path.exists()


def test_what_was_said_comes_out_again(run: Run) -> None:
    said = [
        Verdict(3, "right", queue="worst"),
        Verdict(5, "wrong", caption="two dogs ☃", queue="grid"),
        Verdict(7, "wrong", image="a b.jpg"),
        Verdict(8, "unsure"),
    ]
    Verdicts.open(run.path).add(said, reviewer=" Ana ")
    assert list(Verdicts.open(run).current().values()) == said
    history = Verdicts.open(run).history()
    assert history.column_names == ["step", "row", "verdict", "caption", "image", "reviewer", "at", "queue", "undone"]
    assert history["reviewer"].to_pylist() == ["Ana"] * 4
    assert history["at"][0].as_py().endswith("+00:00")


def test_the_newest_verdict_counts_and_reviewers_who_differ_are_told(run: Run) -> None:
    verdicts = Verdicts.open(run)
    verdicts.add([Verdict(1, "right"), Verdict(2, "right", queue="worst")], reviewer="Ana")
    verdicts.add([Verdict(1, "wrong"), Verdict(2, "right", queue="grid")], reviewer="Ben")
    assert verdicts.current()[1].verdict == "wrong"
    assert verdicts.by_reviewer()["Ana"][1].verdict == "right"
    assert verdicts.disagreements() == {1: {"Ana": Verdict(1, "right"), "Ben": Verdict(1, "wrong")}}
    verdicts.add([Verdict(1, "wrong")], reviewer="Ana")
    assert verdicts.disagreements() == {}


def test_undo_takes_back_whole_steps_of_one_reviewer_without_limit_and_deletes_nothing(run: Run) -> None:
    verdicts = Verdicts.open(run)
    verdicts.add([Verdict(1, "right")], reviewer="Ana")
    bulk = [Verdict(row, "wrong") for row in range(5)]
    verdicts.add(bulk, reviewer="Ana")
    verdicts.add([Verdict(9, "unsure")], reviewer="Ben")
    assert verdicts.undo(reviewer="Ana") == bulk
    assert verdicts.current() == {1: Verdict(1, "right"), 9: Verdict(9, "unsure")}
    verdicts.add([Verdict(2, "right")], reviewer="Ana")
    assert [verdicts.undo(reviewer="Ana") for _ in range(3)] == [[Verdict(2, "right")], [Verdict(1, "right")], None]
    assert verdicts.current() == {9: Verdict(9, "unsure")}
    assert verdicts.history()["undone"].to_pylist() == [True] * 6 + [False, True]


@pytest.mark.parametrize(
    ("verdict", "what"),
    [
        (Verdict(-1, "right"), "a row is a number from 0"),
        (Verdict(True, "right"), "a row is a number from 0"),
        (Verdict(2**64, "right"), "a row is a number from 0"),
        (Verdict(1, "maybe"), "'maybe' is no verdict"),  # type: ignore[arg-type]
        (Verdict(1, "right", caption="a dog"), "the verdict must be wrong"),
        (Verdict(1, "wrong", caption=" "), "the caption is empty"),
        (Verdict(1, "wrong", caption="\ud800"), "no text"),
        (Verdict(1, "wrong", image="a\0b"), "no text"),
        (Verdict(1, "wrong", caption="a dog", image="a.jpg"), "give one of them"),
    ],
)
def test_a_verdict_that_means_nothing_is_refused_and_nothing_is_added(run: Run, verdict: Verdict, what: str) -> None:
    with pytest.raises(InputError, match=what):
        Verdicts.open(run).add([Verdict(0, "right"), verdict], reviewer="Ana")
    assert Verdicts.open(run).current() == {}


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, None])
def test_a_reviewer_without_a_name_is_refused(run: Run, name: Any) -> None:
    with pytest.raises(InputError, match="a reviewer needs a name"):
        Verdicts.open(run).add([Verdict(0, "right")], reviewer=name)


def _write(path: Path, reviewer: str, rows: range) -> None:
    verdicts = Verdicts.open(path)
    for row in rows:
        verdicts.add([Verdict(row, "wrong")], reviewer=reviewer)


@pytest.mark.slow
def test_processes_and_threads_that_write_at_once_lose_nothing(run: Run) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_write, args=(run.path, f"process {n}", range(30))) for n in range(2)]
    threads = [threading.Thread(target=_write, args=(run.path, f"thread {n}", range(20))) for n in range(3)]
    for each in (*processes, *threads):
        each.start()
    for each in (*processes, *threads):
        each.join()
    assert [process.exitcode for process in processes] == [0, 0]
    found = {name: sorted(rows) for name, rows in Verdicts.open(run).by_reviewer().items()}
    wanted = {f"process {n}": list(range(30)) for n in range(2)} | {f"thread {n}": list(range(20)) for n in range(3)}
    assert found == wanted


@pytest.mark.slow
def test_a_writer_that_is_killed_loses_no_verdict_whose_add_returned(run: Run) -> None:
    program = (
        "import sys, itertools; from crcl.runs.verdicts import *\n"
        "verdicts = Verdicts.open(sys.argv[1])\n"
        "for row in itertools.count():\n"
        "    verdicts.add([Verdict(row, 'right')], reviewer='Ana')\n"
        "    print(row, flush=True)\n"
    )
    words = [sys.executable, "-c", program, str(run.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(20)]
        os.kill(writer.pid, signal.SIGKILL)
        said += [int(line) for line in writer.stdout if line.endswith("\n")]
    assert set(said) <= Verdicts.open(run).current().keys()
    Verdicts.open(run).add([Verdict(0, "wrong")], reviewer="Ana")
    assert Verdicts.open(run).current()[0].verdict == "wrong"


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_a_link_in_the_folder_is_refused(run: Run, tmp_path: Path, ending: str) -> None:
    (run.path / f"verdicts.sqlite{ending}").symlink_to(tmp_path / "elsewhere")
    for act in (Verdicts.open, lambda run: Verdicts(run.path, "known").add([Verdict(0, "right")], reviewer="Ana")):
        with pytest.raises(InputError, match="a link"):
            act(run)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be one" * 100, b"SQLite format 3\0" + b"x" * 5000]
)
def test_a_damaged_file_is_refused(run: Run, content: bytes) -> None:
    (run.path / "verdicts.sqlite").write_bytes(content)
    with pytest.raises(InputError, match=r"verdicts\.sqlite"):
        Verdicts.open(run)
    with pytest.raises(InputError, match=r"verdicts\.sqlite"):
        Verdicts(run.path, "known").add([Verdict(0, "right")], reviewer="Ana")
    assert (run.path / "verdicts.sqlite").read_bytes() == content


def test_verdicts_on_other_pairs_are_refused(run: Run, tmp_path: Path) -> None:
    Verdicts.open(run).add([Verdict(0, "right")], reviewer="Ana")
    other = create(tmp_path / "other", "others")
    shutil.copy(run.path / "verdicts.sqlite", other.path)
    with pytest.raises(InputError, match="other pairs"):
        Verdicts.open(other)
    with pytest.raises(InputError, match="other pairs"):
        Verdicts(other.path, "others").add([Verdict(0, "right")], reviewer="Ana")


def test_a_file_whose_first_writer_was_killed_at_once_has_no_verdicts(run: Run) -> None:
    (run.path / "verdicts.sqlite").touch()
    assert Verdicts.open(run).current() == {}
    create(run.path, "others", overwrite=True)
    Verdicts.open(run.path).add([Verdict(0, "right")], reviewer="Ana")
    assert Verdicts.open(run.path).current() == {0: Verdict(0, "right")}


def test_verdicts_can_be_read_where_nothing_can_be_written(run: Run) -> None:
    Verdicts.open(run).add([Verdict(0, "right")], reviewer="Ana")
    for path in (run.path / "verdicts.sqlite", run.path):
        path.chmod(0o555)
    try:
        assert Verdicts.open(run).current() == {0: Verdict(0, "right")}
    finally:
        run.path.chmod(0o755)


def test_a_run_that_is_replaced_by_one_on_the_same_pairs_keeps_its_verdicts(run: Run) -> None:
    Verdicts.open(run).add([Verdict(0, "right")], reviewer="Ana")
    fresh = create(run.path, overwrite=True)
    assert Verdicts.open(fresh).current() == {0: Verdict(0, "right")}
    assert Verdicts.open(fresh).undo(reviewer="Ana") == [Verdict(0, "right")]
    assert Run.open(run.path).path == run.path


def test_a_run_with_verdicts_is_not_replaced_by_one_on_other_pairs(run: Run) -> None:
    Verdicts.open(run).add([Verdict(0, "right")], reviewer="Ana")
    with pytest.raises(InputError, match="other pairs than the new run; move the file"):
        create(run.path, "others", overwrite=True)
    assert Verdicts.open(run).current() == {0: Verdict(0, "right")}


def test_no_verdict_is_lost_while_the_run_is_replaced(run: Run) -> None:
    Verdicts.open(run).add([Verdict(0, "right")], reviewer="Ana")
    writer = threading.Thread(target=_write, args=(run.path, "Ben", range(100)))
    writer.start()
    while writer.is_alive():
        create(run.path, overwrite=True)
        time.sleep(0.01)
    writer.join()
    assert sorted(Verdicts.open(run).by_reviewer()["Ben"]) == list(range(100))


def test_what_is_said_later_is_newer_even_if_the_clock_was_set_back(run: Run) -> None:
    verdicts = Verdicts.open(run)
    verdicts.add([Verdict(0, "right")], reviewer="Ana", at="2999-01-01T00:00:00.000000+00:00")
    verdicts.add([Verdict(0, "wrong")], reviewer="Ben")
    assert verdicts.current()[0].verdict == "wrong"
