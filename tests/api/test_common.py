"""Runs as public functions and commands take them: opened, as a folder, or as the folder of the audit around it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import SETTINGS, drawn, write_table
from tiny import call

import crcl
from crcl.api.common import path_of

FEATURES = ["--features", "pairs-audit/features/features.npy", "--ids", "pairs-audit/features/ids.txt"]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an audit, which has a quick look's run beside its own."""
    folder = tmp_path_factory.mktemp("audited")
    table = write_table(drawn(60, captions=5), folder)
    crcl.audit(table, folder / "pairs-audit", settings=SETTINGS, suggest=0)
    crcl.audit(table, folder / "pairs-audit", quick=True, suggest=0)
    return folder / "pairs-audit"


def test_the_folder_of_an_audit_stands_for_its_run(audited: Path, tmp_path: Path) -> None:
    assert path_of(audited) == path_of(str(audited)) == path_of(audited / "run") == audited / "run"
    assert path_of(crcl.load(audited)) == audited / "run"
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "config.json").write_text("{}", "utf-8")
    assert path_of(tmp_path) == tmp_path / "quick"
    assert path_of(tmp_path / "nothing") == tmp_path / "nothing"


@pytest.mark.parametrize(
    "use",
    [
        lambda run, _: crcl.evaluate(run, split="dev").rsum,
        lambda run, _: crcl.audit(run, suggest=0).correspondence.tolist(),
        lambda run, to: (crcl.clean(run, to / "cleaned.csv", threshold=0.3), (to / "cleaned.csv").read_bytes()),
        lambda run, to: len(crcl.index(run, to / "index").images),
        lambda run, to: crcl.export(run, to / "weights.safetensors").stat().st_size,
        lambda run, to: [path.name for path in crcl.plot(run, to / "plots")],
        lambda run, _: crcl.info(run),
        lambda run, to: crcl.export_verdicts(run, to / "verdicts.csv").num_rows,
    ],
    ids=["evaluate", "audit", "clean", "index", "export", "plot", "info", "export_verdicts"],
)
def test_what_takes_a_run_takes_the_folder_of_its_audit(
    use: Callable[[Path, Path], Any], audited: Path, tmp_path: Path
) -> None:
    found = []
    for place, run in enumerate((audited, audited / "run")):
        (tmp_path / str(place)).mkdir()
        found.append(use(run, tmp_path / str(place)))
    np.testing.assert_equal(*found)


@pytest.mark.parametrize(
    "words",
    [
        ["audit", "pairs-audit", "--threshold", "0.2", "-o", "again.csv"],
        ["clean", "pairs-audit", "-o", "cleaned.csv", "--threshold", "0.2"],
        ["clean", "pairs-audit", "-o", "moved.csv", "--threshold", "0.2", "--data", "pairs.csv", *FEATURES],
        ["evaluate", "pairs-audit", "--split", "dev"],
        ["export", "pairs-audit", "-o", "weights.safetensors"],
        ["index", "pairs-audit", "-o", "found.index"],
        ["info", "pairs-audit"],
        ["info", "pairs-audit", "--card"],
        ["plot", "pairs-audit", "-o", "plots"],
        ["verdicts", "export", "pairs-audit", "verdicts.csv"],
    ],
    ids=" ".join,
)
def test_every_command_that_takes_a_run_takes_the_folder_of_its_audit(
    words: list[str], audited: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(audited.parent)
    answer = call(capsys, monkeypatch, *words)
    assert answer.code == 0, answer.err


def test_a_folder_that_is_neither_is_refused_and_says_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder" / "report").mkdir(parents=True)
    (tmp_path / "folder" / "notes.txt").write_text("a", "utf-8")
    monkeypatch.chdir(tmp_path)
    for words in (["clean", "folder", "-o", "a.csv"], ["index", "folder"], ["evaluate", "folder"]):
        answer = call(capsys, monkeypatch, *words)
        assert answer.code == 2
        assert "folder: not a run folder (it has no config.json)" in answer.err
        assert "notes.txt" in answer.err
