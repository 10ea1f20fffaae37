"""A table is parsed once, whatever is done with its pairs."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tiny import SMALL, call, small_config, train_command

import crcl
from crcl.data.sources import table as tables
from crcl.training import inputs
from crcl.training.session import train


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are parsed from now on, one entry each time."""
    files: list[Path] = []
    parse = tables.read_rows

    def counted(path: Path, *rest: Any) -> pa.Table:
        files.append(path)
        return parse(path, *rest)

    monkeypatch.setattr(tables, "read_rows", counted)
    return files


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with features."""
    names = [f"{number}.jpg" for number in range(30)]
    np.save(tmp_path / "features.npy", np.random.default_rng(0).normal(size=(30, 4, 6)).astype(np.float32))
    (tmp_path / "ids.txt").write_text("\n".join(names))
    (tmp_path / "pairs.csv").write_text("image,caption\n" + "".join(f"{name},a dog on the grass\n" for name in names))
    return tmp_path / "pairs.csv"


def test_a_training_parses_its_table_once(table: Path, parsed: list[Path], tmp_path: Path) -> None:
    config = small_config(table, "data.min_count=1")
    train(config, tmp_path / "run")
    assert parsed == [table]


def test_opened_pairs_are_not_parsed_again(table: Path, parsed: list[Path], tmp_path: Path) -> None:
    config = small_config(table, "data.min_count=1")
    pairs = inputs.open_pairs(config)
    pairs.check()
    pairs.wanted_images()
    run = train(config, tmp_path / "run", pairs=pairs)
    train(config, tmp_path / "run", pairs=pairs, resume=True)
    judged = inputs.audited_pairs(run, config, pairs)
    pairs.unjudged(judged)
    pairs.with_features(tmp_path / "features.npy", tmp_path / "ids.txt").without_empty().split("dev")
    assert parsed == [table]


def test_an_audit_with_report_and_cleaned_copy_parses_its_table_once(
    table: Path, parsed: list[Path], tmp_path: Path
) -> None:
    found = crcl.audit(table, tmp_path / "audit", settings=[*SMALL, "data.min_count=1"])
    found.write(tmp_path / "audit.csv")
    found.report(tmp_path / "report")
    found.at(threshold=0.5).clean(tmp_path / "cleaned.csv")
    assert parsed == [table]


def test_the_commands_train_and_audit_parse_their_table_once(
    table: Path,
    parsed: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = train_command(table, tmp_path / "run", settings=["data.min_count=1"])
    assert call(capsys, monkeypatch, *words).code == 0
    assert parsed == [table]
    parsed.clear()
    settings = [word for setting in (*SMALL, "data.min_count=1") for word in ("--set", setting)]
    audit = ["audit", str(table), "--folder", str(tmp_path / "audit"), *settings]
    for _ in range(2):  # the second time nothing is left to train
        assert call(capsys, monkeypatch, *audit).code == 0
        assert parsed == [table]
        parsed.clear()
