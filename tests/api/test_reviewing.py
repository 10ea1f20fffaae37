"""Verdicts of a run as a file and back, from Python and from the command line."""

from pathlib import Path

import pytest
from tiny import Answer, call, small_config, write_folder

import crcl
from crcl.runs.folder import Run
from crcl.runs.verdicts import Verdict, Verdicts
from crcl.training import session


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return session.train(small_config(write_folder(tmp_path / "data")), tmp_path / "audit/run")


@pytest.fixture
def words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def told(*words: object) -> Answer:
        return call(capsys, monkeypatch, *map(str, words))

    return told


def test_verdicts_are_on_pairs_as_they_are_shown_also_where_noise_was_injected(run: Run) -> None:
    Verdicts.open(run).add([Verdict(row, "right") for row in range(48)], reviewer="Ana")
    pairs = crcl.audit(run).findings.pairs
    assert pairs.truth is not None
    assert not pairs.truth.all()
    shown = [str(pairs.image_ids[image]) for image in pairs.image_index]
    assert crcl.export_verdicts(run)["image"].to_pylist() == shown


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_the_command_writes_a_file_and_reads_it_into_another_run(run: Run, tmp_path: Path, words, ending: str) -> None:
    Verdicts.open(run).add([Verdict(3, "wrong", caption="a lion", queue="grid")], reviewer="Ana")
    Verdicts.open(run).add([Verdict(1, "right", queue="worst")], reviewer="Ana")
    file = tmp_path / f"verdicts.{ending}"
    assert words("verdicts", "export", run.path.parent, file).out == f"2 verdicts written to {file}\n"
    assert words("verdicts", "export", run.path, file).err.endswith(
        "pass --overwrite to replace it, or name another file\n"
    )
    other = session.train(small_config(tmp_path / "data"), tmp_path / "other")
    assert words("verdicts", "import", other.path, file).out == "2 verdicts added, 0 were there already\n"
    assert words("verdicts", "import", other.path, file).out == "0 verdicts added, 2 were there already\n"
    assert Verdicts.open(other).by_reviewer() == Verdicts.open(run).by_reviewer()


def test_a_file_with_errors_is_refused_as_a_whole(run: Run, tmp_path: Path, words) -> None:
    file = tmp_path / "verdicts.csv"
    file.write_text("image,caption,verdict\nno.jpg,a dog,wrong\nno.jpg,a dog,maybe\n")
    answer = words("verdicts", "import", run.path, file)
    assert answer.code == 2
    assert f"{file}:2: no training pair has image 'no.jpg'" in answer.err
    assert f"{file}:3: 'maybe' is no verdict" in answer.err
    assert not (run.path / "verdicts.sqlite").exists()
    answer = words("verdicts", "merge", run.path, file)
    assert (answer.code, answer.err) == (2, "crcl: ACTION: 'merge' is neither export nor import\n")
