"""MSCN: the virtual step and its second derivatives, the meta data, the division, resuming, and what it reaches."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peers import train_on_scenes
from tiny import Stop, StopAfter, assert_same_runs, leaves, small_config, write_folder
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from crcl.config import Config, load
from crcl.data.batches import Batch, Batches, Trusted
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError
from crcl.losses import soft_margin, triplet
from crcl.matchers import MATCHERS, Ensemble
from crcl.matchers.base import Encoded
from crcl.matchers.encoders import MetaNetwork
from crcl.matchers.kernels.recurrent import twice_differentiable
from crcl.methods.base import Learner
from crcl.methods.mscn import MSCN, MetaData, likely_matched, meta_losses, meta_network, sharpen
from crcl.progress import Clock, StepLog
from crcl.training import build, inputs, session

Tiny = Callable[..., Split]
Recorded = Callable[[str], dict[str, np.ndarray]]
RATE = 0.01


class Parts:
    """Small pairs with their batches, trusted pairs of another split, and makers of matchers and methods."""

    def __init__(self, tiny: Tiny, *, held_out: tuple[int, ...] = ()) -> None:
        training, clean = tiny(images=7), tiny(images=4, seed=1)
        words = Vocabulary.build([*training.captions, *clean.captions], minimum=1)
        options: dict[str, Any] = {"vocabulary": len(words), "mask_token": words.mask, "batch_size": 4}
        trusted = Batches(clean, words.encode(clean.captions), **options)
        self.trusted = Trusted(trusted, np.array([0, 2, 3, 5, 7]), np.array(held_out, dtype=np.int64))
        self.batches = Batches(training, words.encode(training.captions), trusted=self.trusted, **options)
        self.sizes = {"features": training.features.shape[2], "vocabulary": len(words), "embedding": 8, "word": 6}

    def make(self, name: str = "bow", meta: int = 5, **options: Any) -> nn.Module:
        local = {"regions": 4, "similarity": 6, "dropout": 0.0} if name in ("saf", "sgr") else {}
        return MATCHERS[name].kind(**self.sizes, **local, **options, meta=meta)

    def method(self, **options: Any) -> MSCN:
        method = MSCN((Learner(self.make), Learner(self.make)), len(self.batches.pairs), **{"warmup": 1, **options})
        method.begin_piece(0)
        return method

    def epoch(self, method: MSCN, epoch: int, *, start: int = 0) -> Iterator[StepLog]:
        return method.train_epoch(self.batches, Clock(0, epoch, start, epoch, learning_rate=RATE))


@pytest.fixture
def parts(tiny: Tiny) -> Parts:
    torch.manual_seed(0)
    return Parts(tiny)


def weights(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def of_network(module: nn.Module) -> Tensor:
    """All weights but the meta-network's."""
    meta = {id(parameter) for parameter in meta_network(module).parameters()}
    return torch.cat([weight.detach().flatten() for weight in module.parameters() if id(weight) not in meta])


# Losses


def test_both_losses_are_the_recorded_ones(recorded: Recorded) -> None:
    numbers = recorded("peer_losses")
    labels = torch.from_numpy(numbers["labels"])
    similarity = labels.sqrt() / (labels.sqrt() + (1 - labels).sqrt())  # what is sharpened to these labels
    for name, margin, negatives in (
        ("triplet_mean_sum", 0.2, "mean"),  # the warm-up
        ("soft_margin_linear_hardest_sum", soft_margin(sharpen(similarity), 0.2, curve="linear"), "hardest"),
    ):
        sims = torch.from_numpy(numbers["similarities"]).requires_grad_()
        loss = triplet(sims, margin, negatives=negatives).sum()
        loss.backward()
        torch.testing.assert_close(loss.detach(), torch.tensor(numbers[name]), rtol=1e-4, atol=0)
        torch.testing.assert_close(sims.grad, torch.from_numpy(numbers[f"{name}/gradient"]), rtol=1e-4, atol=1e-6)


def test_each_anchor_has_the_margin_of_its_own_sharpened_similarity(parts: Parts) -> None:
    sims = torch.rand(5, 5)
    found = parts.method(margin=0.3)._losses(sims.requires_grad_())
    for i in range(5):
        p = sims[i, i].item()
        margin = 0.3 * p**2 / (p**2 + (1 - p) ** 2)
        rows = max(max(margin + sims[i, j].item() - p, 0) for j in range(5) if j != i)
        columns = max(max(margin + sims[j, i].item() - p, 0) for j in range(5) if j != i)
        assert found[i].item() == pytest.approx(rows + columns, abs=1e-6)
    [slope] = torch.autograd.grad(found.sum(), sims)
    assert torch.equal(slope, slope.round())  # hinges alone: no slope of the margins


def test_sharpening_treats_matches_and_mismatches_alike_and_keeps_its_fixed_points() -> None:
    similarity = torch.linspace(0, 1, 21)
    torch.testing.assert_close(sharpen(similarity) + sharpen(1 - similarity), torch.ones(21))
    torch.testing.assert_close(sharpen(similarity)[[0, 10, 20]], torch.tensor([0, 0.5, 1]))
    assert (sharpen(similarity)[11:20] > similarity[11:20]).all()


# The virtual step


class Toy(nn.Module):
    """A matcher in double precision, for exact differences."""

    def __init__(self, features: int, vocabulary: int) -> None:
        super().__init__()
        self.image = nn.Linear(features, 4)
        self.embed = nn.Embedding(vocabulary, 4)
        self.meta = MetaNetwork(4, 6)

    def encode_images(self, regions: Tensor, mask: Tensor) -> Encoded:
        return Encoded(self.image(regions.mean(1)).tanh())

    def encode_texts(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(self.embed(tokens).mean(1).tanh())

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.meta(images.features[:, None] * texts.features).squeeze(2).sigmoid()


def batches_of(parts: Parts) -> tuple[Batch, Batch, Tensor]:
    batch = next(iter(parts.batches.epoch(0, augment=False)))
    return batch, *MetaData(parts.batches, 0, 0)[0]


def fixed_margins(sims: Tensor) -> Tensor:
    """The loss of a step with margins that do not hang on the similarities: there is no slope through them."""
    return triplet(sims, torch.linspace(0.1, 0.4, len(sims)).to(sims), negatives="sum")


def after_a_virtual_step(module: nn.Module, batches: tuple[Batch, Batch, Tensor], rate: float) -> Tensor:
    batch, examples, matched = batches
    return meta_losses(module, batch, examples, matched, loss=fixed_margins, rate=rate).mean()


def slopes_in_theta(loss: Tensor, module: nn.Module) -> Tensor:
    return parameters_to_vector(torch.autograd.grad(loss, list(meta_network(module).parameters())))


def short_sighted(module: nn.Module, batches: tuple[Batch, Batch, Tensor], rate: float) -> Tensor:
    """Slopes as if the step had not hung on Θ, from a copy of the module that has taken it."""
    batch, examples, matched = batches
    taken = deepcopy(module)
    meta = {id(parameter) for parameter in meta_network(taken).parameters()}
    moving = [weight for weight in taken.parameters() if id(weight) not in meta]
    slopes = torch.autograd.grad(fixed_margins(similarities(taken, batch)).sum(), moving, materialize_grads=True)
    with torch.no_grad():
        for weight, slope in zip(moving, slopes, strict=True):
            weight -= rate * slope
    loss = nn.functional.binary_cross_entropy(similarities(taken, examples).diagonal(), matched)
    return slopes_in_theta(loss, taken)


def similarities(module: Any, batch: Batch) -> Tensor:
    images = module.encode_images(batch.regions, batch.region_mask)
    return module.similarity(images, module.encode_texts(batch.tokens, batch.lengths))


def finite_difference(module: nn.Module, along: Tensor, value: Callable[[], Tensor]) -> float:
    """Half of what changes when Θ goes this far in both directions."""
    theta = parameters_to_vector(meta_network(module).parameters()).detach()
    found = []
    for moved in (theta + along, theta - along):
        vector_to_parameters(moved, meta_network(module).parameters())
        found.append(value().item())
    vector_to_parameters(theta, meta_network(module).parameters())
    return (found[0] - found[1]) / 2


def test_the_meta_gradient_is_that_of_finite_differences(parts: Parts) -> None:
    batch, examples, matched = batches_of(parts)
    doubles = [Batch(**{**vars(each), "regions": each.regions.double()}) for each in (batch, examples)]
    batches, rate = (doubles[0], doubles[1], matched.double()), 10.0
    module = Toy(parts.sizes["features"], parts.sizes["vocabulary"]).double()
    found = slopes_in_theta(after_a_virtual_step(module, batches, rate), module)
    expected = [
        finite_difference(module, along, lambda: after_a_virtual_step(module, batches, rate)) / 1e-6
        for along in 1e-6 * torch.eye(len(found), dtype=torch.float64)
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-8)
    assert (found - short_sighted(module, batches, rate)).norm() > 0.05 * found.norm()  # the step does matter


@pytest.mark.parametrize(("name", "rate"), [("bow", 0.5), ("vse", 0.2), ("saf", 2.0), ("sgr", 0.5)])
def test_every_matcher_has_the_second_derivatives_of_its_virtual_step(parts: Parts, name: str, rate: float) -> None:
    batches, module = batches_of(parts), parts.make(name)
    before = deepcopy(module.state_dict())
    found = slopes_in_theta(after_a_virtual_step(module, batches, rate), module)
    second = found - short_sighted(module, batches, rate)
    along = second / second.norm()  # where the short-sighted slope is off by as much as can be
    expected = finite_difference(module, 3e-3 * along, lambda: after_a_virtual_step(module, batches, rate)) / 3e-3
    assert float(found @ along) == pytest.approx(expected, abs=0.1 * float(second.norm()))
    assert dict(leaves(module.state_dict())) == dict(leaves(before))  # neither weights nor statistics have moved


@pytest.mark.parametrize("name", ["saf", "sgr"])
def test_too_little_memory_computes_twice_with_the_virtual_weights(parts: Parts, name: str) -> None:
    batches, roomy, tight = batches_of(parts), parts.make(name), parts.make(name, memory=1e-9)
    tight.load_state_dict(roomy.state_dict())
    expected, found = (slopes_in_theta(after_a_virtual_step(each, batches, 0.5), each) for each in (roomy, tight))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    assert (found - short_sighted(tight, batches, 0.5)).norm() > 0.01 * found.norm()


@pytest.mark.parametrize("name", ["vse", "sgr"])
def test_quick_operations_refuse_a_second_derivative_and_plain_ones_say_the_same(parts: Parts, name: str) -> None:
    batch, module = batches_of(parts)[0], parts.make(name)
    sims = similarities(module, batch)
    [slope] = torch.autograd.grad(sims.square().sum(), module.txt.embed.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()
    with twice_differentiable():
        torch.testing.assert_close(similarities(module, batch), sims, rtol=1e-5, atol=1e-6)


def test_scores_of_products_are_those_of_the_products_formed(parts: Parts) -> None:
    network = MetaNetwork(8, 5)
    images, texts = torch.randn(3, 8), torch.randn(4, 8)
    expected = network(images[:, None] * texts * 8**0.5).squeeze(2)
    torch.testing.assert_close(network.score_products(images, texts), expected)


# Meta data


def test_the_meta_data_are_trusted_pairs_and_as_many_captions_with_images_they_are_not_shown_with(parts: Parts) -> None:
    data = MetaData(parts.batches, 3, 0)
    assert (len(data), data.half) == (3, 2)
    for number in range(5):  # beyond a cycle
        batch, matched = data[number]
        assert matched.tolist() == [1, 1, 0, 0]
        rows = data.rows[np.arange(2 * number, 2 * number + 2) % 5]
        clean = parts.trusted.batches.pairs
        np.testing.assert_array_equal(batch.regions[:2], clean.features[clean.image_index[rows]])
        shown = parts.batches.pairs.image_index[batch.pairs[2:].numpy()]
        features = parts.batches.pairs.features
        for regions, right in zip(batch.regions[2:].numpy(), shown, strict=True):
            [image] = np.flatnonzero((features == regions).all(axis=(1, 2)))
            assert image != right
    assert sorted(data.rows) == [0, 2, 3, 5, 7]
    assert len(data.captions) == 5


def test_the_meta_data_come_from_seed_epoch_and_network_alone(parts: Parts) -> None:
    def drawn(epoch: int, network: int) -> list[int]:
        data = MetaData(parts.batches, epoch, network)
        return [*data.rows, *data.captions, *data.images]

    assert drawn(2, 1) == drawn(2, 1)
    assert len({tuple(drawn(epoch, network)) for epoch in range(3) for network in range(2)}) == 6


def test_without_trusted_pairs_there_is_no_meta_data(parts: Parts) -> None:
    parts.batches.trusted = None
    with pytest.raises(ValueError, match="known to match"):
        list(parts.epoch(parts.method(), 1))


# Division


def test_pairs_of_the_upper_beta_are_kept() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.beta(2, 6, 400), rng.beta(8, 2, 600)
    examples = np.concatenate([rng.beta(2, 6, 40), rng.beta(8, 2, 40)])
    kept = likely_matched(np.concatenate([low, high]), examples, np.repeat([0.0, 1.0], 40))
    assert kept[:400].mean() < 0.1
    assert kept[400:].mean() > 0.9


def test_a_wide_lower_beta_does_not_win_the_best_pairs() -> None:
    rng = np.random.default_rng(0)
    values = np.sort(np.concatenate([rng.beta(2, 2, 400), rng.beta(40, 25, 600)]))
    examples = np.concatenate([rng.beta(2, 2, 40), rng.beta(40, 25, 40)])
    kept = likely_matched(values, examples, np.repeat([0.0, 1.0], 40))
    np.testing.assert_array_equal(kept, values > 0.512)
    assert kept.sum() == 779  # the plain posterior loses the 99 best of these


@pytest.mark.parametrize("value", [0.0, 0.0005, 0.5, 1.0])
def test_similarities_that_do_not_differ_keep_all_pairs(value: float) -> None:
    assert likely_matched(np.full(9, value), np.full(4, value), np.array([0.0, 0, 1, 1])).tolist() == [True] * 9
    assert (
        likely_matched(np.full(9, value), np.array([0.2, 0.3, 0.8, 0.9]), np.array([0.0, 0, 1, 1])).tolist()
        == [True] * 9
    )


@pytest.mark.parametrize(("pairs", "few"), [(90, 2), (350, 4)])
def test_where_all_pairs_look_mismatched_the_most_similar_are_kept(pairs: int, few: int) -> None:
    rng = np.random.default_rng(0)
    values, mismatched = rng.beta(2, 30, pairs), rng.beta(2, 30, 40)
    kept = likely_matched(values, np.r_[mismatched, rng.normal(0.9, 0.01, 40)], np.repeat([0.0, 1.0], 40))
    assert set(np.flatnonzero(kept)) == set(np.argsort(values)[-few:])


def test_an_epoch_in_which_nobody_would_be_kept_still_trains_both_networks_but_not_on_held_out_pairs(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    parts = Parts(tiny, held_out=(1, 4))
    method = parts.method()
    list(parts.epoch(method, 0))
    monkeypatch.setattr("crcl.methods.mscn.lower_posterior", lambda mixture, values: np.ones(len(values)))
    phases = [log.phase for log in parts.epoch(method, 1)]
    assert phases.count("train") == 2
    assert method.kept.sum(1).tolist() == [2, 2]
    assert not method.kept[:, [1, 4]].any()


# Training


def test_an_epoch_judges_by_one_network_what_the_other_learns_from(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    parts = Parts(tiny, held_out=(1, 4))
    method = parts.method()
    learnt: dict[int, set[int]] = {0: set(), 1: set()}
    for network, learner in enumerate(method.learners):
        step = learner.optimizer.step

        def record(losses: Tensor, batch: Batch, rate: float, network: int = network, step: Any = step) -> float:
            learnt[network] |= set(batch.pairs.tolist())
            return float(step(losses, batch, rate))

        monkeypatch.setattr(learner.optimizer, "step", record)
    assert [log.phase for log in parts.epoch(method, 0)] == ["train"] * 6
    assert learnt[0] | {1, 4} == learnt[1] | {1, 4} == set(range(14))
    assert not (learnt[0] | learnt[1]) & {1, 4}
    assert (method.correspondence == 1).all()
    monkeypatch.setattr(method, "_reset_optimizers", lambda: None)
    monkeypatch.setattr("crcl.methods.mscn.likely_matched", lambda sims, examples, matched: sims > np.median(sims))
    learnt[0].clear(), learnt[1].clear()
    phases = [log.phase for log in parts.epoch(method, 1)]
    trains = [parts.batches.count(int(method.kept[judge].sum())) for judge in (0, 1)]
    division = ["division"] * 4
    assert phases == [*division, *["train"] * trains[0], *division, *["train"] * trains[1]]
    for judge, pupil in ((0, 1), (1, 0)):
        kept = set(np.flatnonzero(method.kept[judge]).tolist())
        assert learnt[pupil] <= kept
        assert not kept & {1, 4}
        assert len(kept - learnt[pupil]) <= 1  # a last single pair makes no batch
    np.testing.assert_allclose(method.correspondence, sharpen(method.similarity).mean(0))


def test_after_the_warm_up_a_meta_network_moves_by_its_own_step_alone(parts: Parts) -> None:
    for rate in (1e-30, 1e-2):
        method = parts.method(meta_learning_rate=rate)
        list(parts.epoch(method, 0))
        modules = [learner.module for learner in method.learners]
        theta = [weights(meta_network(module)) for module in modules]
        other = [of_network(module) for module in modules]
        steps = list(parts.epoch(method, 1))
        assert all(np.isfinite(log.loss) for log in steps if log.phase == "train")
        for module, before, network in zip(modules, theta, other, strict=True):
            assert torch.equal(weights(meta_network(module)), before) == (rate < 1e-3)
            assert not torch.equal(of_network(module), network)


def test_the_two_networks_are_judged_by_their_mean(parts: Parts) -> None:
    method, batch = parts.method(), batches_of(parts)[0]
    assert isinstance(method.matcher, Ensemble)
    expected = sum(similarities(learner.module.eval(), batch) for learner in method.learners) / 2
    torch.testing.assert_close(similarities(method.matcher, batch), expected)


def test_an_epoch_goes_on_at_any_step_as_if_it_had_not_been_left(parts: Parts) -> None:
    def method_from(state: dict[str, Any]) -> MSCN:
        method = parts.method(meta_learning_rate=0.01)
        method.load_state_dict(deepcopy(state))
        return method

    begun = parts.method(meta_learning_rate=0.01)
    for epoch in (0, 1, 2):  # the warm-up, the first division, another one
        whole = method_from(begun.state_dict())
        saved = [deepcopy(whole.state_dict()) for _ in parts.epoch(whole, epoch)]
        for step, state in list(enumerate(saved, start=1))[:: 1 if epoch == 1 else 3]:
            resumed = method_from(state)
            list(parts.epoch(resumed, epoch, start=step))
            assert dict(leaves(resumed.state_dict())) == dict(leaves(whole.state_dict())), (epoch, step)
        begun = whole


def test_a_state_of_other_pairs_is_refused(parts: Parts) -> None:
    state = parts.method().state_dict()
    other = MSCN((Learner(parts.make), Learner(parts.make)), 12)
    with pytest.raises(ValueError, match="has 14 pairs, the data 12"):
        other.load_state_dict(state)


# From a config


@pytest.mark.slow
def test_killed_in_either_pass_a_run_with_dropout_ends_bit_identical(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=8, held_out=4)
    config = small_config(data, "method=mscn", "matcher.name=sgr", "matcher.similarity=4", "train.save_minutes=0")
    expected = session.train(config, tmp_path / "reference").path
    for steps in (4, 6):  # what is saved then: just after the first network has judged, and after the second one
        run = tmp_path / str(steps)
        with pytest.raises(Stop):
            session.train(config, run, progress=StopAfter(steps))
        session.train(config, run, resume=True)
        assert_same_runs(run, expected)


def caught_batches(config: Config, run: Path, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """What a training would be given."""
    caught: list[Batches] = []
    monkeypatch.setattr(session, "fit", lambda method, batches, *rest, **options: caught.append(batches))
    session.train(config, run, resume=True)
    return caught[0]


def test_trusted_pairs_are_a_share_of_dev_and_training_sees_no_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_folder(tmp_path / "data")
    config = small_config(data, "method=mscn", "mscn.trusted_share=0.3")
    batches = caught_batches(config, tmp_path / "run", monkeypatch)
    assert batches.trusted is not None
    trusted = batches.trusted
    dev = inputs.open_pairs(small_config(data)).split("dev")
    assert trusted.batches.pairs.captions == dev.captions
    assert trusted.batches.pairs.truth is batches.pairs.truth is None
    assert len(trusted.rows) == 5  # of 16
    assert len(trusted.held_out) == 0
    assert caught_batches(small_config(data, "method=infonce"), tmp_path / "other", monkeypatch).trusted is None


def test_trusted_rows_are_pairs_before_the_noise_and_their_images_are_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, rows = write_folder(tmp_path / "data"), tmp_path / "rows.npy"
    np.save(rows, np.array([9, 4, 30, 4]))
    config = small_config(data, "method=mscn", f"mscn.trusted={rows}", "train.pieces=[2]", "noise.rate=0.9")
    run = session.train(config, tmp_path / "run")
    rows.unlink()
    session.train(config, tmp_path / "run", resume=True)  # the run keeps them
    batches = caught_batches(config, run.path, monkeypatch)
    assert batches.trusted is not None
    trusted = batches.trusted
    assert trusted.rows.tolist() == [4, 9, 30]
    clean = inputs.open_pairs(config).split("train").image_index
    np.testing.assert_array_equal(trusted.batches.pairs.image_index, clean)
    assert not np.array_equal(batches.pairs.image_index, clean)
    shown = np.isin(batches.pairs.image_index, clean[[4, 9, 30]])
    np.testing.assert_array_equal(trusted.held_out, np.union1d(np.flatnonzero(shown), [4, 9, 30]))


def test_the_decay_of_the_learning_rate_does_not_count_the_warm_up(tmp_path: Path) -> None:
    settings = ["train.pieces=[1,8]", "mscn.warmup=3", "train.lr=1", "train.lr_update=2", "train.lr_decay=0.5"]
    schedule = build.schedule(small_config(tmp_path, "method=mscn", *settings))
    assert [schedule.clock(0, epoch, 0).learning_rate for epoch in range(8)] == [1, 1, 1, 1, 1, 0.5, 0.5, 0.25]


def test_it_starts_from_two_networks_with_meta_networks_alone(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    first, plain_twins = (
        session.train(small_config(data, f"method={method}", "train.pieces=[2]", "mscn.hidden=5"), tmp_path / method)
        for method in ("mscn", "ncr")
    )
    start = {"data.path": str(data), "noise.rate": 0.4, "train.start": str(first.path)}
    settings = ["train.pieces=[2]", "mscn.warmup=1", "division.warmup=1", "ledger.freeze_epochs=1"]
    settings += ["train.lr=1e-30", "train.weight_decay=0"]
    config = session.new_config(base=start | {"method": "mscn"}, settings=[*settings, "mscn.meta_lr=1e-30"])
    assert config.mscn.hidden == 5
    began, weights = session.train(config, tmp_path / "new").load_matcher(), first.load_matcher()
    for name, weight in weights.items():
        if "running" not in name and "tracked" not in name:  # what is counted moves, what is learnt cannot
            torch.testing.assert_close(began[name], weight, atol=0, rtol=0)
    for method, origin, hidden, message in (
        ("mscn", first, 6, "mscn.hidden: the run has 5, now given 6"),
        ("ncr", first, 5, "have a meta-network, those of ncr have none; methods that can start from the run: mscn"),
        ("mscn", plain_twins, 5, "have no meta-network, those of mscn have one; .* the run: ncr, bicro"),
        ("crcl", first, 5, "has 2 networks, crcl trains 1; methods that train 2: mscn"),
    ):
        asked = start | {"method": method, "train.start": str(origin.path), "mscn.hidden": hidden}
        with pytest.raises(InputError, match=message):
            session.train(session.new_config(base=asked, settings=settings), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([0, 48]), "rows 0 to 48, but the training pairs are 0 to 47"),
        (np.array([-1, 3]), "rows -1 to 3, but the training pairs are 0 to 47"),
        (np.array([0.5]), "expected a one-dimensional array of row numbers"),
        (np.array([[1]]), "expected a one-dimensional array of row numbers"),
        (np.array([], dtype=int), "empty"),
        (np.arange(48), "no pairs are left to train on"),
    ],
)
def test_rows_that_cannot_be_trusted_are_refused_with_their_file(
    tmp_path: Path, rows: np.ndarray, message: str
) -> None:
    file = tmp_path / "rows.npy"
    np.save(file, rows)
    config = small_config(write_folder(tmp_path / "data"), "method=mscn", f"mscn.trusted={file}")
    with pytest.raises(InputError, match=message) as caught:
        session.train(config, tmp_path / "run")
    assert str(file) in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("matcher.name=scan", "method mscn does not go with matcher scan: .*it goes with vse, bow, saf, sgr, dual"),
        ("mscn.warmup=32", "mscn.warmup: 32 epochs count every pair as matched"),
        ("mscn.trusted_share=0", "mscn.trusted_share: must be greater than 0, got 0"),
    ],
)
def test_what_does_not_go_with_mscn_is_refused(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(settings=["method=mscn", setting])


@pytest.mark.slow
def test_on_scenes_with_40_percent_mismatches_it_beats_plain_hardest_triplets(tmp_path: Path) -> None:
    settings = ["matcher.embedding=64", "train.pieces=[10]", "mscn.warmup=4"]
    plain = train_on_scenes(tmp_path, "triplet-hardest", *settings)
    robust = train_on_scenes(tmp_path, "mscn", *settings)
    assert robust.rsum > plain.rsum + 15
    assert robust.auroc > plain.auroc
    scores = [record["dev"]["rsum"] for record in robust.records]
    assert max(scores[4:]) > max(scores[:4]) + 20  # it is not the warm-up that did it
