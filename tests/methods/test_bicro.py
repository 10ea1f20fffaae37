"""BiCro: labels by consistency with anchors, who gives them and who learns from them; scenes."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from peers import Small, clock, mean_triplet, recorded_steps, train_on_scenes
from torch import Tensor
from torch.nn.functional import cosine_similarity

from crcl.data.split import Split
from crcl.matchers import SGR, Encoded
from crcl.methods.bicro import BiCro, _pooled, clean_labels, consistency
from crcl.methods.division import beta_posterior, divide

Tiny = Callable[..., Split]
EPOCHS, WARMUP = 6, 2


def bicro(small: Small) -> BiCro:
    return BiCro(small.make_learner, small.pairs, epochs=EPOCHS, warmup=WARMUP)


@pytest.fixture
def small(tiny: Tiny) -> Small:
    torch.manual_seed(0)
    return Small(tiny(images=12))


def unit(rows: int, seed: int, *, size: int = 4) -> Tensor:
    x = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.7
    return x / x.norm(dim=1, keepdim=True)


def slow_consistency(images: Tensor, texts: Tensor, anchor_images: Tensor, anchor_texts: Tensor) -> list[float]:
    """Pair by pair, anchor by anchor."""
    values = []
    for image, text in zip(images, texts, strict=True):
        u = [cosine_similarity(image, anchor, dim=0).item() for anchor in anchor_images]
        v = [cosine_similarity(text, anchor, dim=0).item() for anchor in anchor_texts]
        ratios = []
        for nearest in (int(np.argmax(u)), int(np.argmax(v))):
            low, high = sorted([u[nearest], v[nearest]])
            ratios.append(low / high if low > 0 else 0.0)
        values.append(sum(ratios) / 2)
    return values


def test_consistency_agrees_with_a_loop_over_pairs_and_anchors() -> None:
    sides, anchors = (unit(30, 0), unit(30, 1)), (unit(4, 2), unit(4, 3))
    values = consistency(sides, anchors)
    np.testing.assert_allclose(values, slow_consistency(*sides, *anchors), rtol=1e-10)
    assert ((values >= 0) & (values <= 1)).all()


def test_a_pair_whose_sides_stand_alike_to_the_anchors_is_consistent() -> None:
    x = unit(6, 0).abs()
    torch.testing.assert_close(consistency((x, x), (x[:2], x[:2])), torch.ones(6, dtype=torch.float64))


def test_cosines_that_are_not_positive_speak_for_nothing() -> None:
    x, anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    for sides in ((x, torch.tensor([[1.0, 0.0]] * 3)), (x, x)):
        assert consistency(sides, (anchor, anchor)).tolist() == [1, 0, 0]


def test_in_a_clean_batch_anchors_are_1_and_every_other_pair_gets_its_own_label() -> None:
    images, texts = unit(12, 0), unit(12, 1)
    anchors = torch.tensor([7, 2])
    own = slow_consistency(images, texts, images[anchors], texts[anchors])
    expected = [1.0 if pair in (2, 7) else 0.5 + value / 2 if value > 0 else 0.0 for pair, value in enumerate(own)]
    np.testing.assert_allclose(clean_labels((images, texts), anchors), expected)
    assert len(set(expected)) > 6


def test_labels_that_are_not_above_the_cut_become_0() -> None:
    images, texts = unit(12, 0), unit(12, 1)
    labels, cut = (clean_labels((images, texts), torch.tensor([0]), cut=cut) for cut in (0.5, 0.8))
    np.testing.assert_array_equal(cut, torch.where(labels > 0.8, labels, 0))
    assert 0 < (cut == 0).sum() < 11


def test_a_matcher_of_parts_is_taken_by_the_mean_of_its_real_parts() -> None:
    torch.manual_seed(0)
    parts = torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    whole = _pooled(Encoded(parts, mask))
    for row in range(2):
        real = parts[row][mask[row]]
        mean = (real / real.norm(dim=1, keepdim=True)).mean(0)
        torch.testing.assert_close(whole[row], mean / mean.norm())
    vectors = torch.randn(2, 4)
    torch.testing.assert_close(_pooled(Encoded(vectors)), vectors / vectors.norm(dim=1, keepdim=True))


def test_the_warm_up_learns_from_the_smallest_losses_of_each_batch(tiny: Tiny) -> None:
    torch.manual_seed(0)
    small = Small(tiny(images=12), batch_size=8)
    method = bicro(small)
    method.begin_piece(0)
    for which, expected in enumerate(deepcopy(method.networks.learners)):
        expected.module.train()
        for batch in small.batches.epoch(0, stream=which):
            sims = expected.similarities(batch)
            values = mean_triplet(sims.detach())
            hinges = torch.stack(
                [
                    sum((0.2 + sims[i, j] - sims[i, i]).clamp(min=0) + (0.2 + sims[j, i] - sims[i, i]).clamp(min=0)
                        for j in range(8) if j != i) / 8
                    for i in range(8)
                ]
            )  # fmt: skip
            weights = torch.zeros(8)
            weights[np.argsort(values)[:2].copy()] = 1  # int(0.3 * 8)
            expected.optimizer.step(hinges * weights, batch, 0.01)
        if which == 0:
            list(method.train_epoch(small.batches, clock(0)))
        trained = method.networks.learners[which].module.state_dict()
        for name, value in expected.module.state_dict().items():
            torch.testing.assert_close(trained[name], value, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(method.correspondence, np.ones(small.pairs))


def test_each_network_learns_from_the_other_ones_division_and_labels_noisy_batches_first(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = bicro(small)
    method.begin_piece(0)
    for epoch in range(EPOCHS - 1):
        list(method.train_epoch(small.batches, clock(epoch)))
    steps = recorded_steps(method.networks, monkeypatch)
    list(method.train_epoch(small.batches, clock(EPOCHS - 1)))
    for which in (0, 1):
        posterior = beta_posterior(method.networks.losses[1 - which])
        clean = divide(posterior)
        assert 0 < clean.sum() < len(clean)
        mine = [step for step in steps if step.which == which]
        assert len(mine) == 2 * small.batches.count(int(clean.sum()))
        expected = posterior.copy()
        for noisy, sure in zip(mine[::2], mine[1::2], strict=True):
            assert not clean[noisy.batch.pairs.numpy()].any()
            assert clean[sure.batch.pairs.numpy()].all()
            teacher = noisy.before[1 - which]
            teacher.module.eval()
            with torch.no_grad():
                images, texts = (side.features for side in teacher.encode(sure.batch))
                values = mean_triplet(teacher.similarities(sure.batch))
                others = [side.features for side in teacher.encode(noisy.batch)]
            anchors = np.argsort(values, kind="stable")[: len(values) // 10 + 1]
            own = slow_consistency(images, texts, images[anchors], texts[anchors])
            labels = [1 if n in anchors else 0.5 + value / 2 if value > 0 else 0 for n, value in enumerate(own)]
            np.testing.assert_allclose(sure.labels, labels, rtol=1e-3, atol=1e-5)
            far = np.array(slow_consistency(*others, images[anchors], texts[anchors]))
            np.testing.assert_allclose(noisy.labels, np.where(far > 0.5, far, 0), rtol=1e-3, atol=1e-5)
            expected[noisy.batch.pairs], expected[sure.batch.pairs] = noisy.labels, sure.labels
        np.testing.assert_allclose(method.labels[which], expected, rtol=1e-6)


def test_noisy_pairs_are_labelled_from_the_start_and_learnt_from_in_the_second_half(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = bicro(small)
    method.begin_piece(0)
    steps = recorded_steps(method.networks, monkeypatch)
    learnt = []
    for epoch in range(EPOCHS):
        steps.clear()
        logs = [log for log in method.train_epoch(small.batches, clock(epoch)) if log.phase == "train"]
        noisy = [
            step
            for step in steps
            if not divide(beta_posterior(method.networks.losses[1 - step.which]))[step.batch.pairs.numpy()].any()
        ]
        learnt.append(bool(noisy))
        if steps:
            assert sum(log.pairs for log in logs) == sum(len(step.batch) for step in steps)
    assert learnt == [False, False, False, False, True, True]


def test_it_trains_a_matcher_of_parts(tiny: Tiny) -> None:
    small = Small(tiny(images=6))
    small.batches.dropped_regions = "blanked"
    size = small.batches.pairs.features.shape[2]
    small.make_matcher = lambda: SGR(
        features=size, vocabulary=small.batches.vocabulary, regions=4, embedding=8, word=6, similarity=5
    )
    method = bicro(small)
    method.begin_piece(0)
    for epoch in (0, EPOCHS - 1):
        logs = list(method.train_epoch(small.batches, clock(epoch)))
        assert np.isfinite([log.loss for log in logs if log.phase == "train"]).all()


@pytest.mark.slow
def test_on_noisy_scenes_it_beats_plain_training_with_hardest_triplets(tmp_path: Path) -> None:
    settings = ["train.pieces=[1,12]", "division.warmup=6", "train.batch_size=32", "train.lr=0.0002"]
    plain = train_on_scenes(tmp_path, "triplet-hardest", *settings)
    robust = train_on_scenes(tmp_path, "bicro", *settings)
    assert robust.rsum > plain.rsum + 20
    assert robust.auroc > 0.6
    assert any(record["best"] for record in robust.records[6:])  # not by its warm-up alone
