"""Beliefs in the images of captions: against loops over captions and images, and on data drawn from the model."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from crcl.methods.relink import posterior
from crcl.methods.relink.posterior import Ratios, Similarities, background, beliefs, fit_prior, fit_rate, ratios

IMAGES, CAPTIONS = 9, 23


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def some(images: int = IMAGES, captions: int = CAPTIONS, *, seed: int = 0) -> Similarities:
    """Captions near the images they show, more or less."""
    generator = torch.Generator().manual_seed(seed)
    vectors = unit(torch.randn(images, 6, generator=generator))
    shown = torch.randint(images, (captions,), generator=generator).sort().values
    texts = unit(vectors[shown] + 0.4 * torch.randn(captions, 6, generator=generator))
    return Similarities(vectors, texts, shown)


def matrix(sims: Similarities) -> np.ndarray:
    """Similarity of each caption with each image."""
    return (sims.texts @ sims.images.T).double().numpy()


def slow_offsets(sims: Similarities, temperature: float, counted: np.ndarray) -> np.ndarray:
    """a(i, t) of every caption and image."""
    s, shown = matrix(sims), sims.shown.numpy()
    found = np.zeros_like(s)
    for t in range(len(s)):
        for i in range(s.shape[1]):
            others = [u for u in range(len(s)) if counted[u] and shown[u] != i and shown[u] != shown[t]]
            found[t, i] = np.log(np.mean(np.exp(s[others, i] / temperature)))
    return found


def slow_probabilities(sims: Similarities, temperature: float, counted: np.ndarray | None = None) -> np.ndarray:
    """p(i | t), caption by caption."""
    counts = np.ones(len(sims), dtype=bool) if counted is None else counted
    likeness = np.exp(matrix(sims) / temperature - slow_offsets(sims, temperature, counts))
    return likeness / likeness.sum(1, keepdims=True)


def test_the_background_is_a_sum_over_the_captions_that_are_not_shown_with_the_image() -> None:
    sims, counted = some(), torch.arange(CAPTIONS) % 3 > 0
    found = background(sims, 0.2, counted)
    for image in range(IMAGES):
        others = [t for t in range(CAPTIONS) if counted[t] and sims.shown[t] != image]
        expected = np.exp((matrix(sims)[others, image] - 0.5) / 0.2).sum()
        assert found.total[image].item() == pytest.approx(expected, rel=1e-4)
        assert found.captions[image] == len(others)


def test_an_image_that_fits_a_stray_caption_very_well_is_still_that_captions_image() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = unit(torch.randn(200, 64, generator=generator))
    texts = unit(vectors + 0.02 * torch.randn(200, 64, generator=generator))
    shown = torch.arange(200)
    shown[:40] = shown[:40].roll(1)  # the others match
    order = torch.argsort(shown)
    sims = Similarities(vectors, texts[order], shown[order])
    found = beliefs(ratios(sims, 0.1, background(sims, 0.1)), 0.2, 200)
    stray = order < 40
    assert found.shown[stray].max() < 0.05
    assert found.shown[~stray].min() > 0.95
    np.testing.assert_array_equal(found.images[stray, 0], order[stray])


@pytest.mark.parametrize("others", [0, 3, 50])
def test_ratios_are_those_of_a_softmax_to_a_random_image(others: int) -> None:
    sims = some()
    counted = torch.arange(CAPTIONS) % 4 > 0
    found = ratios(sims, 0.1, background(sims, 0.1, counted), others=others)
    p = slow_probabilities(sims, 0.1, counted.numpy())
    for t, own in enumerate(sims.shown.tolist()):
        assert found.shown[t] == pytest.approx(np.log(IMAGES * p[t, own]), abs=1e-4)
        order = [i for i in np.argsort(-p[t]) if i != own][: min(others, IMAGES - 1)]
        assert found.images[t].tolist() == order
        np.testing.assert_allclose(found.others[t], np.log(IMAGES * p[t, order]), atol=1e-4)


def test_beliefs_are_the_shares_of_a_mixture_and_add_up_to_one() -> None:
    sims, rate = some(), 0.3
    known = background(sims, 0.2)
    p = slow_probabilities(sims, 0.2)
    all_images = beliefs(ratios(sims, 0.2, known, others=IMAGES), rate, IMAGES)
    few = beliefs(ratios(sims, 0.2, known, others=2), rate, IMAGES)
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
        [ratios(one, temperature, background(one, temperature), others=0).shown for one in samples]
    )


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_the_rate_among_vectors_is_found_within_a_few_points(rate: float) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = unit(torch.randn(300, 16, generator=generator))
    belongs = torch.arange(300).repeat(3)
    texts = unit(vectors[belongs] + 0.2 * torch.randn(900, 16, generator=generator))
    wrong = torch.rand(900, generator=generator) < rate
    shown = torch.where(wrong, torch.randint(300, (900,), generator=generator), belongs)
    order = shown.argsort(stable=True)
    found = fit_prior(tried([Similarities(vectors, texts[order], shown[order])]))
    assert found.rate == pytest.approx(float((shown != belongs).float().mean()), abs=0.04)


@pytest.mark.parametrize("near", [None, 0.02, 0.3])
def test_the_temperature_is_the_one_of_the_grid_with_the_highest_likelihood(near: float | None) -> None:
    for seed in range(3):
        samples = [some(60, 300, seed=seed), some(60, 300, seed=seed + 10)]
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
        known = background(sims, 0.1, counted)
        assert (sims.kept is not None) == kept
        whole = torch.cat([block.clone() for _, block in sims.scaled(0.5)])
        expected = matrix(plain)
        expected[replaced[0], replaced[1]] = replaced[2]
        np.testing.assert_allclose(whole, expected / 0.5, atol=1e-5)
        found.append((known.total, ratios(sims, 0.1, known, others=3)))
    edges = [rows.stop for rows, _ in sims.scaled(0.1)]
    assert all(4 >= stop - start > 0 for start, stop in zip([0, *edges], edges, strict=False))
    # captions shown together are in one block, if they are not too many for it
    together = {int(image): int((sims.shown == image).sum()) for image in sims.shown.unique()}
    assert all(sims.shown[edge - 1] != sims.shown[edge] or together[int(sims.shown[edge])] > 4 for edge in edges[:-1])
    (totals, one), (other_totals, other) = found
    torch.testing.assert_close(totals, other_totals, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(one.shown, other.shown, atol=1e-4)
    np.testing.assert_array_equal(one.images, other.images)
    np.testing.assert_allclose(one.others, other.others, atol=1e-4)


def test_no_offset_is_lost_to_rounding_at_any_temperature() -> None:
    plain = some()
    vectors = torch.cat([plain.images, torch.zeros(1, 6)])  # such as an image whose features are all 0
    sims = Similarities(vectors, plain.texts, plain.shown)
    for temperature in posterior.TEMPERATURES:
        found = ratios(sims, temperature, background(sims, temperature), others=0)
        assert np.isfinite(found.shown).all()
        if temperature < 0.015:  # one caption may be 10^12 times all others there, so that nothing is left without it
            continue
        p = slow_probabilities(sims, temperature)[np.arange(CAPTIONS), sims.shown]
        believed = p > 1e-4
        assert believed.sum() > 10
        np.testing.assert_allclose(found.shown[believed], np.log(len(vectors) * p[believed]), atol=0.05)
