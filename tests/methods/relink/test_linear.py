"""The linear model of relink: against dense sums, and out of fold, where no caption shapes its own judge."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch

from crcl.errors import InputError
from crcl.methods.relink import cca, linear, posterior
from crcl.methods.relink.inputs import Stored, unit
from crcl.methods.relink.linear import LinearModel, all_shown, divide, judge
from crcl.methods.relink.posterior import Beliefs
from crcl.methods.relink.siblings import FoldVectors, Shown

IMAGES, PER_IMAGE, FOLDS, DIMENSIONS = 40, 3, 4, 6
NONE = np.empty(0, np.int64)
PAIRS = IMAGES * PER_IMAGE


class Made:
    """Images and captions that share hidden numbers; a share of the captions is shown with other images."""

    def __init__(self, *, rate: float = 0.4, sparse: bool = False, images: int = IMAGES, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.belongs = np.repeat(np.arange(images), PER_IMAGE)
        hidden = rng.normal(size=(images, 5))
        self.images = (hidden @ rng.normal(size=(5, 8)) + 0.3 * rng.normal(size=(images, 8)) + 2).astype(np.float32)
        texts = hidden[self.belongs] @ rng.normal(size=(5, 7)) + 0.3 * rng.normal(size=(len(self.belongs), 7))
        if sparse:
            texts = np.maximum(texts, 0)
        self.texts = unit(texts).astype(np.float32)
        wrong = np.flatnonzero(rng.random(len(self.belongs)) < rate)
        self.shown = self.belongs.copy()
        self.shown[wrong] = self.belongs[rng.permutation(wrong)]
        self.folds = np.arange(images)[self.shown] % FOLDS
        self.sparse = sparse

    def pairs(self, **changes: np.ndarray) -> Shown:
        return replace(Shown(self.shown, self.folds, NONE), **changes)

    def model(self, shown: Shown | None = None, rows: np.ndarray | None = None) -> LinearModel:
        texts = self.texts if rows is None else self.texts[rows]
        stored = Stored(scipy.sparse.csr_array(texts), sparse=True) if self.sparse else Stored(texts)
        return LinearModel(Stored(self.images), stored, shown or self.pairs(), dimensions=DIMENSIONS)


def some_beliefs(pairs: int = PAIRS, images: int = IMAGES, seed: int = 1) -> Beliefs:
    rng = np.random.default_rng(seed)
    others = np.array([rng.choice(images, 4, replace=False) for _ in range(pairs)])
    return Beliefs(rng.random(pairs).astype(np.float32), others, rng.random((pairs, 4)).astype(np.float32) / 4)


def same(one: cca.Projections, other: cca.Projections) -> bool:
    return all(np.array_equal(value, vars(other)[name]) for name, value in vars(one).items())


def products(one: cca.Projections) -> list[np.ndarray]:
    """What does not depend on the signs of directions."""
    sides = one.image_weights, one.text_weights
    return [one.image_mean, one.text_mean, *(left @ right.T for left in sides for right in sides)]


def vectors_of(model: LinearModel, beliefs: Beliefs) -> list[FoldVectors]:
    return [model.fold_vectors(fold, one) for fold, one in enumerate(model.fit(beliefs))]


def rounds(made: Made, shown: Shown, *, rows: np.ndarray | None = None, count: int = 2) -> Beliefs:
    """Rounds of fits and judgements."""
    model = made.model(shown, rows)
    beliefs = all_shown(len(shown.images))
    for _ in range(count):
        found, prior = judge(vectors_of(model, beliefs), shown)
        beliefs = posterior.beliefs(found, prior.rate, len(made.images))
    return beliefs


def dense_fit(made: Made, beliefs: Beliefs, rows: np.ndarray, ridge: cca.Ridge) -> cca.Projections:
    """Canonical correlations of weighted pairs, one pair after the other."""
    x, y = made.images.astype(np.float64), made.texts.astype(np.float64)
    sides = [
        cca.Side.from_moments(len(side), side.sum(0), side.T @ side, one)
        for side, one in ((x, linear.VECTORS), (y, ridge))
    ]
    cross, total = np.zeros((x.shape[1], y.shape[1])), 0.0
    for t in rows:
        believed = [(made.shown[t], beliefs.shown[t]), *zip(beliefs.images[t], beliefs.others[t], strict=True)]
        for image, weight in believed:
            cross += weight * np.outer(x[image] - x.mean(0), y[t] - y.mean(0))
            total += weight
    return cca.fit(cross / total, *sides, dimensions=DIMENSIONS)


@pytest.mark.parametrize("sparse", [False, True])
def test_each_fold_is_judged_by_weighted_pairs_of_the_other_folds(sparse: bool) -> None:
    made, beliefs = Made(sparse=sparse), some_beliefs()
    ridge = linear.WORDS if sparse else linear.VECTORS
    model = made.model()
    for fold, found in enumerate(model.fit(beliefs)):
        expected = dense_fit(made, beliefs, np.flatnonzero(made.folds != fold), ridge)
        for one, other in zip(products(found), products(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    expected = dense_fit(made, beliefs, np.arange(PAIRS), ridge)
    for one, other in zip(products(model.fit_all(beliefs)), products(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_vectors_of_a_fold_are_its_models_projections_of_length_one() -> None:
    made = Made()
    model = made.model()
    projections = model.fit(all_shown(PAIRS))
    for fold, one in enumerate(projections):
        found = model.fold_vectors(fold, one)
        assert found.rows.tolist() == np.flatnonzero(made.folds == fold).tolist()
        np.testing.assert_allclose(found.images, unit((made.images - one.image_mean) @ one.image_weights), atol=1e-5)
        np.testing.assert_allclose(found.texts, unit((made.texts - one.text_mean) @ one.text_weights), atol=1e-5)


def test_what_the_captions_of_a_fold_show_leaves_its_judge_bit_identical() -> None:
    made, beliefs = Made(), some_beliefs()
    before = made.model().fit(beliefs)
    for fold in range(FOLDS):
        rows = np.flatnonzero(made.folds == fold)
        shown = made.shown.copy()
        shown[rows] = np.roll(shown[rows], 5)  # images of the same fold
        others = beliefs.images.copy()
        others[rows] = others[rows[::-1]]
        after = made.model(made.pairs(images=shown)).fit(replace(beliefs, images=others))
        assert [same(one, other) for one, other in zip(before, after, strict=True)] == [
            other == fold for other in range(FOLDS)
        ]


def test_folds_are_drawn_by_image_and_of_nearly_equal_size() -> None:
    images = np.repeat(np.arange(42), 2)
    one, other, third = (divide(images, NONE, folds=4, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.folds, other.folds)
    assert not np.array_equal(one.folds, third.folds)
    assert all(len(set(one.folds[images == image])) == 1 for image in range(42))
    assert np.bincount(one.folds).tolist() == [22, 22, 20, 20]
    assert one.fitted.all()


def test_neither_a_decoy_nor_the_pair_whose_caption_it_repeats_gives_weight_to_any_fit() -> None:
    made = Made()
    originals = np.array([5, 50, 100])
    with_decoys = np.concatenate([made.shown, [1, 2, 3]])
    shown = divide(with_decoys, originals, folds=FOLDS, seed=0)
    fold_of_image = {image: set(shown.folds[with_decoys == image].tolist()) for image in with_decoys.tolist()}
    assert all(len(folds) == 1 for folds in fold_of_image.values())
    assert shown.fitted.tolist() == [True] * PAIRS + [False] * 3
    assert np.flatnonzero(~shown.taught).tolist() == [5, 50, 100, PAIRS, PAIRS + 1, PAIRS + 2]
    rows = np.concatenate([np.arange(PAIRS), originals])
    beliefs = some_beliefs(PAIRS + 3)
    changed = replace(beliefs, shown=beliefs.shown.copy(), images=beliefs.images.copy())
    changed.shown[~shown.taught] = 0.123
    changed.images[~shown.taught] = 7
    found, same_again = made.model(shown, rows).fit(beliefs), made.model(shown, rows).fit(changed)
    assert all(map(same, found, same_again))
    changed.shown[0] = 0.456
    assert not all(map(same, found, made.model(shown, rows).fit(changed)))


def test_a_decoy_is_believed_as_little_as_a_mismatch() -> None:
    made = Made(images=100)
    originals = np.flatnonzero(made.shown == made.belongs)[:60]
    decoys = (made.shown[originals] + 7) % 100
    rows = np.concatenate([np.arange(300), originals])
    shown = divide(np.concatenate([made.shown, decoys]), originals, folds=FOLDS, seed=0)
    believed = rounds(made, shown, rows=rows, count=3).shown
    right = made.shown == made.belongs
    means = [float(part.mean()) for part in (believed[:300][right], believed[:300][~right], believed[300:])]
    assert means[0] > 0.8
    assert max(means[1:]) < 0.2
    assert abs(means[1] - means[2]) < 0.06


def test_permuting_pairs_permutes_their_beliefs() -> None:
    made = Made()
    order = np.random.default_rng(0).permutation(PAIRS)
    plain = rounds(made, made.pairs())
    moved = rounds(made, made.pairs(images=made.shown[order], folds=made.folds[order]), rows=order)
    np.testing.assert_allclose(moved.shown, plain.shown[order], atol=1e-3)
    np.testing.assert_allclose(moved.others[:, 0], plain.others[order, 0], atol=1e-3)
    sure = plain.others[order, 0] > 0.2
    np.testing.assert_array_equal(moved.images[sure, 0], plain.images[order[sure], 0])


def test_rounds_find_the_mismatches_and_where_they_belong() -> None:
    made = Made(images=100)
    shown = divide(made.shown, NONE, folds=FOLDS, seed=0)
    found = rounds(made, shown, count=4)
    right = made.shown == made.belongs
    assert found.shown[right].mean() > 0.8
    assert found.shown[~right].mean() < 0.2
    assert (found.images[~right, 0] == made.belongs[~right]).mean() > 0.5
    assert ((found.shown + found.others.sum(1)) < 1 + 1e-5).all()


def test_means_far_from_zero_change_nothing() -> None:
    made, beliefs = Made(), some_beliefs()
    near = made.model().fit_all(beliefs)
    made.images = made.images * np.float32(0.01) + 30
    far = made.model().fit_all(beliefs)
    vectors = [linear.image_vectors(Stored(made.images), far), linear.image_vectors(Stored(Made().images), near)]
    np.testing.assert_allclose(vectors[0] @ vectors[0].T, vectors[1] @ vectors[1].T, atol=0.01)


def test_the_sample_of_a_temperature_is_not_larger_than_memory_allows() -> None:
    assert linear._sample_size(100) == linear.SAMPLE
    assert linear._sample_size(10**6) == 100


def test_judging_gives_each_caption_the_numbers_of_its_own_fold() -> None:
    made = Made()
    vectors = vectors_of(made.model(), all_shown(PAIRS))
    found, prior = judge(vectors, made.pairs(), others=3)
    for fold in vectors:
        rows = fold.rows[np.argsort(made.shown[fold.rows], kind="stable")]
        sims = posterior.Similarities(fold.images, fold.texts[rows], torch.from_numpy(made.shown[rows]))
        own = posterior.ratios(sims, prior.temperature, posterior.background(sims, prior.temperature), others=3)
        np.testing.assert_allclose(found.shown[rows], own.shown, atol=1e-5)
        np.testing.assert_array_equal(found.images[rows], own.images)
    assert prior.rate == pytest.approx(posterior.fit_rate(found.shown)[0])


@pytest.mark.parametrize("images", [2, 12])
def test_few_images_that_are_all_linked_by_decoys_are_divided_by_image_alone(images: int) -> None:
    shown = np.concatenate([np.repeat(np.arange(images), 2), np.roll(np.arange(images), 1)])
    divided = divide(shown, 2 * np.arange(images), folds=4, seed=0)
    assert len(np.unique(divided.folds)) == min(images, 4)
    assert all(len(set(divided.folds[shown == image])) == 1 for image in range(images))


def test_a_single_image_is_refused() -> None:
    with pytest.raises(InputError, match="only one image"):
        divide(np.zeros(5, np.int64), NONE, folds=4, seed=0)
