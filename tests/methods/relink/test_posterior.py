"""Beliefs in the images of captions: against loops over captions and images, and on data drawn from the model."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from crcl.methods.relink import posterior
from crcl.methods.relink.posterior import Ratios, Similarities, beliefs, fit_prior, fit_rate, image_offsets, ratios

IMAGES, CAPTIONS = 9, 23


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def some(images: int = IMAGES, captions: int = CAPTIONS, *, seed: int = 0) -> Similarities:
    """Captions near the images they show, more or less."""
    generator = torch.Generator().manual_seed(seed)
    vectors = unit(torch.randn(images, 6, generator=generator))
    shown = torch.randint(images, (captions,), generator=generator)
    texts = unit(vectors[shown] + 0.4 * torch.randn(captions, 6, generator=generator))
    return Similarities(vectors, texts, shown)


def matrix(sims: Similarities) -> np.ndarray:
    """Similarity of each caption with each image."""
    return (sims.texts @ sims.images.T).double().numpy()


def slow_offsets(sims: Similarities, temperature: float, counted: np.ndarray) -> np.ndarray:
    s, shown = matrix(sims), sims.shown.numpy()
    found = []
    for i in range(s.shape[1]):
        likeness = [np.exp(s[t, i] / temperature) for t in range(len(s)) if shown[t] != i and counted[t]]
        found.append(np.log(sum(likeness) / len(likeness)))
    return np.array(found) - sum(found) / len(found)


def slow_probabilities(sims: Similarities, temperature: float, offsets: np.ndarray) -> np.ndarray:
    """p(i | t), caption by caption."""
    s = matrix(sims)
    found = np.zeros_like(s)
    for t in range(len(s)):
        likeness = [np.exp(s[t, i] / temperature - offsets[i]) for i in range(s.shape[1])]
        found[t] = np.array(likeness) / sum(likeness)
    return found


@pytest.mark.parametrize("temperature", [0.05, 0.3])
def test_offsets_are_logarithms_of_means_over_the_captions_that_are_not_shown_with_the_image(
    temperature: float,
) -> None:
    sims = some()
    everyone = np.ones(CAPTIONS, dtype=bool)
    np.testing.assert_allclose(image_offsets(sims, temperature), slow_offsets(sims, temperature, everyone), atol=1e-4)
    counted = np.arange(CAPTIONS) % 3 > 0
    found = image_offsets(sims, temperature, torch.from_numpy(counted))
    np.testing.assert_allclose(found, slow_offsets(sims, temperature, counted), atol=1e-4)


def test_a_caption_does_not_change_the_offset_of_the_image_that_it_shows() -> None:
    sims = some()
    changed = sims.texts.clone()
    changed[4] = -changed[4]
    before, after = (image_offsets(Similarities(sims.images, t, sims.shown), 0.1) for t in (sims.texts, changed))
    own = int(sims.shown[4])
    moved = (after - after[own]) - (before - before[own])  # offsets are centred, so only differences mean something
    assert moved[own] == 0
    assert moved.abs().max() > 1e-3


@pytest.mark.parametrize("others", [0, 3, 50])
def test_ratios_are_those_of_a_softmax_to_a_random_image(others: int) -> None:
    sims = some()
    offsets = image_offsets(sims, 0.1)
    found = ratios(sims, 0.1, offsets, others=others)
    p = slow_probabilities(sims, 0.1, offsets.double().numpy())
    for t, own in enumerate(sims.shown.tolist()):
        assert found.shown[t] == pytest.approx(np.log(IMAGES * p[t, own]), abs=1e-4)
        order = [i for i in np.argsort(-p[t]) if i != own][: min(others, IMAGES - 1)]
        assert found.images[t].tolist() == order
        np.testing.assert_allclose(found.others[t], np.log(IMAGES * p[t, order]), atol=1e-4)


def test_beliefs_are_the_shares_of_a_mixture_and_add_up_to_one() -> None:
    sims, rate = some(), 0.3
    offsets = image_offsets(sims, 0.2)
    p = slow_probabilities(sims, 0.2, offsets.double().numpy())
    all_images = beliefs(ratios(sims, 0.2, offsets, others=IMAGES), rate, IMAGES)
    few = beliefs(ratios(sims, 0.2, offsets, others=2), rate, IMAGES)
    for t, own in enumerate(sims.shown.tolist()):
        parts = [rate / IMAGES * p[t, i] for i in range(IMAGES)]  # drawn at random
        matched = (1 - rate) * p[t, own]
        total = matched + sum(parts)
        assert all_images.shown[t] == pytest.approx(matched / total, abs=1e-4)
        for image, belief in zip(all_images.images[t], all_images.others[t], strict=True):
            assert belief == pytest.approx(parts[image] / total, abs=1e-4)
        by_chance = parts[own] / total  # shown with its own image by chance
        assert all_images.shown[t] + all_images.others[t].sum() + by_chance == pytest.approx(1, abs=1e-4)
        assert few.shown[t] + few.others[t].sum() <= 1 + 1e-6
    np.testing.assert_allclose(few.others, all_images.others[:, :2], atol=1e-6)


def test_beliefs_in_extreme_ratios_are_finite() -> None:
    extreme = Ratios(np.array([-800, 0, 800], np.float32), np.zeros((3, 1), np.int64), np.full((3, 1), 5, np.float32))
    found = beliefs(extreme, 0.4, 500)
    np.testing.assert_allclose(found.shown, [0, 0.6, 1], atol=1e-6)
    assert np.isfinite(found.others).all()
    rate, likelihood = fit_rate(extreme.shown)
    assert 0 < rate < 1
    assert np.isfinite(likelihood)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_the_rate_of_data_drawn_from_the_model_is_found(rate: float) -> None:
    """Given the captions' probabilities, an image is shown by these, or at random."""
    rng = np.random.default_rng(0)
    images, captions = 50, 4000
    p = rng.dirichlet(np.full(images, 0.05), captions)
    places = np.arange(captions)
    by_caption = (p.cumsum(1) < rng.random(captions)[:, None]).sum(1).clip(max=images - 1)
    shown = np.where(rng.random(captions) < rate, rng.integers(0, images, captions), by_caption)
    log_ratios = np.log(images * p[places, shown] + 1e-30)
    found, likelihood = fit_rate(log_ratios)
    assert found == pytest.approx(rate, abs=0.03)
    explained = [np.mean(np.log((1 - one) * np.exp(log_ratios) + one)) for one in (found, *np.linspace(0.01, 0.99, 99))]
    assert likelihood == pytest.approx(explained[0])
    assert max(explained[1:]) < likelihood + 1e-4  # no other rate explains them better


def tried(samples: list[Similarities]) -> Callable[[float], np.ndarray]:
    """Log-ratios of the shown images in these samples at a temperature."""
    return lambda temperature: np.concatenate(
        [ratios(one, temperature, image_offsets(one, temperature), others=0).shown for one in samples]
    )


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_the_rate_among_vectors_is_found_within_a_few_points(rate: float) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = unit(torch.randn(300, 16, generator=generator))
    belongs = torch.arange(300).repeat(3)
    texts = unit(vectors[belongs] + 0.2 * torch.randn(900, 16, generator=generator))
    wrong = torch.rand(900, generator=generator) < rate
    shown = torch.where(wrong, torch.randint(300, (900,), generator=generator), belongs)
    found = fit_prior(tried([Similarities(vectors, texts, shown)]))
    assert found.rate == pytest.approx(float((shown != belongs).float().mean()), abs=0.04)


@pytest.mark.parametrize("near", [None, 0.02, 0.3])
def test_the_temperature_is_the_one_of_the_grid_with_the_highest_likelihood(near: float | None) -> None:
    for seed in range(3):
        samples = [some(seed=seed), some(seed=seed + 10)]
        likelihoods = []
        for temperature in posterior.TEMPERATURES:
            likelihoods.append(fit_rate(tried(samples)(temperature))[1])
        found = fit_prior(tried(samples), near=near)
        assert found.temperature == posterior.TEMPERATURES[int(np.argmax(likelihoods))]
        assert 0 < found.rate < 1


def test_similarities_that_are_kept_and_those_in_blocks_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = torch.tensor([2, 9, 22]), torch.tensor([0, 3, 8]), torch.tensor([0.9, -0.5, 0.1])
    plain = some()
    counted = torch.arange(CAPTIONS) % 2 == 0
    found = []
    for kept in (True, False):
        if not kept:
            monkeypatch.setattr(posterior, "_KEPT", 0)
            monkeypatch.setattr(posterior, "_CELLS", 4 * IMAGES)  # blocks of four captions; the last has three
        sims = Similarities(plain.images, plain.texts, plain.shown, replaced=replaced)
        offsets = image_offsets(sims, 0.1, counted)
        assert (sims.kept is not None) == kept
        whole = torch.cat([block.clone() for _, block in sims.scaled(0.5)])
        expected = matrix(plain)
        expected[replaced[0], replaced[1]] = replaced[2]
        np.testing.assert_allclose(whole, expected / 0.5, atol=1e-5)
        found.append((offsets, ratios(sims, 0.1, offsets, others=3)))
    assert [rows.stop - rows.start for rows, _ in sims.scaled(0.1)] == [4] * 5 + [3]
    (offsets, one), (other_offsets, other) = found
    torch.testing.assert_close(offsets, other_offsets)
    np.testing.assert_allclose(one.shown, other.shown, atol=1e-4)
    np.testing.assert_array_equal(one.images, other.images)
    np.testing.assert_allclose(one.others, other.others, atol=1e-4)


def test_no_offset_is_lost_to_rounding_at_any_temperature() -> None:
    plain = some()
    vectors = torch.cat([plain.images, torch.zeros(1, 6)])  # such as an image whose features are all 0
    sims = Similarities(vectors, plain.texts, plain.shown)
    for temperature in posterior.TEMPERATURES:
        expected = slow_offsets(sims, temperature, np.ones(CAPTIONS, dtype=bool))
        np.testing.assert_allclose(image_offsets(sims, temperature), expected, atol=0.01)
