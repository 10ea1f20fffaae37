"""NCR: what is learnt from, with which labels, in which epochs; on the scenes."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from peers import Small, clock, mean_triplet, recorded_steps, train_on_scenes

from crcl import losses
from crcl.data.batches import Batch
from crcl.data.split import Split
from crcl.methods.base import Learner
from crcl.methods.division import divide, gaussian_posterior
from crcl.methods.epochs import division_seed
from crcl.methods.ncr import NCR

Tiny = Callable[..., Split]
EPOCHS, WARMUP = 6, 2


def ncr(small: Small) -> NCR:
    return NCR(small.make_learner, small.pairs, epochs=EPOCHS, warmup=WARMUP)


@pytest.fixture
def small(tiny: Tiny) -> Small:
    torch.manual_seed(0)
    return Small(tiny(images=12))


def predicted(learner: Learner, batch: Batch) -> np.ndarray:
    """Soft labels of a batch, from the formula."""
    learner.module.eval()
    with torch.no_grad():
        sims = learner.similarities(batch)
    kept = np.clip(0.2 - np.array(mean_triplet(sims)) / 2, 0, 0.2)
    return np.clip(kept / np.sort(kept)[-(len(kept) // 10 + 1) :].mean(), 0, 1)


def test_the_warm_up_trains_both_networks_on_all_pairs_with_the_mean_triplet_loss(small: Small) -> None:
    method = ncr(small)
    method.begin_piece(0)
    for which, expected in enumerate(deepcopy(method.networks.learners)):
        expected.module.train()
        for batch in small.batches.epoch(0, stream=which):
            expected.optimizer.step(losses.triplet(expected.similarities(batch), negatives="mean"), batch, 0.01)
        if which == 0:
            logs = list(method.train_epoch(small.batches, clock(0)))
            assert sum(log.pairs for log in logs) == 2 * small.pairs
            assert {log.phase for log in logs} == {"train"}
        trained = method.networks.learners[which].module.state_dict()
        assert all(torch.equal(value, trained[name]) for name, value in expected.module.state_dict().items())
    np.testing.assert_array_equal(method.correspondence, np.ones(small.pairs))


def test_each_network_learns_from_the_other_ones_division_with_labels_made_before_either_step(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = ncr(small)
    method.begin_piece(0)
    for epoch in range(EPOCHS - 1):
        list(method.train_epoch(small.batches, clock(epoch)))
    steps = recorded_steps(method.networks, monkeypatch)
    moment = clock(EPOCHS - 1)
    list(method.train_epoch(small.batches, moment))
    posterior = [
        gaussian_posterior(method.networks.losses[which], seed=division_seed(small.batches, moment, which))
        for which in (0, 1)
    ]
    np.testing.assert_allclose(method.correspondence, np.mean(posterior, 0), rtol=1e-5)
    assert [step.which for step in steps] == sorted(step.which for step in steps)
    for which in (0, 1):
        clean = divide(posterior[1 - which])
        assert 0 < clean.sum() < len(clean)
        mine = [step for step in steps if step.which == which]
        assert len(mine) == 2 * small.batches.count(int(clean.sum()))
        seen = torch.cat([step.batch.pairs for step in mine[::2]]).numpy()
        assert set(seen) <= set(np.flatnonzero(clean))
        assert len(set(seen)) == len(seen) >= clean.sum() - 1
        for one, other in zip(mine[::2], mine[1::2], strict=True):
            sure = posterior[1 - which][one.batch.pairs]
            expected = sure + (1 - sure) * predicted(one.before[which], one.batch)
            np.testing.assert_allclose(one.labels, expected, rtol=1e-3, atol=1e-5)
            assert not clean[other.batch.pairs.numpy()].any()
            expected = (predicted(one.before[0], other.batch) + predicted(one.before[1], other.batch)) / 2
            np.testing.assert_allclose(other.labels, expected, rtol=1e-3, atol=1e-5)


def test_noisy_pairs_are_learnt_from_in_the_second_half_of_the_epochs_after_the_warm_up(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = ncr(small)
    method.begin_piece(0)
    steps = recorded_steps(method.networks, monkeypatch)
    learnt = []
    for epoch in range(EPOCHS):
        steps.clear()
        logs = [log for log in method.train_epoch(small.batches, clock(epoch)) if log.phase == "train"]
        noisy = [s for s in steps if not divide(method.posterior[1 - s.which])[s.batch.pairs.numpy()].any()]
        learnt.append(bool(noisy))
        if steps:
            assert sum(log.pairs for log in logs) == sum(len(step.batch) for step in steps)
    assert learnt == [False, False, False, False, True, True]


def test_a_step_is_one_on_the_hardest_triplets_with_the_anchors_own_exponential_margin(small: Small) -> None:
    method = ncr(small)
    method.begin_piece(0)
    method.networks.train()
    expected = deepcopy(method.networks.learners[1])
    batch = next(small.batches.epoch(0))
    labels = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    value = method.networks.optimizer_step(1, batch, labels, clock(3))
    sims = expected.similarities(batch)
    per_pair = []
    for i in range(5):
        margin = 0.2 * (10 ** labels[i].item() - 1) / 9
        others = [j for j in range(5) if j != i]
        rows = max(max(margin + (sims[i, j] - sims[i, i]).item(), 0) for j in others)
        per_pair.append(rows + max(max(margin + (sims[j, i] - sims[i, i]).item(), 0) for j in others))
    assert value == pytest.approx(np.mean(per_pair), rel=1e-4)
    assert not torch.equal(sims, method.networks.learners[1].similarities(batch))  # it has moved


def test_where_no_pair_is_noisy_enough_for_a_batch_the_clean_ones_are_learnt_from_alone(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crcl.methods.ncr.gaussian_posterior", lambda values, seed: np.ones(len(values)))
    method = ncr(small)
    method.begin_piece(0)
    logs = [log for log in method.train_epoch(small.batches, clock(EPOCHS - 1)) if log.phase == "train"]
    assert sum(log.pairs for log in logs) == 2 * (small.pairs - 1)  # one each is noisy, and no batch


@pytest.mark.slow
def test_on_noisy_scenes_it_beats_plain_training_with_hardest_triplets(tmp_path: Path) -> None:
    settings = ["train.pieces=[1,12]", "division.warmup=4", "train.batch_size=64"]
    plain = train_on_scenes(tmp_path, "triplet-hardest", *settings)
    robust = train_on_scenes(tmp_path, "ncr", *settings)
    assert robust.rsum > plain.rsum + 20
    assert robust.auroc > 0.7
    assert any(record["best"] for record in robust.records[4:])  # not by its warm-up alone
