"""A training keeps to verdicts: right stays 1, wrong stays 0, corrected pairs are seen as corrected; a resume too."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from drawn import drawn, write_table
from tiny import Noting, Stop, StopAfter, small_config, write_folder

import crcl
from crcl.config import Config
from crcl.errors import InputError
from crcl.runs.exchange.known import FILE, Known
from crcl.runs.folder import Run
from crcl.runs.verdicts import Verdict, Verdicts
from crcl.training import session
from crcl.training.inputs import read_data

SAID = [
    Verdict(0, "right"),
    Verdict(1, "wrong"),
    Verdict(2, "wrong", caption="a red lion on the grass"),
    Verdict(3, "wrong", image="train9.jpg"),
    Verdict(4, "unsure"),
]
METHODS = {"crcl": ["method=crcl"], "relink": ["method=relink"], "linear": ["method=relink", "matcher.name=linear"]}


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with verdicts."""
    folder = tmp_path_factory.mktemp("reviewed")
    run = session.train(small_config(write_folder(folder / "data")), folder / "run")
    Verdicts.open(run).add(SAID, reviewer="Ana")
    return run


def config(reviewed: Run, settings: Sequence[str] = (), **base: object) -> Config:
    base = {"data.verdicts": str(reviewed.path), **base}
    return small_config(reviewed.path.parent / "data", "data.decoys=0.2", *settings, **base)


@pytest.mark.parametrize("method", METHODS)
def test_right_stays_1_and_wrong_stays_0_after_every_epoch(reviewed: Run, tmp_path: Path, method: str) -> None:
    run = session.train(config(reviewed, METHODS[method]), tmp_path / "run")
    kept = run.kept_beliefs()
    assert (kept[:, 0] == 1).all()
    assert (kept[:, 1] == 0).all()
    assert (run.load_ledger()[:4] == [1, 0, 1, 1]).all()  # corrected ones are believed as corrected
    found = crcl.audit(run)
    assert found.correspondence[:4].tolist() == [1, 0, 0, 0]  # and as they are shown, they are wrong
    others = found.correspondence[4:]
    assert len(np.unique(others)) > 2


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_training_is_the_same_bit_for_bit_whatever_is_said_meanwhile(
    reviewed: Run, tmp_path: Path, method: str
) -> None:
    fixed = tmp_path / "verdicts.jsonl"
    crcl.export_verdicts(reviewed, fixed)
    chosen = config(reviewed, METHODS[method], **{"data.verdicts": str(fixed)})
    whole = session.train(chosen, tmp_path / "whole")
    with pytest.raises(Stop):
        session.train(chosen, tmp_path / "stopped", progress=StopAfter(3))
    fixed.write_text(fixed.read_text().replace('"verdict": "right"', '"verdict": "wrong"'))
    notes: list[str] = []
    again = session.train(chosen, tmp_path / "stopped", resume=True, progress=Noting(notes))
    assert any("have changed since this training began" in note for note in notes)
    for name in ("ledger.npz", "judged.npz", "matcher.safetensors", "metrics.jsonl", FILE):
        assert (again.path / name).read_bytes() == (whole.path / name).read_bytes(), name


def test_corrected_pairs_are_seen_as_corrected_and_the_truth_stays_out_of_it(reviewed: Run) -> None:
    data = read_data(config(reviewed))
    assert data.train.captions[2] == "a red lion on the grass"
    assert data.train.image_index[3] == 9
    assert data.clean.captions[2] != data.train.captions[2]
    fixed = data.fixed
    assert fixed is not None
    assert fixed[:4].tolist() == [1, 0, 1, 1]
    assert np.isnan(fixed[4:]).all()
    assert len(fixed) == len(data.train) > len(data.clean)


def test_the_new_run_has_the_verdicts_and_cleans_by_them(reviewed: Run, tmp_path: Path) -> None:
    run = session.train(config(reviewed), tmp_path / "run")
    assert Verdicts.open(run).dated() == Verdicts.open(reviewed).dated()
    known = Known.read(run.path, pairs=48, images=24)
    assert known is not None
    assert known.captions == {2: "a red lion on the grass"}


def test_what_cannot_be_used_is_refused(reviewed: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"method ncr .* no place for verdicts; methods that take them: crcl, relink"):
        session.train(config(reviewed, ["method=ncr"]), tmp_path / "run")
    with pytest.raises(InputError, match="its verdicts are on other pairs; crcl"):
        session.train(config(reviewed, **{"noise.seed": 1}), tmp_path / "run")
    other = write_folder(tmp_path / "other", seed=1)
    with pytest.raises(InputError, match="its verdicts are on other pairs"):
        session.train(small_config(other, **{"data.verdicts": str(reviewed.path)}), tmp_path / "run")
    (tmp_path / "none.jsonl").write_text('{"image": "train0.jpg", "caption": "x", "verdict": "right"}\n')
    with pytest.raises(InputError, match="no training pair has image 'train0"):
        session.train(config(reviewed, **{"data.verdicts": str(tmp_path / "none.jsonl")}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_verdicts_that_cannot_be_used_are_refused_before_features_are_made(tmp_path: Path) -> None:
    table = write_table(drawn(6, 1), tmp_path)
    (tmp_path / "said.csv").write_text("image,caption\n")
    for given, what in (("absent", "no such run folder"), ("absent.csv", "not found"), ("said.csv", "no column 'verd")):
        with pytest.raises(InputError, match=what):
            crcl.train(table, tmp_path / "run", method="crcl", verdicts=tmp_path / given)
        with pytest.raises(InputError, match=what):
            crcl.audit(table, tmp_path / "audit", verdicts=tmp_path / given)
    with pytest.raises(InputError, match=r"method ncr .* no place for verdicts"):
        crcl.train(table, tmp_path / "run", method="ncr", verdicts=tmp_path / "said.csv")
    assert not [
        path.name for path in (tmp_path / "audit", tmp_path / "run-features", tmp_path / "run") if path.exists()
    ]


def test_a_training_without_verdicts_leaves_no_trace_of_them(reviewed: Run) -> None:
    assert not (reviewed.path / FILE).exists()
    assert not (reviewed.path / "judged.npz").exists()


def test_damaged_verdicts_in_a_run_are_refused(reviewed: Run, tmp_path: Path) -> None:
    run = session.train(config(reviewed), tmp_path / "run")
    for text in ('{"pairs": [99], "right": [true], "images": [-1], "captions": [null]}', "[]", '{"pairs": [0]}'):
        (run.path / FILE).write_text(text)
        with pytest.raises(InputError, match=FILE):
            Known.read(run.path, pairs=48, images=24)


@pytest.mark.slow
def test_an_audit_trains_with_verdicts_and_says_what_they_changed(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=120)
    settings = {"method": "relink", "matcher.name": "linear", "noise.rate": 0.3}
    first = crcl.audit(data, tmp_path / "audit", settings=settings)
    truth = first.findings.pairs.truth
    assert truth is not None
    worst = first.findings.rows[:20].tolist()
    said = [Verdict(row, "right" if truth[row] else "wrong") for row in worst]
    Verdicts.open(first.run).add(said, reviewer="Ana")
    again = crcl.audit(data, tmp_path / "audit", verdicts=tmp_path / "audit", settings=settings, overwrite=True)
    (told,) = [line for line in again.summary() if line.startswith("Trained with verdicts on 20 pairs")]
    assert "By decoys alone" in told
    column = dict(zip(again.table["row"].to_pylist(), again.table["verdict"].to_pylist(), strict=True))
    assert {row: column[row] for row in worst} == {one.row: one.verdict for one in said}
    assert sum(value is not None for value in column.values()) == 20
    assert Verdicts.open(again.run).dated() == Verdicts.open(first.run).dated()
    p_wrong = again.p_wrong
    assert p_wrong is not None
    assert p_wrong[worst].tolist() == [float(not truth[row]) for row in worst]
