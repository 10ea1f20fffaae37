"""The examples run as they are, each as a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import SMALL, environment, write_folder

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested_and_reads_in_under_80_lines() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == [
        "own_training_loop.py",
        "precomp.py",
        "wrong_pairs.py",
    ]
    assert all(len(path.read_text("utf-8").splitlines()) < 80 for path in EXAMPLES.glob("*.py"))


@pytest.mark.slow
def test_a_loop_of_ones_own_finds_the_mismatched_pairs(tmp_path: Path) -> None:
    out = run("own_training_loop.py", tmp_path)
    assert float(out.rsplit("AUROC", 1)[1]) > 0.9


@pytest.mark.slow
def test_the_precomp_example_makes_its_own_data(tmp_path: Path) -> None:
    out = run("precomp.py", tmp_path)
    assert "test rSum" in out
    assert "AUROC" in out


@pytest.mark.slow
def test_the_precomp_example_asks_for_a_run_folder(tmp_path: Path) -> None:
    words = [sys.executable, str(EXAMPLES / "precomp.py"), "data"]
    answer = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (answer.returncode, "FOLDER RUN" in answer.stderr) == (1, True)


@pytest.mark.slow
def test_the_precomp_example_trains_on_a_folder(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    out = run("precomp.py", tmp_path, str(data), str(tmp_path / "run"), *SMALL)
    assert "of 48 training pairs are suspect" in out
    assert (tmp_path / "run" / "matcher.safetensors").exists()


def test_a_table_of_wrong_pairs_has_as_many_as_asked_for(tmp_path: Path) -> None:
    out = run("wrong_pairs.py", tmp_path, "scenes", "--images", "20", "--wrong", "0.5")
    assert "100 pairs" in out
    pairs = (tmp_path / "scenes" / "pairs.csv").read_text("utf-8").splitlines()
    answers = [line.split(",")[1] for line in (tmp_path / "scenes" / "answers.csv").read_text("utf-8").splitlines()[1:]]
    assert len(pairs) == 101
    assert 40 <= answers.count("False") <= 50  # a permutation leaves some where they were
    assert (tmp_path / "scenes" / "drawn" / "images" / pairs[1].split(",")[0]).is_file()
