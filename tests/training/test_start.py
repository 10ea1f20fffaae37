"""Training further from a run: its weights, words, scale and beliefs are where each piece begins."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import Answer, Noting, Stop, StopAfter, assert_same_runs, call, small_config, write_folder

from crcl.config import Config, load
from crcl.errors import InputError
from crcl.ledger import Ledger
from crcl.methods import METHODS, MethodRecord
from crcl.methods.plain import Objective
from crcl.progress import Clock, Progress, ProgressGroup
from crcl.runs.describe import conditions, describe, stored_config
from crcl.runs.folder import Run
from crcl.training import build, session

Crcl = Callable[..., Answer]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("start") / "data")


@pytest.fixture(scope="module")
def first(data: Path) -> Run:
    """The run that others start from: standardised, with mismatches and beliefs."""
    return session.train(small_config(data, "data.standardize=true"), data.parent / "first")


@pytest.fixture
def crcl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Crcl:
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: call(capsys, monkeypatch, *map(str, words))


def further(data: Path, first: Run, *settings: str, **base: Any) -> Config:
    return small_config(data, "data.standardize=true", *settings, **{"train.start": str(first.path), **base})


class Beginnings(Progress):
    """Keeps the weights at the beginning of each epoch."""

    def __init__(self) -> None:
        self.method: Any = None
        self.seen: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        self.beliefs: dict[tuple[int, int], np.ndarray] = {}

    def epoch_started(self, clock: Clock, steps: int) -> None:
        state = self.method.learner.module.state_dict()
        self.seen[clock.piece, clock.epoch] = {name: value.clone() for name, value in state.items()}
        self.beliefs[clock.piece, clock.epoch] = self.method.correspondence.copy()


@pytest.fixture
def beginnings(monkeypatch: pytest.MonkeyPatch) -> Beginnings:
    listener = Beginnings()

    def remembering(record: MethodRecord) -> MethodRecord:
        def build(**given: Any) -> Any:
            listener.method = record.build(**given)
            return listener.method

        return replace(record, build=build)

    for name, record in METHODS.items():
        monkeypatch.setitem(METHODS, name, remembering(record))
    return listener


def test_every_piece_begins_from_the_weights_of_the_run(
    data: Path, first: Run, tmp_path: Path, beginnings: Beginnings
) -> None:
    said: list[str] = []
    new = session.train(further(data, first), tmp_path / "new", progress=ProgressGroup(beginnings, Noting(said)))
    for piece in (0, 1):
        for name, value in first.load_matcher().items():
            torch.testing.assert_close(beginnings.seen[piece, 0][name], value, atol=0, rtol=0)
    weights = first.load_matcher()
    assert any((value != weights[name]).any() for name, value in beginnings.seen[1, 1].items())
    np.testing.assert_array_equal(beginnings.beliefs[0, 0], first.load_ledger())
    assert said == []
    assert new.vocabulary().words == first.vocabulary().words
    one, other = new.standardize(), first.standardize()
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.mean, other.mean)
    assert dict(describe(new.path))["started from"] == str(first.path)
    assert f"started from {first.path}" in conditions(new, stored_config(new))


def test_words_and_scale_are_the_runs_also_on_other_data(first: Run, tmp_path: Path, beginnings: Beginnings) -> None:
    other = write_folder(tmp_path / "other", train=30, seed=5)
    said: list[str] = []
    new = session.train(
        further(other, first, "data.min_count=40"), tmp_path / "new", progress=ProgressGroup(beginnings, Noting(said))
    )
    assert new.vocabulary().words == first.vocabulary().words
    assert (new.path / "standardize.npz").read_bytes() == (first.path / "standardize.npz").read_bytes()
    assert said == [f"the correspondences of {first.path} are of other pairs: all start at 1"]
    assert (beginnings.beliefs[0, 0] == 1).all()


def test_beliefs_are_taken_where_the_same_pairs_have_other_features(
    data: Path, first: Run, tmp_path: Path, beginnings: Beginnings
) -> None:
    other = tmp_path / "other"
    shutil.copytree(data, other)
    for split in ("train", "dev"):
        np.save(other / f"{split}_ims.npy", np.load(other / f"{split}_ims.npy")[:, :3])
    session.train(further(other, first), tmp_path / "new", progress=beginnings)
    np.testing.assert_array_equal(beginnings.beliefs[0, 0], first.load_ledger())


@pytest.mark.parametrize("settings", [["noise.rate=0.0"], ["noise.seed=9"]])
def test_beliefs_about_other_mismatches_are_not_taken(
    data: Path, first: Run, tmp_path: Path, beginnings: Beginnings, settings: list[str]
) -> None:
    said: list[str] = []
    session.train(further(data, first, *settings), tmp_path / "new", progress=ProgressGroup(beginnings, Noting(said)))
    assert said == [f"the correspondences of {first.path} are of other pairs, with other mismatches: all start at 1"]
    assert (beginnings.beliefs[0, 0] == 1).all()


def test_a_plain_method_starts_from_the_weights_and_has_no_use_for_beliefs(
    data: Path, first: Run, tmp_path: Path, beginnings: Beginnings
) -> None:
    said: list[str] = []
    new = session.train(
        further(data, first, method="infonce"), tmp_path / "new", progress=ProgressGroup(beginnings, Noting(said))
    )
    assert isinstance(beginnings.method, Objective)
    torch.testing.assert_close(beginnings.seen[0, 0], first.load_matcher(), atol=0, rtol=0)
    assert said == []
    assert not (new.path / "start.npz").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ledger.correction=paper", []),
        ("ledger.correction=paper", ["train.save_minutes=0"]),
        ("ledger.correction=official", []),
        ("method=infonce", ["train.save_minutes=0"]),
    ],
)
def test_lost_at_any_step_and_without_the_first_run_it_ends_bit_identical(
    data: Path, first: Run, tmp_path: Path, kind: str, settings: list[str]
) -> None:
    origin = tmp_path / "origin"
    config = further(data, first, "train.pieces=[2,2]", *settings, kind, **{"train.start": str(origin)})
    shutil.copytree(first.path, origin)
    expected = session.train(config, tmp_path / "reference").path
    for lost in range(1, 20, 2):  # over the ends of epochs and pieces
        run = tmp_path / f"run{lost}"
        shutil.copytree(first.path, origin, dirs_exist_ok=True)
        try:
            session.train(config, run, progress=StopAfter(lost))
            break
        except Stop:
            shutil.rmtree(origin)
            session.train(config, run, resume=True)
        assert_same_runs(run, expected)
        for name in ("start.safetensors", "standardize.npz"):
            assert (run / name).read_bytes() == (expected / name).read_bytes()
    assert lost > 4


def test_a_run_killed_between_two_pieces_begins_the_next_from_the_start(
    data: Path, first: Run, tmp_path: Path, beginnings: Beginnings
) -> None:
    class StopAfterPiece(StopAfter):
        def epoch_done(self, record: dict[str, Any]) -> None:
            if record["piece"] == 0:
                raise Stop

    with pytest.raises(Stop):
        session.train(further(data, first), tmp_path / "new", progress=StopAfterPiece(-1))
    session.train(further(data, first), tmp_path / "new", resume=True, progress=beginnings)
    assert (0, 0) not in beginnings.seen
    torch.testing.assert_close(beginnings.seen[1, 0], first.load_matcher(), atol=0, rtol=0)


def test_a_start_that_does_not_fit_is_refused_with_all_that_differs(data: Path, first: Run, tmp_path: Path) -> None:
    settings = ["matcher.embedding=16", "matcher.word=7", "data.standardize=false", "data.vocab=words.json"]
    with pytest.raises(InputError) as refused:
        session.train(further(data, first, *settings), tmp_path / "new")
    assert str(refused.value).splitlines() == [
        f"{first.path}: a training that starts from it keeps its matcher, but",
        "data.standardize: the run has True, now given False",
        "matcher.embedding: the run has 8, now given 16",
        "matcher.word: the run has 6, now given 7",
        "data.vocab: the vocabulary is the run's, now given 'words.json'; leave it out",
    ]
    assert not (tmp_path / "new").exists()


def test_another_number_of_networks_is_refused(
    data: Path, first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "infonce", replace(METHODS["infonce"], networks=2))
    with pytest.raises(InputError, match="the run has 1 networks, infonce trains 2; methods that train 1: crcl, "):
        session.train(further(data, first, method="infonce"), tmp_path / "new")


def test_each_network_of_two_begins_from_its_own_weights() -> None:
    def beginnings(networks: int, weights: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
        learnt = build.Learnt(weights)
        for make in build._matcher_makers(lambda: torch.nn.Linear(1, 1, bias=False), learnt, networks):
            yield make().state_dict()

    one, other = torch.tensor([[1.0]]), torch.tensor([[2.0]])
    assert list(beginnings(2, {"members.0.weight": one, "members.1.weight": other})) == [
        {"weight": one},
        {"weight": other},
    ]
    assert list(beginnings(1, {"weight": other})) == [{"weight": other}]


@pytest.fixture(scope="module")
def relinked(data: Path) -> Run:
    """A run of a network with the linear model of relink beside it."""
    return session.train(small_config(data, "data.standardize=true", method="relink"), data.parent / "relinked")


@pytest.mark.parametrize("method", ["relink", "crcl"])
def test_from_a_run_of_relink_only_its_network_is_taken(
    data: Path, relinked: Run, tmp_path: Path, beginnings: Beginnings, method: str
) -> None:
    assert relinked.networks == 2
    new = session.train(further(data, relinked, method=method), tmp_path / "new", progress=beginnings)
    weights = relinked.load_matcher()
    for name, value in beginnings.seen[0, 0].items():
        torch.testing.assert_close(value, weights[f"members.0.{name}"], atol=0, rtol=0)
    assert new.networks == (2 if method == "relink" else 1)


def test_relink_starts_from_a_run_of_one_network(
    data: Path, first: Run, tmp_path: Path, beginnings: Beginnings
) -> None:
    new = session.train(further(data, first, method="relink"), tmp_path / "new", progress=beginnings)
    torch.testing.assert_close(beginnings.seen[0, 0], first.load_matcher(), atol=0, rtol=0)
    assert new.networks == 2
    with pytest.raises(InputError, match="the run has 1 networks, ncr trains 2"):
        session.train(further(data, new, method="ncr"), tmp_path / "other")


def test_lost_on_the_way_and_without_the_first_run_relink_ends_bit_identical(
    data: Path, relinked: Run, tmp_path: Path
) -> None:
    origin = Path(shutil.copytree(relinked.path, tmp_path / "origin"))
    config = further(data, relinked, "train.save_minutes=0", method="relink", **{"train.start": str(origin)})
    expected = session.train(config, tmp_path / "reference").path
    with pytest.raises(Stop):
        session.train(config, tmp_path / "run", progress=StopAfter(8))
    shutil.rmtree(origin)
    session.train(config, tmp_path / "run", resume=True)
    assert_same_runs(tmp_path / "run", expected)


def test_features_of_another_size_are_refused(first: Run, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "other")
    for split in ("train", "dev"):
        features = np.load(other / f"{split}_ims.npy")
        np.save(other / f"{split}_ims.npy", features[..., :5])
    with pytest.raises(InputError, match=r"5 numbers per region, but .* was trained on 6"):
        session.train(further(other, first), tmp_path / "new")


def test_the_matcher_is_the_runs_unless_another_is_asked_for(first: Run) -> None:
    start = {"train.start": str(first.path)}
    config = session.new_config(base=start, settings=["train.lr=0.5"])
    stored = stored_config(first)
    assert config.matcher == stored.matcher
    assert config.data.standardize
    assert (config.train.lr, config.train.pieces) == (0.5, load().train.pieces)
    assert session.new_config(base=start, settings=["matcher.embedding=99"]).matcher.embedding == 99
    assert session.new_config(settings=["train.lr=0.5"]) == load(settings=["train.lr=0.5"])
    with pytest.raises(InputError, match="no such run folder"):
        session.new_config(settings=["train.start=nowhere"])


def test_a_damaged_start_is_refused(data: Path, first: Run, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        session.train(further(data, first), tmp_path / "new", progress=StopAfter(1))
    (tmp_path / "new" / "start.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"start\.npz: damaged"):
        session.train(further(data, first), tmp_path / "new", resume=True)
    (tmp_path / "new" / "start.safetensors").unlink()
    with pytest.raises(InputError, match=r"without start\.safetensors"):
        session.train(further(data, first), tmp_path / "new", resume=True)


def test_the_command_goes_on_with_resume_and_refuses_another_start(
    crcl: Crcl, data: Path, first: Run, tmp_path: Path
) -> None:
    settings = ["train.pieces=[1,1]", "ledger.freeze_epochs=0", "train.batch_size=16", "noise.rate=0.4"]
    words = ["train", data, "-o", tmp_path / "new", *(word for key in settings for word in ("--set", key))]
    assert crcl(*words, "--start", first.path).code == 0
    answer = crcl(*words, "--start", first.path, "--resume")
    assert (answer.code, "finished already" in answer.err) == (0, True), answer.err
    answer = crcl(*words, "--start", tmp_path, "--resume")
    assert answer.code == 2
    assert "train.start: the run has" in answer.err
    assert "nowhere: no such run folder" in crcl(*words, "--start", "nowhere", "--overwrite").err
    assert Run.open(tmp_path / "new").metrics()  # still there


def test_a_ledger_with_beliefs_skips_the_rule_that_takes_probabilities_as_they_are() -> None:
    start = np.array([0.5, 0.2], dtype=np.float64)
    numbers, now = torch.tensor([0, 1]), torch.tensor([0.1, 0.9])
    fresh, known = Ledger(2, freeze_epochs=1), Ledger(2, freeze_epochs=1, start=start)
    for ledger in (fresh, known):
        ledger.begin_epoch(0, 0)
        labels = ledger.observe(numbers, now)
        np.testing.assert_allclose(labels, [1, 1] if ledger is fresh else start)
        ledger.begin_epoch(0, 1)
    np.testing.assert_allclose(fresh.correspondence, now)
    np.testing.assert_allclose(known.correspondence, 0.8 * start + 0.2 * now.numpy(), rtol=1e-6)
    later = Ledger(2, freeze_epochs=1)  # the same as in a second piece
    later.correspondence = start.astype(np.float32)
    later.begin_epoch(1, 0)
    later.observe(numbers, now)
    later.begin_epoch(1, 1)
    np.testing.assert_array_equal(later.correspondence, known.correspondence)


def test_a_ledger_with_beliefs_does_not_store_probabilities_as_the_authors_code_does_first() -> None:
    start = np.array([0.5, 0.05], dtype=np.float32)
    ledger = Ledger(2, freeze_epochs=1, correction="official", start=start)
    ledger.begin_epoch(0, 0)
    ledger.observe(torch.tensor([0, 1]), torch.tensor([0.1, 0.9]))
    np.testing.assert_array_equal(ledger.correspondence, np.array([0.5, 0], dtype=np.float32))
    assert start[1] == np.float32(0.05)  # the caller's array is left alone


@pytest.mark.parametrize("start", [np.ones(3), np.array([0.5, 1.5]), np.array([np.nan, 1])])
def test_a_ledger_refuses_beliefs_that_are_none(start: np.ndarray) -> None:
    with pytest.raises(ValueError, match="beliefs from 0 to 1"):
        Ledger(2, start=start)
