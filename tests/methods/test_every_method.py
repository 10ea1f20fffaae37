"""What holds for every method alike: it goes on where it was lost, and its run can be audited; what plain losses reach.

Methods that have a file of tests of their own are compared with hardest triplets there.
"""

from pathlib import Path

import pyarrow.csv
import pytest
from peers import Reached, assert_ends_alike_when_lost, train_on_scenes
from tiny import Answer, call, small_config, write_folder

from crcl import config
from crcl.methods import METHODS
from crcl.training import session

OWN = {"crcl": 0.1, "gsc": 0.1, "decl": 0.5, "ncr": 0.5, "bicro": 0.5, "mscn": 0.5, "l2rm": 0.5, "relink": 0.5}
each_method = pytest.mark.parametrize("method", METHODS)


@pytest.mark.slow
@each_method
def test_a_run_is_audited_at_the_threshold_of_its_method(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = session.train(small_config(write_folder(tmp_path / "data"), method=method), tmp_path / "run").path

    def audited(*words: str) -> Answer:
        answer = call(capsys, monkeypatch, "audit", str(run), *words)
        assert answer.code == 0, answer.err
        return answer

    answer = audited()
    rows = pyarrow.csv.read_csv(run / "audit.csv").to_pydict()
    threshold = OWN.get(method, 0.1)
    assert sorted(rows["row"]) == list(range(48))
    assert all(0 <= belief <= 1 for belief in rows["correspondence"])
    assert rows["correspondence"] == sorted(rows["correspondence"])
    assert rows["suspect"] == [belief < threshold for belief in rows["correspondence"]]
    assert f"At threshold {threshold:g}, {sum(rows['suspect'])} of 48 pairs" in answer.out
    assert "auroc" in answer.out
    assert ("no natural threshold" in answer.err) == (method not in OWN)
    asked = audited("--threshold", "0.3")
    assert "At threshold 0.3, " in asked.out
    assert "no natural threshold" not in asked.err


def test_the_threshold_of_a_method_is_the_one_that_it_was_trained_with() -> None:
    settings = ["ledger.threshold=0.2", "division.threshold=0.6"]
    found = {name: config.load(settings=[f"method={name}", *settings]).own_threshold() for name in METHODS}
    changed = {"crcl": 0.2, "gsc": 0.2, "ncr": 0.6, "bicro": 0.6, "l2rm": 0.6}
    assert found == dict.fromkeys(METHODS) | OWN | changed


@pytest.mark.slow
@each_method
def test_lost_on_the_way_a_training_ends_bit_identical(method: str, tmp_path: Path) -> None:
    settings = [f"method={method}", "train.pieces=[2,2]"]
    assert_ends_alike_when_lost(tmp_path, settings, after=3)


SCENES = ["matcher.embedding=128", "train.lr=0.002", "train.pieces=[4,10]", "ledger.freeze_epochs=2"]


@pytest.fixture(scope="module")
def hardest(tmp_path_factory: pytest.TempPathFactory) -> Reached:
    return train_on_scenes(tmp_path_factory.mktemp("hardest"), "triplet-hardest", *SCENES)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["crcl", "complementary", "infonce", "relink"])
def test_on_noisy_scenes_it_beats_plain_training_with_hardest_triplets(
    method: str, hardest: Reached, tmp_path: Path
) -> None:
    reached = train_on_scenes(tmp_path, method, *SCENES)
    assert reached.rsum > hardest.rsum + 25
    assert reached.auroc > hardest.auroc + 0.01
