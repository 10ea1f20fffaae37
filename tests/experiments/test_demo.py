"""The built-in demonstration, tiny: what it leaves, and that nothing is done twice."""

from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest
from PIL import Image
from tiny import call

from crcl.experiments import demo
from crcl.methods.crcl import CRCL
from crcl.methods.plain import Objective
from crcl.methods.relink import Relink
from crcl.runs.folder import Run

SETTINGS = [
    word
    for setting in ("train.pieces=[1,2]", "ledger.freeze_epochs=1", "matcher.embedding=8", "train.device=cpu")
    for word in ("--set", setting)
]


@pytest.mark.slow
def test_the_demo_leaves_suspects_and_pictures_and_does_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    words = ["demo", "-o", str(folder), "--images", "24", *SETTINGS]
    answer = call(capsys, monkeypatch, *words)
    assert answer.code == 0, answer.err
    for expected in ("plain (InfoNCE)", "CRCL", "relink", "rSum", "detection AUROC", str(folder / "suspects.csv")):
        assert expected in answer.out
    assert "training CRCL" in answer.err
    for name in ("beliefs.png", "worst.png"):
        with Image.open(folder / name) as picture:
            picture.load()
            assert min(picture.size) > 200
    assert Run.open(folder / "relink").config["train"]["pieces"] == [1, 2]  # settings apply to all methods
    table = pyarrow.csv.read_csv(folder / "suspects.csv")
    assert len(table) == 24 * 5
    assert table.column_names[-1] == "truth"
    beliefs = table["correspondence"].to_pylist()
    assert beliefs == sorted(beliefs)
    np.testing.assert_allclose(beliefs, np.sort(Run.open(folder / "crcl").load_ledger()), atol=1e-6)
    assert 0.25 < 1 - sum(table["truth"].to_pylist()) / len(table) <= 0.4
    assert len(list((folder / "data" / "images").rglob("*.png"))) >= 24

    before = (folder / "suspects.csv").read_bytes()

    def forbidden(*arguments: object) -> None:
        raise AssertionError("this was done already")

    monkeypatch.setattr(CRCL, "train_epoch", forbidden)
    monkeypatch.setattr(Objective, "train_epoch", forbidden)
    monkeypatch.setattr(Relink, "train_epoch", forbidden)
    monkeypatch.setattr(demo, "_draw_scenes", forbidden)
    again = call(capsys, monkeypatch, *words)
    assert again.code == 0, again.err
    assert again.out == answer.out
    assert (folder / "suspects.csv").read_bytes() == before


@pytest.mark.slow
def test_another_demo_in_the_same_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["demo", "-o", str(tmp_path), *SETTINGS]
    assert call(capsys, monkeypatch, *words, "--images", "20").code == 0
    answer = call(capsys, monkeypatch, *words, "--images", "30")
    assert answer.code == 2
    assert "20 training images are drawn there, not 30; give another folder" in answer.err
    answer = call(capsys, monkeypatch, *words, "--images", "20", "--seed", "1")
    assert answer.code == 2
    assert "train.seed: the run has 0, now given 1" in answer.err
