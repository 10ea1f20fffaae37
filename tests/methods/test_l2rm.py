"""L2RM: its losses against loops, what noisy pairs are rematched to, how the cost learns; resumed anywhere; scenes."""

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from peers import Small, assert_ends_alike_when_lost, assert_goes_on_from_any_step, clock, mean_triplet, train_on_scenes
from tiny import call
from torch import Tensor

from crcl import losses
from crcl.config import load
from crcl.data.batches import Batch
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.methods.base import Learner
from crcl.methods.division import beta_posterior, divide
from crcl.methods.l2rm import L2RM, Cost
from crcl.methods.transport import partial_plan

Tiny = Callable[..., Split]
WARMUP, SCALE, TAU = 1, 0.4, 0.1


def l2rm(small: Small, **options: object) -> L2RM:
    settings = {"slots": 5, "warmup": WARMUP, "scale": SCALE, "tau": TAU, "planted": 3, "cost_learning_rate": 0.01}
    return L2RM(small.make_learner(), small.pairs, **settings | options)  # type: ignore[arg-type]


@pytest.fixture
def small(tiny: Tiny) -> Small:
    torch.manual_seed(0)
    return Small(tiny(images=14))


def similarities(size: int = 5, seed: int = 0) -> Tensor:
    return torch.rand(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def probabilities(row: Tensor, tau: float) -> list[float]:
    total = sum(math.exp(x / tau) for x in row.tolist())
    return [math.exp(x / tau) / total for x in row.tolist()]


def test_reverse_cross_entropy_agrees_with_its_sum_signs() -> None:
    sims, expected = similarities(), []
    for i in range(5):
        value = 0.0
        for line in (sims[i], sims[:, i]):
            for j, p in enumerate(probabilities(line, TAU)):
                value -= math.log((1.0 if i == j else 0.0) + 1e-7) * p
        expected.append(value)
    np.testing.assert_allclose(losses.reverse_cross_entropy(sims, tau=TAU), expected, rtol=1e-6)
    sure = losses.reverse_cross_entropy(100 * torch.eye(5))
    np.testing.assert_allclose(sure, 0, atol=1e-5)


def test_symmetric_divergence_is_half_of_both_divergences_of_torch_in_both_directions() -> None:
    sims = similarities()
    rows, columns = similarities(seed=1).softmax(1), similarities(seed=2).softmax(0)
    i2t, t2i = losses.matching_log_probs(sims, TAU)
    expected = torch.zeros(5, dtype=torch.float64)
    for found, targets in ((i2t, rows), (t2i.T, columns.T)):
        one = torch.nn.functional.kl_div(found, targets, reduction="none").sum(1)
        other = torch.nn.functional.kl_div(targets.log(), found.exp(), reduction="none").sum(1)
        expected += (one + other) / 2
    np.testing.assert_allclose(losses.symmetric_divergence(i2t, t2i, rows, columns), expected, rtol=1e-4)


def test_symmetric_divergence_is_0_at_its_targets_and_finite_where_a_target_is_0() -> None:
    i2t, t2i = losses.matching_log_probs(similarities(), TAU)
    np.testing.assert_allclose(losses.symmetric_divergence(i2t, t2i, i2t.exp(), t2i.exp()), 0, atol=1e-6)
    nothing = torch.eye(5).roll(1, 0)
    found = losses.symmetric_divergence(i2t, t2i, nothing, nothing)
    assert found.isfinite().all()
    assert (found > 1).all()


def test_its_gradients_agree_with_finite_differences() -> None:
    rows, columns = similarities(seed=1).softmax(1), similarities(seed=2).softmax(0)

    def divergence(sims: Tensor) -> Tensor:
        return losses.symmetric_divergence(*losses.matching_log_probs(sims, TAU), rows, columns)

    sims = similarities().requires_grad_()
    assert torch.autograd.gradcheck(divergence, (sims,))
    assert torch.autograd.gradcheck(lambda x: losses.reverse_cross_entropy(x, tau=TAU), (sims,))


def test_the_cost_begins_as_what_is_missing_from_1_whatever_the_size_of_the_batch() -> None:
    cost = Cost(5)
    for size in (5, 3, 2):
        sims = similarities(size).float() * 2
        torch.testing.assert_close(cost(sims).detach(), (1 - sims).clamp(min=0))


def test_the_cost_learns_to_be_lower_for_planted_pairs_than_for_others(small: Small) -> None:
    method = l2rm(small, regularisation=0.3)
    method.begin_piece(0)
    sims, planted = torch.full((5, 5), 0.5), torch.tensor([1, 3])
    for _ in range(50):
        method._learn_cost(sims, planted)
    cost = method.cost(sims).detach()
    assert (cost[planted, planted] < cost[planted].mean(1)).all()
    assert not torch.equal(method.cost.weight, -torch.eye(5))


def test_targets_are_the_rows_and_columns_of_a_plan_that_may_not_use_the_diagonal(small: Small) -> None:
    method = l2rm(small, mass=0.3, regularisation=0.2)
    method.begin_piece(0)
    sims = similarities().float() + torch.eye(5)
    rows, columns = method.targets(sims)
    np.testing.assert_allclose(rows.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(columns.sum(0), 1, rtol=1e-5)
    assert not rows.diagonal().any()
    assert not columns.diagonal().any()
    plan = partial_plan((1 - sims).clamp(min=0), 0.3, regularisation=0.2, forbidden=torch.eye(5, dtype=torch.bool))
    np.testing.assert_allclose(rows, plan.exp() / plan.exp().sum(1, keepdim=True), rtol=1e-4)
    method.own = True
    assert (method.targets(sims)[0].diagonal() > 0.2).all()


def test_the_warm_up_learns_from_all_pairs_by_cross_entropy_in_both_senses(small: Small) -> None:
    method = l2rm(small)
    method.begin_piece(0)
    learner = deepcopy(method.learner)
    batch = next(iter(small.batches.epoch(0)))
    log = next(iter(method.train_epoch(small.batches, clock(0))))
    sims = learner.similarities(batch)
    expected = (losses.info_nce(sims, tau=TAU) + losses.reverse_cross_entropy(sims, tau=TAU)).mean() / 2
    assert log.loss == pytest.approx(expected.item(), rel=1e-5)
    assert (method.correspondence == 1).all()


def step_of(method: L2RM, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Learner, Batch]]:
    """What the network was before each batch that it compared from now on, and the batch."""
    seen: list[tuple[Learner, Batch]] = []

    def similarities(batch: Batch) -> Tensor:
        seen.append((deepcopy(method.learner), batch))
        return Learner.similarities(method.learner, batch)

    monkeypatch.setattr(method.learner, "similarities", similarities)
    return seen


def test_an_epoch_divides_in_eval_mode_and_adds_both_losses_in_one_step(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = l2rm(small)
    method.begin_piece(0)
    list(method.train_epoch(small.batches, clock(0)))
    seen = step_of(method, monkeypatch)
    steps = method.train_epoch(small.batches, clock(1))
    for _ in range(len(small.batches)):
        assert next(steps).phase == "division"
        learner, batch = seen[-1]
        assert not learner.module.training
        with torch.no_grad():
            sims = Learner.similarities(learner, batch)
        np.testing.assert_allclose(method.losses[batch.pairs], mean_triplet(sims), rtol=1e-4)
    seen.clear()
    cost = deepcopy(method.cost)
    log = next(steps)
    np.testing.assert_allclose(method.correspondence, beta_posterior(method.losses), rtol=1e-5)
    clean = divide(method.correspondence)
    assert 0 < clean.sum() < len(clean)
    (learner, batch), (_, joined) = seen
    size = log.pairs - len(batch)
    planted = joined.pairs[size:]
    assert learner.module.training
    assert clean[batch.pairs].all()
    assert not clean[joined.pairs[:size]].any()
    assert 1 <= len(planted) <= 3
    assert planted.tolist() == batch.pairs[: len(planted)].tolist()
    assert not torch.equal(cost.weight, method.cost.weight)
    hinges = losses.triplet(Learner.similarities(learner, batch))
    sims = Learner.similarities(learner, joined)[:size, :size].detach()
    rows, columns = method.targets(sims)  # the cost has learnt before it is asked
    rematched = losses.symmetric_divergence(*losses.matching_log_probs(sims, TAU), rows, columns)
    assert log.loss == pytest.approx((hinges.mean() + SCALE * rematched.mean()).item(), rel=1e-4)


def test_where_no_pair_is_noisy_enough_for_a_batch_the_clean_ones_are_learnt_from_alone(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = np.linspace(0.6, 1, small.pairs)
    posterior[3] = 0.1
    monkeypatch.setattr("crcl.methods.l2rm.beta_posterior", lambda found: posterior)
    method = l2rm(small)
    method.begin_piece(0)
    logs = [log for log in method.train_epoch(small.batches, clock(1)) if log.phase == "train"]
    assert sum(log.pairs for log in logs) == small.pairs - 1
    assert torch.equal(method.cost.weight, -torch.eye(5))


def test_it_is_refused_where_its_cost_says_nothing() -> None:
    with pytest.raises(
        InputError,
        match=r"l2rm does not go with matcher scan: .* goes with vse, bow, saf, sgr, imram, vsrn, mvvse, hrem, dual",
    ):
        load(settings=["method=l2rm", "matcher.name=scan"])
    with pytest.raises(InputError, match="no pair would ever be called noisy"):
        load(settings=["method=l2rm", "train.pieces=[3]", "division.warmup=3"])


@pytest.mark.slow
def test_saved_after_any_step_it_goes_on_to_the_same_end(small: Small) -> None:
    counts = assert_goes_on_from_any_step(lambda: l2rm(small), small.batches, epochs=range(3))
    assert counts[0] == len(small.batches)
    assert min(counts[1:]) > len(small.batches)


def test_a_state_of_other_pairs_is_refused(tiny: Tiny, small: Small) -> None:
    method, other = l2rm(small), l2rm(Small(tiny(images=7)))
    for one in (method, other):
        one.begin_piece(0)
    with pytest.raises(ValueError, match="has 14 pairs, the data 28"):
        method.load_state_dict(other.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("matcher", ["vse", "sgr"])
def test_lost_on_the_way_a_training_with_dropout_ends_bit_identical_and_can_be_audited(
    tmp_path: Path, matcher: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["method=l2rm", f"matcher.name={matcher}", "train.pieces=[3]"]
    assert_ends_alike_when_lost(tmp_path, settings, after=6)
    answer = call(capsys, monkeypatch, "audit", str(tmp_path / "run"), "--threshold", "0.5")
    assert (answer.code, "auroc" in answer.out) == (0, True), answer.err


@pytest.mark.slow
def test_on_noisy_scenes_it_beats_plain_training_with_hardest_triplets_after_its_warm_up(tmp_path: Path) -> None:
    settings = ["matcher.embedding=128", "train.lr=0.002", "train.pieces=[14]", "division.warmup=3"]
    plain = train_on_scenes(tmp_path, "triplet-hardest", *settings)
    robust = train_on_scenes(tmp_path, "l2rm", *settings)
    assert max(record["epoch"] for record in robust.records if record["best"]) >= 3  # not a matcher of the warm-up
    assert robust.rsum > plain.rsum + 10
    assert robust.auroc > 0.75
