"""Captions of one image help each other: against loops, never themselves, and as far as their fates differ."""

import numpy as np
import pytest
import torch

from crcl.methods.relink import siblings as module
from crcl.methods.relink.posterior import Similarities
from crcl.methods.relink.siblings import FoldVectors, Network, Shown, Siblings, compare, shared_fate

IMAGES, PAIRS, DECOYS = 6, 15, 2


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def some(seed: int = 0) -> tuple[FoldVectors, Shown]:
    """Pairs of six images, one of them with a single caption; two decoys repeat the captions 3 and 8."""
    rng = np.random.default_rng(seed)
    shown = np.concatenate([np.arange(PAIRS) % 5, [5], [1, 2]])
    originals = np.array([3, 8])
    texts = unit(rng.normal(size=(PAIRS + 1, 4)))
    texts = np.concatenate([texts, texts[originals]]).astype(np.float32)
    images = unit(rng.normal(size=(IMAGES, 4))).astype(np.float32)
    fold = FoldVectors(np.arange(len(shown)), torch.from_numpy(images), torch.from_numpy(texts))
    return fold, Shown(shown, np.zeros(len(shown), np.int64), originals)


def values(sims: Similarities) -> np.ndarray:
    """Similarity of each caption with each image."""
    return torch.cat([block.clone() for _, block in sims.scaled(1.0)]).numpy()


def slow(fold: FoldVectors, shown: Shown, siblings: Siblings) -> np.ndarray:
    """Similarity of each caption with each image, one by one."""
    images, texts = fold.images.double().numpy(), fold.texts.double().numpy()
    pairs = len(shown.images) - len(shown.originals)
    found = np.zeros((len(texts), len(images)))
    for t in range(len(texts)):
        itself = t if t < pairs else int(shown.originals[t - pairs])  # the pair of the same caption
        asked = texts[t].copy()
        for other in range(pairs):
            if other not in (t, itself) and shown.images[other] == shown.images[t]:
                asked += siblings.together * texts[other]
        for i in range(len(images)):
            of_image = [other for other in range(pairs) if shown.images[other] == i]
            strength = module.STRENGTH * (1 - siblings.together) * (len(of_image) > 1)
            if itself in of_image:  # the others count for it
                strength *= len(of_image) / max(len(of_image) - 1, 1)
            described = images[i].copy()
            for other in of_image:
                if other != itself:
                    described += strength * siblings.beliefs[other] * texts[other]
            found[t, i] = unit(asked) @ unit(described)
    return found


@pytest.mark.parametrize("together", [0.0, 0.4, 1.0])
def test_similarities_are_those_of_a_loop_in_which_no_caption_helps_itself(together: float) -> None:
    fold, shown = some()
    siblings = Siblings(np.random.default_rng(1).random(len(shown.images)).astype(np.float32), together)
    sims = compare(fold, shown, fold.rows, siblings)
    found = values(sims)
    np.testing.assert_allclose(found, slow(fold, shown, siblings), atol=1e-5)
    some_rows = np.array([0, 4, 15, 17])
    few = compare(fold, shown, some_rows, siblings)
    np.testing.assert_allclose(values(few), found[some_rows], atol=1e-6)


@pytest.mark.parametrize("together", [0.0, 0.4, 1.0])
def test_a_decoy_with_an_exchanged_word_is_not_helped_by_the_caption_that_it_was_made_of(together: float) -> None:
    fold, shown = some()
    text = torch.from_numpy(unit(np.random.default_rng(7).normal(size=(1, 4))).astype(np.float32))
    fold = FoldVectors(np.arange(19), fold.images, torch.cat([fold.texts, text]))
    shown = Shown(np.append(shown.images, shown.images[7]), np.zeros(19, np.int64), np.append(shown.originals, 7))
    siblings = Siblings(np.random.default_rng(1).random(19).astype(np.float32), together)
    found = values(compare(fold, shown, fold.rows, siblings))
    np.testing.assert_allclose(found, slow(fold, shown, siblings), atol=1e-5)
    np.testing.assert_allclose(values(compare(fold, shown, np.array([2, 18]), siblings)), found[[2, 18]], atol=1e-6)
    other = FoldVectors(fold.rows, fold.images, fold.texts.clone())
    other.texts[7] = -other.texts[7]
    np.testing.assert_allclose(
        values(compare(other, shown, np.array([18]), siblings))[0, shown.images[7]],
        found[18, shown.images[7]],
        atol=1e-6,
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("helped", [False, True])
def test_a_network_counts_with_its_share_and_siblings_help_the_linear_model_alone(share: float, helped: bool) -> None:
    fold, shown = some()
    siblings = Siblings(np.random.default_rng(1).random(len(shown.images)).astype(np.float32), 0.2) if helped else None
    rng = np.random.default_rng(2)
    images, texts = (torch.from_numpy(unit(rng.normal(size=(n, 5))).astype(np.float32)) for n in (IMAGES, 18))
    rows = np.array([1, 7, 16, 17])
    linear = compare(fold, shown, rows, siblings)
    both = Network(images, texts, share).beside(linear, torch.from_numpy(rows))
    expected = share * (texts[rows] @ images.T).numpy() + (1 - share) * values(linear)
    np.testing.assert_allclose(values(both), expected, atol=1e-5)
    assert torch.equal(both.shown, linear.shown)


def test_the_belief_in_a_caption_changes_nothing_for_itself() -> None:
    fold, shown = some()
    beliefs = np.full(len(shown.images), 0.5, np.float32)
    changed = beliefs.copy()
    changed[7] = 1
    one, other = (values(compare(fold, shown, fold.rows, Siblings(each, 0.0))) for each in (beliefs, changed))
    np.testing.assert_allclose(one[7], other[7], atol=1e-6)
    assert (np.abs(one - other)[[2, 12], shown.images[7]] > 1e-3).all()  # its siblings do see it


def test_without_beliefs_and_with_separate_fates_siblings_change_nothing() -> None:
    fold, shown = some()
    plain, helped = (
        values(compare(fold, shown, fold.rows, siblings))
        for siblings in (None, Siblings(np.zeros(len(shown.images), np.float32), 0.0))
    )
    np.testing.assert_allclose(plain, helped, atol=1e-6)


def slow_fate(beliefs: np.ndarray, images: np.ndarray) -> float:
    mean = sum(beliefs) / len(beliefs)
    products = [
        (beliefs[s] - mean) * (beliefs[t] - mean)
        for s in range(len(images))
        for t in range(len(images))
        if s != t and images[s] == images[t]
    ]
    return sum(products) / len(products) / (sum((beliefs - mean) ** 2) / len(beliefs))


def test_where_all_are_believed_there_is_no_fate_to_share() -> None:
    images = np.repeat(np.arange(50), 2)
    beliefs = (0.9999 + 1e-4 * np.random.default_rng(0).random(50)[images]).astype(np.float32)
    assert shared_fate(beliefs, images) == 0


def test_shared_fate_is_the_correlation_of_siblings() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 12, 40)
    beliefs = (0.5 * rng.random(12)[images] + 0.5 * rng.random(40)).astype(np.float32)
    expected = slow_fate(beliefs.astype(np.float64), images)
    assert 0.2 < expected < 1
    assert shared_fate(beliefs, images) == pytest.approx(expected, abs=1e-5)


def test_fates_are_shared_where_whole_images_are_wrong_and_not_where_captions_are() -> None:
    rng = np.random.default_rng(0)
    images = np.repeat(np.arange(400), 5)
    assert shared_fate((rng.random(400) < 0.5)[images].astype(np.float32), images) == pytest.approx(1)
    assert shared_fate((rng.random(2000) < 0.5).astype(np.float32), images) < 0.05


def test_where_no_image_has_two_captions_or_all_beliefs_agree_no_fate_is_shared() -> None:
    assert shared_fate(np.random.default_rng(0).random(9).astype(np.float32), np.arange(9)) == 0
    assert shared_fate(np.ones(6, np.float32), np.array([0, 0, 1, 1, 2, 2])) == 0
