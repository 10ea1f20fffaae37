"""Two networks that divide the pairs for each other: losses in eval mode, and nothing disturbed by measuring them.

At the end what holds for NCR and BiCro alike.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from peers import Small, assert_goes_on_from_any_step, clock, mean_triplet

from crcl.data.batches import Batches
from crcl.data.split import Split
from crcl.matchers import Ensemble
from crcl.methods.bicro import BiCro
from crcl.methods.epochs import CompletedSteps, division_seed
from crcl.methods.ncr import NCR
from crcl.methods.two_networks import TwoNetworks
from crcl.progress import Clock

Tiny = Callable[..., Split]
CLOCK = clock(1)
EPOCHS, WARMUP = 6, 2


def parts(pairs: Split, *, batch_size: int = 5) -> tuple[TwoNetworks, Batches]:
    torch.manual_seed(0)
    small = Small(pairs, batch_size=batch_size)
    networks = TwoNetworks(small.make_learner, small.pairs, margin=0.2)
    networks.reset()
    return networks, small.batches


def test_steps_done_are_taken_off_one_pass_after_the_other() -> None:
    completed = CompletedSteps(7)
    assert [completed.take(3), completed.take(3), completed.take(3), completed.take(3)] == [3, 3, 1, 0]


def test_the_two_begin_with_different_weights_and_score_as_an_ensemble(tiny: Tiny) -> None:
    networks, _ = parts(tiny())
    one, other = (learner.module.state_dict() for learner in networks.learners)
    assert not torch.equal(one["embed.weight"], other["embed.weight"])
    assert isinstance(networks.matcher, Ensemble)
    assert list(networks.matcher.members) == [learner.module for learner in networks.learners]


def test_losses_are_those_of_random_batches_in_eval_mode_without_augmentation(tiny: Tiny) -> None:
    networks, batches = parts(tiny(images=10))
    networks.train()
    logs = list(networks.measure_losses(batches, CLOCK, CompletedSteps(0)))
    assert [log.phase for log in logs] == ["division"] * 8
    assert networks.losses.dtype == np.float32
    orders = []
    for which, learner in enumerate(networks.learners):
        learner.module.eval()
        seen = list(batches.epoch(1, stream=2 + which, augment=False))
        orders.append(torch.cat([batch.pairs for batch in seen]).tolist())
        for batch in seen:
            with torch.no_grad():
                sims = learner.similarities(batch)
            np.testing.assert_allclose(networks.losses[which, batch.pairs], mean_triplet(sims), rtol=1e-4)
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20))
    assert orders[0] != orders[1]
    assert not np.allclose(networks.losses[0], networks.losses[1])


def test_measuring_leaves_train_mode_and_running_statistics_as_they_were(tiny: Tiny) -> None:
    networks, batches = parts(tiny())
    networks.train()
    frozen = networks.learners[0].module.get_submodule("image_mlp.1").eval()  # a part that was in eval mode stays there
    before = [
        {name: value.clone() for name, value in learner.module.state_dict().items()} for learner in networks.learners
    ]
    for _ in networks.measure_losses(batches, CLOCK, CompletedSteps(0)):
        for learner in networks.learners:
            assert all(part.training != (part is frozen) for part in learner.module.modules())
    for learner, values in zip(networks.learners, before, strict=True):
        assert all(torch.equal(value, values[name]) for name, value in learner.module.state_dict().items())


def test_predicting_leaves_train_mode_too_and_its_labels_can_enter_a_loss(tiny: Tiny) -> None:
    networks, batches = parts(tiny())
    networks.train()
    batch = next(batches.epoch(0))
    labels = networks.predict(0, batch)
    assert labels.shape == (5,)
    assert all(part.training for part in networks.learners[0].module.modules())
    (networks.learners[0].similarities(batch).diagonal() * labels).sum().backward()


def test_measuring_goes_on_where_it_was_interrupted(tiny: Tiny) -> None:
    networks, batches = parts(tiny(images=10))
    list(networks.measure_losses(batches, CLOCK, CompletedSteps(0)))
    expected = networks.losses.copy()
    for steps in range(9):
        networks.losses[:] = 0
        for _, _ in zip(range(steps), networks.measure_losses(batches, CLOCK, CompletedSteps(0)), strict=False):
            pass
        list(networks.measure_losses(batches, CLOCK, CompletedSteps(steps)))
        np.testing.assert_array_equal(networks.losses, expected)


def test_a_pair_left_over_keeps_its_loss(tiny: Tiny) -> None:
    networks, batches = parts(tiny(images=3), batch_size=5)
    networks.losses[:] = 9
    list(networks.measure_losses(batches, CLOCK, CompletedSteps(0)))
    assert ((networks.losses == 9).sum(1) == 1).all()
    networks.reset()
    assert not networks.losses.any()


def test_divisions_have_seeds_of_their_own(tiny: Tiny) -> None:
    _, batches = parts(tiny())
    seeds = {division_seed(batches, moment, which) for moment in (CLOCK, clock(2)) for which in (0, 1)}
    assert len(seeds) == 4
    assert division_seed(batches, CLOCK, 0) == division_seed(batches, Clock(0, 1, 9, 1, learning_rate=1.0), 0)


def test_a_state_of_other_pairs_is_refused(tiny: Tiny) -> None:
    networks, _ = parts(tiny(images=6))
    other, _ = parts(tiny(images=7))
    with pytest.raises(ValueError, match="the saved state has 12 pairs, the data 14"):
        other.load_state_dict(networks.state_dict())


@pytest.fixture
def small(tiny: Tiny) -> Small:
    torch.manual_seed(0)
    return Small(tiny(images=12))


each_kind = pytest.mark.parametrize("kind", [NCR, BiCro])
Kind = type[NCR] | type[BiCro]


def make(kind: Kind, small: Small) -> NCR | BiCro:
    return kind(small.make_learner, small.pairs, epochs=EPOCHS, warmup=WARMUP)


@each_kind
def test_networks_are_in_train_mode_after_every_step(kind: Kind, small: Small) -> None:
    method = make(kind, small)
    method.begin_piece(0)
    for epoch in range(EPOCHS):
        for _ in method.train_epoch(small.batches, clock(epoch)):
            assert all(part.training for learner in method.networks.learners for part in learner.module.modules())


@pytest.mark.slow
@each_kind
def test_saved_after_any_step_it_goes_on_to_the_same_end(kind: Kind, small: Small) -> None:
    counts = assert_goes_on_from_any_step(lambda: make(kind, small), small.batches, epochs=(0, WARMUP, EPOCHS - 1))
    assert counts[0] == 2 * len(small.batches)
    assert min(counts[1:]) > 2 * len(small.batches)  # two passes that measure, then training


@each_kind
def test_beliefs_are_numbers_from_0_to_1_and_evaluation_uses_both_networks(kind: Kind, small: Small) -> None:
    method = make(kind, small)
    method.begin_piece(0)
    for epoch in range(EPOCHS):
        list(method.train_epoch(small.batches, clock(epoch)))
        assert method.correspondence.shape == (small.pairs,)
        assert method.correspondence.dtype == np.float32
        assert ((method.correspondence >= 0) & (method.correspondence <= 1)).all()
    assert isinstance(method.matcher, Ensemble)
    method.begin_piece(1)
    np.testing.assert_array_equal(method.correspondence, np.ones(small.pairs))
