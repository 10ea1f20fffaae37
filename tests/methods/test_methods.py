"""CRCL by its Algorithm 1, plain objectives, and the step that they share."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from tiny import leaves
from torch import Tensor, nn

from crcl import losses
from crcl.data.batches import Batch, Batches
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import TrainingError
from crcl.ledger import Ledger, cut
from crcl.matchers import Bow
from crcl.matchers.base import eval_mode
from crcl.matchers.kernels.products import Precision, product_type
from crcl.methods import crcl as crcl_method
from crcl.methods.base import Learner
from crcl.methods.crcl import CRCL
from crcl.methods.plain import Objective
from crcl.progress import Clock, StepLog

Tiny = Callable[..., Split]
MOMENTUM, THRESHOLD, FREEZE = 0.5, 0.3, 1


class Pieces:
    """Small pairs with their batches and a maker of matchers."""

    def __init__(self, pairs: Split) -> None:
        vocabulary = Vocabulary.build(pairs.captions, minimum=1)
        self.count = len(pairs)
        self.batches = Batches(
            pairs,
            vocabulary.encode(pairs.captions),
            vocabulary=len(vocabulary),
            mask_token=vocabulary.mask,
            batch_size=5,
        )
        self.make = lambda: Bow(features=pairs.features.shape[2], vocabulary=len(vocabulary), embedding=8, word=6)

    def learner(self, **options: Any) -> Learner:
        learner = Learner(self.make, **options)
        learner.reset()
        return learner

    def crcl(self, *, precision: Precision = "auto", **options: Any) -> CRCL:
        ledger = Ledger(self.count, momentum=MOMENTUM, threshold=THRESHOLD, freeze_epochs=FREEZE)
        return CRCL(Learner(self.make, precision=precision), ledger, **options)

    def objective(self, loss: Callable[[Tensor], Tensor], **options: Any) -> Objective:
        return Objective(Learner(self.make), loss, self.count, **options)

    def train(self, method: CRCL | Objective, piece: int, epochs: int, *, before: int = 0) -> list[StepLog]:
        logs: list[StepLog] = []
        method.begin_piece(piece)
        for epoch in range(epochs):
            clock = Clock(piece, epoch, 0, before + epoch, learning_rate=0.01)
            logs += method.train_epoch(self.batches, clock)
        return logs


@pytest.fixture
def small(tiny: Tiny) -> Pieces:
    torch.manual_seed(0)
    return Pieces(tiny())


def weights(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_every_piece_starts_from_fresh_weights_and_a_fresh_optimizer_and_keeps_the_ledger(small: Pieces) -> None:
    method = small.crcl()
    small.train(method, 0, 3)
    trained, ledger, beliefs = method.learner.module, method.ledger, method.correspondence.copy()
    assert method.learner.optimizer.adamw.state
    assert not np.all(beliefs == 1)
    method.begin_piece(1)
    assert method.learner.module is not trained
    assert not torch.equal(weights(method.learner.module), weights(trained))
    assert not method.learner.optimizer.adamw.state
    assert method.ledger is ledger
    np.testing.assert_array_equal(method.correspondence, beliefs)


def test_labels_of_two_pieces_follow_equations_10_to_12(small: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow loop of the paper's: y = 1 while frozen, p̂ of the epoch before at the first chance, then momentum."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    method = small.crcl()

    def observe(pairs: Tensor, probability: Tensor) -> Tensor:
        labels = Ledger.observe(method.ledger, pairs, probability)
        seen.append((pairs, probability.detach(), labels))
        return labels

    used: list[Tensor] = []

    def loss(sims: Tensor, labels: Tensor, **options: float) -> Tensor:
        used.append(labels)
        return losses.active_complementary(sims, labels, **options)

    monkeypatch.setattr(method.ledger, "observe", observe)
    monkeypatch.setattr(crcl_method, "active_complementary", loss)
    belief, before = np.ones(small.count, dtype=np.float32), np.zeros(small.count, dtype=np.float32)
    total = 0
    for piece, epochs in enumerate((3, 3)):
        method.begin_piece(piece)
        for epoch in range(epochs):
            if epoch >= FREEZE:
                first = piece == 0 and epoch == FREEZE
                belief = before if first else (MOMENTUM * belief + (1 - MOMENTUM) * before).astype(np.float32)
            seen.clear()
            used.clear()
            list(method.train_epoch(small.batches, Clock(piece, epoch, 0, total, learning_rate=0.01)))
            total += 1
            before = np.empty(small.count, dtype=np.float32)
            for (pairs, probability, labels), entered in zip(seen, used, strict=True):
                assert entered is labels
                expected = belief[pairs.numpy()]
                np.testing.assert_array_equal(labels.numpy(), np.where(expected < THRESHOLD, 0, expected))
                before[pairs.numpy()] = probability.numpy()
            np.testing.assert_array_equal(method.correspondence, belief)
    assert np.any(cut(belief, THRESHOLD) == 0)  # the threshold was at work


def test_each_step_yields_its_pairs_and_its_loss(small: Pieces) -> None:
    logs = small.train(small.crcl(), 0, 1)
    assert [log.pairs for log in logs] == [5, 5, 2]
    assert all(np.isfinite(log.loss) and log.phase == "train" for log in logs)


def test_eval_probabilities_are_those_of_the_matcher_at_the_epochs_end_without_augmentation(small: Pieces) -> None:
    method = small.crcl(probability="eval")
    logs = small.train(method, 0, 1)
    assert [log.phase for log in logs] == ["train"] * 3 + ["probabilities"] * 3
    assert method.learner.module.training
    expected = np.empty(small.count, dtype=np.float32)
    with eval_mode(method.matcher):
        for batch in small.batches.epoch(0, stream=1, augment=False):
            sims = method.matcher.similarity(
                method.matcher.encode_images(batch.regions, batch.region_mask),
                method.matcher.encode_texts(batch.tokens, batch.lengths),
            )
            probability = losses.pair_probability(*losses.matching_log_probs(sims, method.tau))
            expected[batch.pairs.numpy()] = probability.numpy()
    np.testing.assert_array_equal(method.ledger.probability, expected)


def test_eval_and_train_probabilities_differ(small: Pieces) -> None:
    found = {}
    for probability in ("train", "eval"):
        torch.manual_seed(1)
        method = small.crcl(probability=probability)
        small.train(method, 0, 1)
        found[probability] = method.ledger.probability, weights(method.learner.module)
    assert torch.equal(found["train"][1], found["eval"][1])  # the pass itself trains nothing
    assert not np.array_equal(found["train"][0], found["eval"][0])


@pytest.mark.parametrize("probability", ["train", "eval"])
def test_an_epoch_goes_on_at_any_step_as_if_it_had_not_been_left(small: Pieces, probability: str) -> None:
    torch.manual_seed(2)
    whole = small.crcl(probability=probability)
    whole.begin_piece(0)
    states = []
    for _ in whole.train_epoch(small.batches, Clock(0, 0, 0, 0, learning_rate=0.01)):
        states.append(dict(leaves(whole.state_dict())))
    for step in range(len(states) + 1):
        torch.manual_seed(2)
        first, second = small.crcl(probability=probability), small.crcl(probability=probability)
        first.begin_piece(0)
        steps = first.train_epoch(small.batches, Clock(0, 0, 0, 0, learning_rate=0.01))
        for _ in range(step):
            next(steps)
        if not step:
            first.ledger.begin_epoch(0, 0)
        second.begin_piece(0)
        second.load_state_dict(first.state_dict())
        list(second.train_epoch(small.batches, Clock(0, 0, step, 0, learning_rate=0.01)))
        assert dict(leaves(second.state_dict())) == states[-1]


def diagonal(sims: Tensor) -> Tensor:
    return 1 - sims.diagonal()


def test_an_objective_uses_its_first_loss_in_the_first_epochs_only(small: Pieces) -> None:
    calls: list[str] = []

    def named(name: str) -> Callable[[Tensor], Tensor]:
        def loss(sims: Tensor) -> Tensor:
            calls.append(name)
            return diagonal(sims)

        return loss

    method = small.objective(named("main"), first_loss=named("first"), first_epochs=1)
    small.train(method, 0, 3)
    assert calls == ["first"] * 3 + ["main"] * 6


def test_an_objective_without_a_first_loss_uses_its_only_one(small: Pieces) -> None:
    method = small.objective(diagonal)
    first, *_, last = (log.loss for log in small.train(method, 0, 20))
    assert last < first


def test_an_objective_remembers_the_probabilities_of_its_last_epoch(small: Pieces) -> None:
    method = small.objective(diagonal, tau=0.2)
    small.train(method, 0, 1)
    early = method.correspondence.copy()
    assert ((early >= 0) & (early <= 1)).all()
    assert len(np.unique(early)) > 1
    list(method.train_epoch(small.batches, Clock(0, 1, 0, 1, learning_rate=0.01)))
    assert not np.array_equal(method.correspondence, early)


def batch_of(small: Pieces) -> Batch:
    return next(iter(small.batches.epoch(0)))


def test_a_step_uses_the_clocks_learning_rate(small: Pieces) -> None:
    learner, batch = small.learner(), batch_of(small)
    before = weights(learner.module)
    value = learner.optimizer.step(diagonal(learner.similarities(batch)), batch, 0.0)
    assert torch.equal(weights(learner.module), before)
    assert value == pytest.approx(diagonal(learner.similarities(batch)).mean().item(), abs=1e-5)
    learner.optimizer.step(diagonal(learner.similarities(batch)), batch, 0.1)
    assert not torch.equal(weights(learner.module), before)
    assert {group["lr"] for group in learner.optimizer.adamw.param_groups} == {0.1}


@pytest.mark.parametrize(("clip", "limit"), [(0.5, 0.5), (0.0, None)])
def test_a_step_clips_the_gradient_of_all_parameters_unless_told_not_to(
    small: Pieces, clip: float, limit: float | None
) -> None:
    learner, batch = small.learner(clip=clip), batch_of(small)
    learner.optimizer.step(1000 * diagonal(learner.similarities(batch)), batch, 0.01)
    gradients = [parameter.grad for parameter in learner.module.parameters() if parameter.grad is not None]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    assert norm == pytest.approx(limit, rel=1e-3) if limit else norm > 10


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_an_error_with_the_batchs_pairs_and_those_to_blame(
    small: Pieces, value: float
) -> None:
    learner, batch = small.learner(), batch_of(small)
    found = diagonal(learner.similarities(batch)) * torch.tensor([1, 1, value, 1, 1])
    before = weights(learner.module)
    with pytest.raises(TrainingError) as caught:
        learner.optimizer.step(found, batch, 0.1)
    assert str(batch.pairs.tolist()) in str(caught.value)
    assert f"1 of them with such a loss: [{batch.pairs[2].item()}]" in str(caught.value)
    assert torch.equal(weights(learner.module), before)


def test_a_gradient_that_is_not_finite_is_an_error_before_it_spoils_the_weights(small: Pieces) -> None:
    learner, batch = small.learner(), batch_of(small)
    before = weights(learner.module)
    found = torch.where(torch.arange(len(batch)) < 0, torch.nan, 0) + (diagonal(learner.similarities(batch)) * 0).sqrt()
    with pytest.raises(TrainingError, match="the gradient became NaN or infinite in the batch of pairs"):
        learner.optimizer.step(found, batch, 0.1)  # the slope of the root at 0 is infinite
    assert torch.equal(weights(learner.module), before)


def test_float16_skips_a_step_whose_gradient_is_not_finite_but_not_all_of_them(small: Pieces) -> None:
    learner, batch = small.learner(precision="float16"), batch_of(small)
    before = weights(learner.module)

    def steps(count: int) -> None:
        for _ in range(count):
            learner.optimizer.step((diagonal(learner.similarities(batch)).float() * 0).sqrt(), batch, 0.1)

    steps(20)
    with pytest.raises(TrainingError, match=r"the gradient became NaN or infinite.*train\.precision=float32"):
        steps(20)
    assert torch.equal(weights(learner.module), before)


def test_half_precision_trains_with_losses_in_single_precision(small: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def probability(*log_probs: Tensor, negatives: int) -> Tensor:
        seen.append(log_probs[0].dtype)
        return losses.pair_probability(*log_probs, negatives=negatives)

    monkeypatch.setattr(crcl_method, "pair_probability", probability)
    logs = small.train(small.crcl(precision="bfloat16"), 0, 2)
    assert set(seen) == {torch.float32}
    assert all(np.isfinite(log.loss) for log in logs)


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16)])
def test_a_gpu_that_can_only_imitate_bfloat16_gets_float16(
    capability: tuple[int, int], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: asked.append(device) or capability)
    device = torch.device("cuda:1")
    assert product_type(device, "auto") == expected
    assert asked == [device]  # the one that trains, not the first
    assert product_type(torch.device("cpu"), "auto") == torch.float32


def test_float16_goes_on_from_a_state_of_another_precision(small: Pieces) -> None:
    exact = small.learner()
    exact.optimizer.step(exact.similarities(batch_of(small)).square().mean(1), batch_of(small), 0.1)
    half = small.learner(precision="float16")
    half.load_state_dict(exact.state_dict())
    assert torch.equal(weights(half.module), weights(exact.module))
    assert half.optimizer.scaler.is_enabled()
    assert half.optimizer.scaler.get_scale() > 1


def test_a_learner_goes_on_from_its_state_and_begins_anew_when_renewed(small: Pieces) -> None:
    batch = batch_of(small)
    one, other = small.learner(), small.learner()
    one.optimizer.step(diagonal(one.similarities(batch)), batch, 0.1)
    other.load_state_dict(deepcopy(one.state_dict()))
    for learner in (one, other):
        learner.optimizer.step(diagonal(learner.similarities(batch)), batch, 0.1)
    assert torch.equal(weights(one.module), weights(other.module))
    other.reset()
    assert not torch.equal(weights(one.module), weights(other.module))
    assert not other.optimizer.adamw.state
