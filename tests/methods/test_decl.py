"""DECL: losses against recorded numbers and torch's Dirichlet distributions, its epochs, resuming, what it is worth."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peers import train_on_scenes
from tiny import Stop, StopAfter, assert_same_runs, leaves, small_config, write_folder
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from crcl import losses
from crcl.data.batches import Batch, Batches
from crcl.data.split import Split
from crcl.data.text.vocabulary import Vocabulary
from crcl.matchers import SGR, Bow
from crcl.matchers.base import eval_mode
from crcl.methods.base import Learner
from crcl.methods.decl import DECL
from crcl.progress import Clock
from crcl.training import session

Numbers = Callable[[str], dict[str, np.ndarray]]
MATCHED = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
SCALE, HINGE, WARMUP, NEGATIVES = 0.3, 0.7, 1, 2


def raw_scores(size: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slow_evidential(scores: Tensor, matched: Tensor, *, scale: float = SCALE) -> list[float]:
    """Query by query, with torch's Dirichlet distributions: expected square error and divergence from no evidence."""
    found = (scores.double().tanh() / 0.1).exp()
    values = []
    for i in range(len(found)):
        value = 0.0
        for queried in (found[i], found[:, i]):
            label = torch.zeros(len(found), dtype=torch.float64)
            label[i] = matched[i]
            believed = Dirichlet(queried + 1)
            value += float(((label - believed.mean) ** 2 + believed.variance).sum())
            wrong = torch.where(label == 1, 1.0, queried + 1)
            value += scale * float(kl_divergence(Dirichlet(wrong), Dirichlet(torch.ones_like(wrong))))
        values.append(value)
    return values


def slow_hinge(scores: Tensor, negatives: int) -> list[float]:
    s, everyone = scores.double().tanh().tolist(), range(len(scores))
    values = []
    for i in everyone:
        images = sorted(max(0.2 + s[i][j] - s[i][i], 0) for j in everyone if j != i)
        texts = sorted(max(0.2 + s[j][i] - s[i][i], 0) for j in everyone if j != i)
        values.append((sum(images[-negatives:]) + sum(texts[-negatives:])) / negatives)
    return values


def test_evidential_loss_is_the_expected_square_error_and_the_divergence_of_dirichlet_distributions() -> None:
    found = losses.evidential(raw_scores(), MATCHED, scale=SCALE)
    np.testing.assert_allclose(found, slow_evidential(raw_scores(), MATCHED), rtol=1e-9)


def test_the_divergence_keeps_its_digits_where_there_is_much_evidence() -> None:
    scores = 5 * raw_scores(128).float()
    found = losses.evidential(scores, torch.ones(128), scale=1.0)
    np.testing.assert_allclose(found, slow_evidential(scores, torch.ones(128), scale=1.0), rtol=1e-5)


def test_dynamic_hinge_is_the_mean_of_the_hardest_hinges() -> None:
    np.testing.assert_allclose(losses.dynamic_hinge(raw_scores(), 3), slow_hinge(raw_scores(), 3), rtol=1e-12)
    np.testing.assert_allclose(losses.dynamic_hinge(raw_scores(), 128), slow_hinge(raw_scores(), 4), rtol=1e-12)


def gradient_in_float32(numbers: dict[str, np.ndarray]) -> Tensor:
    """That of the loss if it were rounded as the recorded one was."""
    scores = torch.from_numpy(numbers["decl_raw_scores"]).requires_grad_()
    found, labels = (scores.tanh() / 0.1).exp(), torch.diag(torch.from_numpy(numbers["decl_clean"]))
    sum(losses._evidential_rows(rows, labels, 0.1).mean() for rows in (found, found.T)).backward()  # type: ignore[union-attr]
    assert scores.grad is not None
    return scores.grad


def test_losses_agree_with_the_published_implementation(recorded: Numbers) -> None:
    numbers = recorded("peer_losses")
    scores = torch.from_numpy(numbers["decl_raw_scores"]).requires_grad_()
    loss = losses.evidential(scores, torch.from_numpy(numbers["decl_clean"])).mean()
    loss.backward()
    assert loss.item() == pytest.approx(numbers["decl_evidential"].item(), rel=1e-4)
    gradient = numbers["decl_evidential/gradient"]
    largest = np.abs(gradient).max()
    assert scores.grad is not None
    np.testing.assert_allclose(scores.grad, gradient, rtol=1e-4, atol=2e-4 * largest)  # recorded in float32
    np.testing.assert_allclose(gradient_in_float32(numbers), gradient, rtol=1e-4, atol=1e-6 * largest)
    hinges = losses.dynamic_hinge(scores.detach(), 3)
    np.testing.assert_allclose(hinges, numbers["decl_rdh_per_pair_n3"], rtol=1e-4, atol=1e-6)


def test_gradients_agree_with_finite_differences() -> None:
    scores = raw_scores().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: losses.evidential(z, MATCHED, scale=SCALE), (scores,))
    assert torch.autograd.gradcheck(lambda z: losses.dynamic_hinge(z, NEGATIVES), (scores,))


@given(size=st.integers(1, 9), seed=st.integers(0, 999))
def test_a_share_of_a_half_is_the_published_division(size: int, seed: int) -> None:
    scores = raw_scores(size, seed).requires_grad_()
    share = losses.evidence_share(scores)
    e = [[np.exp(np.tanh(z) / 0.1) for z in row] for row in scores.tolist()]
    both = [[e[i][k] + e[k][i] for k in range(size)] for i in range(size)]
    assert (share >= 0.5).tolist() == [int(np.argmax(both[i])) == i for i in range(size)]
    rivals = [max([both[i][k] for k in range(size) if k != i], default=0) for i in range(size)]
    np.testing.assert_allclose(share, [both[i][i] / (both[i][i] + rivals[i]) for i in range(size)], rtol=1e-9)
    assert not share.requires_grad


def batches_of(pairs: Split) -> tuple[Batches, Callable[[], Bow]]:
    vocabulary = Vocabulary.build(pairs.captions, minimum=1)
    tokens = vocabulary.encode(pairs.captions)
    batches = Batches(pairs, tokens, vocabulary=len(vocabulary), mask_token=vocabulary.mask, batch_size=5)
    return batches, lambda: Bow(features=pairs.features.shape[2], vocabulary=len(vocabulary), embedding=8, word=6)


class Watched(DECL):
    """Remembers what each step saw."""

    def begin_piece(self, piece: int) -> None:
        super().begin_piece(piece)
        self.seen: list[tuple[bool, Tensor, Tensor]] = []
        ask = self.learner.scores

        def scores(batch: Batch) -> Tensor:
            found = ask(batch)
            self.seen.append((self.learner.module.training, batch.pairs, found.detach().clone()))
            return found

        self.learner.scores = scores  # type: ignore[method-assign]


def epoch_clock(epoch: int, step: int = 0) -> Clock:
    return Clock(0, epoch, step, epoch, learning_rate=0.05)


def watched(pairs: Split) -> tuple[Watched, Batches]:
    torch.manual_seed(0)
    batches, make = batches_of(pairs)
    options = {"divergence": SCALE, "hinge": HINGE, "most": 4, "least": NEGATIVES, "shrink": 1.0}
    method = Watched(Learner(make), len(pairs), warmup=WARMUP, **options)  # type: ignore[arg-type]
    method.begin_piece(0)
    return method, batches


def expected_loss(scores: Tensor, matched: Tensor, negatives: int) -> float:
    """Evidential losses averaged, hinges of the matched pairs added up."""
    hinges = torch.tensor(slow_hinge(scores, min(negatives, len(scores) - 1)))
    return float(np.mean(slow_evidential(scores, matched)) + HINGE * (hinges * matched).sum())


def test_in_the_warm_up_every_pair_counts_as_matched_and_the_hinge_narrows(tiny: Callable[..., Split]) -> None:
    method, batches = watched(tiny())
    logs = list(method.train_epoch(batches, epoch_clock(0)))
    assert [(log.pairs, log.phase) for log in logs] == [(5, "train"), (5, "train"), (2, "train")]
    for log, (training, pairs, scores), negatives in zip(logs, method.seen, (4, 3, 2), strict=True):
        assert training
        assert log.loss == pytest.approx(expected_loss(scores, torch.ones(len(scores)), negatives), rel=1e-5)
        np.testing.assert_allclose(method.correspondence[pairs], losses.evidence_share(scores), rtol=1e-6)


def test_an_epoch_divides_in_eval_mode_and_then_gives_mismatched_pairs_no_label_and_no_hinge(
    tiny: Callable[..., Split],
) -> None:
    method, batches = watched(tiny())
    list(method.train_epoch(batches, epoch_clock(0)))
    method.seen.clear()
    weights = {name: value.clone() for name, value in method.learner.module.state_dict().items()}
    steps = method.train_epoch(batches, epoch_clock(1))
    assert [next(steps).phase for _ in range(3)] == ["division"] * 3
    assert [training for training, _, _ in method.seen] == [False] * 3
    assert all(torch.equal(value, weights[name]) for name, value in method.learner.module.state_dict().items())
    shown = np.concatenate([losses.evidence_share(scores) for _, _, scores in method.seen])
    numbers = np.concatenate([pairs for _, pairs, _ in method.seen])
    assert sorted(numbers) == list(range(len(method.correspondence)))
    beliefs = method.correspondence.copy()
    np.testing.assert_array_equal(beliefs[numbers], shown)
    assert 0 < (beliefs >= 0.5).sum() < len(beliefs)
    method.seen.clear()
    logs = list(steps)
    assert [log.phase for log in logs] == ["train"] * 3
    for log, (training, pairs, scores) in zip(logs, method.seen, strict=True):
        assert training
        matched = torch.from_numpy(beliefs[pairs] >= 0.5).double()
        assert log.loss == pytest.approx(expected_loss(scores, matched, NEGATIVES), rel=1e-5)
    np.testing.assert_array_equal(method.correspondence, beliefs)  # steps do not change what the epoch believes


def test_the_hinge_has_the_published_number_of_negatives() -> None:
    method = DECL(Learner(lambda: torch.nn.Linear(1, 1)), 4)
    steps = {0: 128, 1: 127, 40: 127, 41: 126, 4000: 28, 4920: 5, 5000: 5, 10**6: 5}
    assert {step: method.negatives(step) for step in steps} == steps


def test_an_epoch_goes_on_at_any_step_as_if_it_had_not_been_left(tiny: Callable[..., Split]) -> None:
    whole, batches = watched(tiny())
    states = [dict(leaves(whole.state_dict()))]
    for epoch in (0, 1):
        steps = len(list(whole.train_epoch(batches, epoch_clock(epoch))))
        states.append(dict(leaves(whole.state_dict())))
        for step in range(1, steps):
            first, second = watched(tiny())[0], watched(tiny())[0]
            for before in range(epoch):
                list(first.train_epoch(batches, epoch_clock(before)))
            going = first.train_epoch(batches, epoch_clock(epoch))
            for _ in range(step):
                next(going)
            second.load_state_dict(first.state_dict())
            list(second.train_epoch(batches, epoch_clock(epoch, step)))
            assert dict(leaves(second.state_dict())) == states[-1], (epoch, step)
    assert states[1] != states[0] != states[2]


def test_a_state_of_other_pairs_is_refused(tiny: Callable[..., Split]) -> None:
    method = watched(tiny())[0]
    other = watched(tiny(images=7))[0]
    with pytest.raises(ValueError, match="has 14 pairs, the data 12"):
        method.load_state_dict(other.state_dict())


def test_raw_scores_come_before_the_sigmoid_where_there_is_one(tiny: Callable[..., Split]) -> None:
    batches, make_bow = batches_of(tiny())
    batch = next(iter(batches.epoch(0, augment=False)))
    sgr = lambda: SGR(features=5, vocabulary=batches.vocabulary, regions=4, embedding=8, word=6, similarity=4)  # noqa: E731
    for make, squeezed in ((sgr, True), (make_bow, False)):
        learner = Learner(make)
        learner.reset()
        with eval_mode(learner.matcher):
            scores, sims = learner.scores(batch), learner.similarities(batch)
        torch.testing.assert_close(scores.sigmoid() if squeezed else scores, sims)
        assert squeezed == (not torch.equal(scores, sims))


@pytest.mark.slow
def test_lost_in_any_phase_a_training_with_dropout_ends_bit_identical(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=12)
    settings = ["method=decl", "matcher.name=saf", "matcher.similarity=4", "train.pieces=[3]", "decl.shrink=1"]
    chosen = small_config(data, *settings, "train.batch_size=12", "train.save_minutes=0")
    expected = session.train(chosen, tmp_path / "reference").path
    for steps in (3, 6, 9):  # 2 in the warm-up, then twice 2 of division and 2 of training
        run = tmp_path / f"run{steps}"
        with pytest.raises(Stop):
            session.train(chosen, run, progress=StopAfter(steps))
        session.train(chosen, run, resume=True)
        assert_same_runs(run, expected)


@pytest.mark.slow
def test_on_drawn_scenes_it_retrieves_and_detects_better_than_hardest_triplets(tmp_path: Path) -> None:
    settings = ["matcher.embedding=128", "train.lr=0.002", "train.pieces=[10]", "decl.warmup=4", "decl.shrink=1"]
    plain = train_on_scenes(tmp_path, "triplet-hardest", *settings)
    robust = train_on_scenes(tmp_path, "decl", *settings)
    assert robust.rsum > plain.rsum + 10
    assert robust.auroc > plain.auroc + 0.02
