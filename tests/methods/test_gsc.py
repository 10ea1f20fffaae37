"""GSC: structures against loops, beliefs after each epoch, one head for two images; resumed at any step; scenes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peers import Small, assert_ends_alike_when_lost, assert_goes_on_from_any_step, clock, train_on_scenes
from tiny import call, small_config, write_folder
from torch import Tensor

from crcl import losses
from crcl.config import load
from crcl.data.batches import Batch
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.matchers import SAF, SCAN, SGR, VSE, Encoded
from crcl.matchers.base import Matcher, within_modality
from crcl.methods.division import gaussian_posterior
from crcl.methods.epochs import division_seed
from crcl.methods.gsc import GSC, structural, structures
from crcl.runs.describe import stored_config
from crcl.training import build, session

Tiny = Callable[..., Split]
SCALE, TAU = 0.3, 0.1
LOCAL = {"features": 5, "regions": 4, "embedding": 8, "word": 6, "similarity": 4}


def gsc(small: Small, **options: object) -> GSC:
    return GSC(small.make_learner(), small.pairs, tau=TAU, scale=SCALE, **options)  # type: ignore[arg-type]


@pytest.fixture
def small(tiny: Tiny) -> Small:
    torch.manual_seed(0)
    return Small(tiny(images=8), batch_size=5)  # 16 pairs: a single one is left over


def matrices(size: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    u, v = (torch.rand(size, size, dtype=torch.float64, generator=generator) for _ in range(2))
    return u, v, torch.rand(size, dtype=torch.float64, generator=generator)


def slow_structural(u: Tensor, v: Tensor, y: Tensor) -> tuple[list[float], list[float]]:
    """Pair by pair: the loss, and the cosine of both rows."""
    size = len(u)
    values, cosines = [], []
    for i in range(size):
        row = [sum(float(u[i, k] * y[k] * v[j, k] * y[k]) for k in range(size)) for j in range(size)]
        values.append(float(np.log(np.sum(np.exp(row))) - row[i]))
        one = [float(u[i, k] * y[k]) for k in range(size)]
        other = [float(v[i, k] * y[k]) for k in range(size)]
        cosines.append(float(np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other)))
    return values, cosines


def test_the_structural_loss_agrees_with_a_loop_over_pairs() -> None:
    u, v, y = matrices()
    found = structural(*structures(u, v, y))
    np.testing.assert_allclose(found, slow_structural(u, v, y)[0], rtol=1e-5)


def test_a_pair_that_is_not_believed_counts_in_no_structure() -> None:
    u, v, y = matrices()
    y[2] = 0
    by_image, by_text = structures(u, v, y)
    assert not by_image[:, 2].any()
    assert not by_text[:, 2].any()


class Watched(GSC):
    """Remembers what each step saw: pairs, similarities, and those within both sides."""

    def begin_piece(self, piece: int) -> None:
        super().begin_piece(piece)
        self.steps: list[tuple[np.ndarray, Tensor, Tensor, Tensor]] = []
        ask = self.learner.encode

        def encode(batch: Batch) -> tuple[Encoded, Encoded]:
            images, texts = ask(batch)
            with torch.no_grad():
                sims = self.matcher.similarity(images, texts)
                u, v = (within_modality(self.matcher, side).double() for side in (images, texts))
            self.steps.append((batch.pairs.numpy(), sims, u, v))
            return images, texts

        self.learner.encode = encode  # type: ignore[method-assign]


def test_an_epoch_weighs_pairs_by_beliefs_that_change_only_at_its_end(small: Small) -> None:
    torch.manual_seed(0)
    method = Watched(small.make_learner(), small.pairs, tau=TAU, scale=SCALE)
    method.begin_piece(0)
    structure = probability = np.ones(small.pairs)
    for epoch in range(3):
        method.steps.clear()
        y = np.minimum(structure, probability)
        np.testing.assert_allclose(method.correspondence, y, rtol=1e-5)
        logs = list(method.train_epoch(small.batches, clock(epoch)))
        cosines, seen = np.full(small.pairs, np.nan), np.full(small.pairs, np.nan)
        for log, (pairs, sims, u, v) in zip(logs, method.steps, strict=True):
            labels = torch.from_numpy(y[pairs])
            plain = losses.info_nce(sims, tau=TAU) / 2
            structural_losses, found = slow_structural(u, v, labels)
            expected = (labels * (plain + SCALE * torch.tensor(structural_losses))).mean()
            assert log.loss == pytest.approx(expected.item(), rel=1e-4)
            cosines[pairs] = found
            seen[pairs] = losses.pair_probability(*losses.matching_log_probs(sims, TAU))
        known = np.isfinite(seen)
        assert known.sum() == 15
        np.testing.assert_allclose(method.seen[0][known], cosines[known], rtol=1e-4)
        before = known | np.isfinite(method.seen[0])
        posterior = gaussian_posterior(-method.seen[0][before], seed=division_seed(small.batches, clock(epoch), 0))
        structure, probability = structure.copy(), probability.copy()
        structure[before] = 0.7 * posterior + 0.3 * structure[before]
        probability[before] = 0.7 * method.seen[1][before] + 0.3 * probability[before]
    np.testing.assert_allclose(method.correspondence, np.minimum(structure, probability), rtol=1e-5)


def test_those_that_agree_more_are_believed_more(small: Small) -> None:
    method = gsc(small)
    method.begin_piece(0)
    agreement = np.concatenate([np.linspace(0.1, 0.2, 8), np.linspace(0.8, 0.9, 8)])
    method.seen[0], method.seen[1] = agreement, 1
    method._refine(seed=0)
    assert (method.correspondence[:8] < 0.4).all()
    assert (method.correspondence[8:] > 0.9).all()


def test_it_begins_with_the_beliefs_that_it_is_given(small: Small) -> None:
    first = np.linspace(0, 1, small.pairs)
    method = gsc(small, start=first)
    for _ in range(2):
        method.begin_piece(0)
        np.testing.assert_allclose(method.correspondence, first, rtol=1e-6)
        list(method.train_epoch(small.batches, clock(0)))
        assert not np.allclose(method.correspondence, first)


def test_a_training_that_starts_from_a_run_begins_with_its_beliefs(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    first = session.train(small_config(data, "method=gsc"), tmp_path / "first")
    further = session.train(small_config(data, "method=gsc", f"train.start={first.path}"), tmp_path / "further")
    start = further.load_start()
    assert start is not None
    np.testing.assert_array_equal(start.beliefs, first.load_ledger())
    method, _ = build.prepare(stored_config(further), session.read_data(stored_config(further)), start=start)
    np.testing.assert_allclose(method.correspondence, first.load_ledger(), rtol=1e-6)


@pytest.mark.parametrize("kind", [SAF, SGR])
def test_the_same_head_compares_two_images_or_two_texts_one_by_one(small: Small, kind: type[SGR]) -> None:
    torch.manual_seed(0)
    matcher = kind(**LOCAL, vocabulary=small.batches.vocabulary).eval()
    batch = next(iter(small.batches.epoch(0, augment=False)))
    images = matcher.encode_images(batch.regions, batch.region_mask)
    texts = matcher.encode_texts(batch.tokens, batch.lengths)
    assert len(set(batch.lengths.tolist())) > 1
    for side in (images, texts):
        assert side.mask is not None
        assert side.pooled is not None
        found = within_modality(matcher, side)
        for i in range(len(batch)):
            for j in range(len(batch)):
                one, other = (
                    Encoded(
                        side.features[k : k + 1, : side.mask[k].sum()], side.mask[k : k + 1], side.pooled[k : k + 1]
                    )
                    for k in (i, j)
                )
                other = Encoded(other.features, torch.ones(other.features.shape[:2], dtype=torch.bool), other.pooled)
                torch.testing.assert_close(found[i, j], matcher.similarity(one, other)[0, 0], rtol=1e-4, atol=1e-5)


def test_running_statistics_are_those_of_images_with_texts_alone(small: Small) -> None:
    matcher = SAF(**LOCAL, vocabulary=small.batches.vocabulary).train()
    batch = next(iter(small.batches.epoch(0, augment=False)))
    images = matcher.encode_images(batch.regions, batch.region_mask)
    before = {name: value.clone() for name, value in matcher.named_buffers()}
    within_modality(matcher, images)
    assert all(torch.equal(value, before[name]) for name, value in matcher.named_buffers())
    matcher.similarity(images, matcher.encode_texts(batch.tokens, batch.lengths))
    assert not all(torch.equal(value, before[name]) for name, value in matcher.named_buffers())


def test_a_matcher_of_one_vector_each_is_taken_by_its_cosine_and_one_without_is_refused(small: Small) -> None:
    x = torch.randn(4, 3)
    matcher: Matcher = VSE(features=5, vocabulary=small.batches.vocabulary, embedding=8, word=6)
    expected = torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=2)
    torch.testing.assert_close(within_modality(matcher, Encoded(x)), expected)
    scan: Matcher = SCAN(features=5, vocabulary=small.batches.vocabulary, embedding=8, word=6)
    with pytest.raises(TypeError, match="SCAN cannot compare images with images"):
        within_modality(scan, Encoded(x[None]))
    with pytest.raises(
        InputError, match=r"gsc does not go with matcher scan: .* goes with vse, bow, saf, sgr, vsrn, hrem, dual, cl"
    ):
        load(settings=["method=gsc", "matcher.name=scan"])


@pytest.mark.slow
def test_saved_after_any_step_it_goes_on_to_the_same_end(small: Small) -> None:
    assert assert_goes_on_from_any_step(lambda: gsc(small), small.batches, epochs=range(3)) == [3, 3, 3]


def test_a_state_of_other_pairs_is_refused(tiny: Tiny, small: Small) -> None:
    method, other = gsc(small), gsc(Small(tiny(images=7)))
    for one in (method, other):
        one.begin_piece(0)
    with pytest.raises(ValueError, match="has 14 pairs, the data 16"):
        method.load_state_dict(other.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("matcher", ["saf", "sgr"])
def test_lost_on_the_way_a_training_with_dropout_ends_bit_identical_and_can_be_audited(
    tmp_path: Path, matcher: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["method=gsc", f"matcher.name={matcher}", "train.pieces=[2]"]
    assert_ends_alike_when_lost(tmp_path, settings, after=3)
    answer = call(capsys, monkeypatch, "audit", str(tmp_path / "run"), "--threshold", "0.5")
    assert (answer.code, "auroc" in answer.out) == (0, True), answer.err


@pytest.mark.slow
def test_on_noisy_scenes_it_beats_plain_training_with_hardest_triplets(tmp_path: Path) -> None:
    settings = ["matcher.embedding=128", "train.lr=0.002", "train.pieces=[24]", "train.lr_update=20"]
    plain = train_on_scenes(tmp_path, "triplet-hardest", *settings)
    robust = train_on_scenes(tmp_path, "gsc", *settings)
    assert robust.rsum > plain.rsum + 10
    assert robust.auroc > plain.auroc + 0.01
    assert len(robust.records) == 24
