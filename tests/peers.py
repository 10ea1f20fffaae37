"""What the tests of the methods share."""

import io
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny import Stop, StopAfter, assert_same_runs, leaves, small_config, write_folder
from torch import Tensor, nn

from crcl.auditing.findings import find
from crcl.config import load
from crcl.data import scenes
from crcl.data.batches import Batch, Batches
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.features.grid import grid_features
from crcl.matchers import Bow
from crcl.methods.base import Learner, Method
from crcl.methods.two_networks import TwoNetworks
from crcl.progress import Clock
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.opening import open_scorer
from crcl.training import inputs, session


def clock(epoch: int, step: int = 0) -> Clock:
    return Clock(0, epoch, step, epoch, learning_rate=0.01)


class Small:
    """Small pairs with their batches and a maker of learners."""

    def __init__(self, pairs: Split, *, batch_size: int = 5) -> None:
        words = Vocabulary.build(pairs.captions, minimum=1)
        sizes = {"features": pairs.features.shape[2], "vocabulary": len(words)}
        self.pairs = len(pairs)
        self.batches = Batches(
            pairs,
            words.encode(pairs.captions),
            vocabulary=len(words),
            mask_token=words.mask,
            batch_size=batch_size,
        )
        self.make_matcher: Callable[[], nn.Module] = lambda: Bow(**sizes, embedding=8, word=6)

    def make_learner(self) -> Learner:
        return Learner(self.make_matcher)


class Step(NamedTuple):
    """One optimizer step, and both networks as they were before it."""

    which: int
    batch: Batch
    labels: Tensor
    before: tuple[Learner, ...]


def recorded_steps(networks: TwoNetworks, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The steps that both networks take from now on, as they come."""
    steps: list[Step] = []

    def step(which: int, batch: Batch, labels: Tensor, clock: Clock) -> float:
        steps.append(Step(which, batch, labels, deepcopy(networks.learners)))
        return TwoNetworks.optimizer_step(networks, which, batch, labels, clock)

    monkeypatch.setattr(networks, "optimizer_step", step)
    return steps


def mean_triplet(sims: Tensor, margin: float = 0.2) -> list[float]:
    """Each pair's mean of hinges, from the sum signs."""
    size = len(sims)
    values = []
    for i in range(size):
        total = 0.0
        for j in set(range(size)) - {i}:
            total += max(margin + sims[i, j].item() - sims[i, i].item(), 0)
            total += max(margin + sims[j, i].item() - sims[i, i].item(), 0)
        values.append(total / size)
    return values


def assert_goes_on_from_any_step(make: Callable[[], Method], batches: Batches, *, epochs: Sequence[int]) -> list[int]:
    """Saved after any step and loaded into a new method, each of these epochs ends bit for bit as it does undisturbed.

    Returns the steps of each epoch.
    """
    method = make()
    torch.manual_seed(0)
    method.begin_piece(0)
    counts = []
    for epoch in epochs:
        saved = []
        for _ in method.train_epoch(batches, clock(epoch)):
            buffer = io.BytesIO()
            torch.save({"method": method.state_dict(), "random": torch.get_rng_state()}, buffer)
            saved.append(buffer.getvalue())
        counts.append(len(saved))
        after = torch.get_rng_state()
        for step, data in enumerate(saved, 1):
            state = torch.load(io.BytesIO(data), weights_only=True)
            other = make()
            other.begin_piece(0)
            other.load_state_dict(state["method"])
            torch.set_rng_state(state["random"])
            assert len(list(other.train_epoch(batches, clock(epoch, step)))) == len(saved) - step
            assert dict(leaves(other.state_dict())) == dict(leaves(method.state_dict())), (epoch, step)
            assert other.correspondence.tobytes() == method.correspondence.tobytes()
        torch.set_rng_state(after)
    return counts


class Reached(NamedTuple):
    """Test rSum and detection AUROC of a training, and its metrics."""

    rsum: float
    auroc: float
    records: list[dict[str, Any]]


def train_on_scenes(folder: Path, method: str, *settings: str) -> Reached:
    """Train the quick matcher on a few drawn scenes, 40 % of the pairs mismatched."""
    data = folder / "scenes"
    if not data.exists():
        scenes.write(data, describe=grid_features, train=200, dev=40, test=100, seed=0)
    base = {"method": method, "data.path": str(data), "noise.rate": 0.4, "train.device": "cpu"}
    config = load(preset="demo", base=base, settings=["ledger.freeze_epochs=1", *settings])
    run = session.train(config, folder / method)
    _, _, scorer = open_scorer(run.path)
    pairs = inputs.audited_pairs(run, config)
    detection = find(pairs, run.load_ledger(), scorer.pair_similarities(pairs)).detection()
    assert detection is not None
    test = inputs.open_pairs(config).split("test")
    return Reached(evaluate([scorer], test).rsum, detection.auroc, run.metrics())


def assert_ends_alike_when_lost(tmp_path: Path, settings: Sequence[str], *, after: int) -> None:
    """A training on tiny data that is lost after so many steps and gone on with, in `run`, ends as one that was not."""
    data = write_folder(tmp_path / "data", train=12)
    more = ("matcher.similarity=4", "train.batch_size=12", "train.save_minutes=0")
    chosen = small_config(data, *settings, *more)
    expected = session.train(chosen, tmp_path / "reference").path
    with pytest.raises(Stop):
        session.train(chosen, tmp_path / "run", progress=StopAfter(after))
    session.train(chosen, tmp_path / "run", resume=True)
    assert_same_runs(tmp_path / "run", expected)
