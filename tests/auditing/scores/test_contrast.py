"""negCLIPLoss agrees with the authors' numbers, and does not overflow."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from crcl.auditing.scores.contrast import batch_contrast, contrast

RECORDED = np.load(Path(__file__).parents[2] / "fixtures/scores/negcliploss.npz", allow_pickle=False)


def vectors(case: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    images, captions = (torch.from_numpy(RECORDED[f"{case}_{side}"]).double() for side in ("images", "captions"))
    name = f"{case}_image_of"
    shown = RECORDED[name] if name in RECORDED.files else np.arange(len(captions))
    return images, captions, torch.from_numpy(shown.astype(np.int64))


@pytest.mark.parametrize("case", ["plain", "shared"])
@pytest.mark.parametrize("setting", ["whole", "batches", "warm"])
def test_the_score_of_a_batch_is_the_authors_but_for_the_logarithm_of_its_size(case: str, setting: str) -> None:
    images, captions, shown = vectors(case)
    size, temperature, passes = RECORDED[f"options_{setting}"]
    total = np.zeros(len(captions))
    for order in RECORDED[f"{case}_{setting}_permutations"]:
        for rows in torch.from_numpy(order.astype(np.int64)).split(int(size)):
            score = batch_contrast(images[shown[rows]], captions[rows], float(temperature))
            total[rows.numpy()] += score.numpy() - temperature * np.log(len(rows))
    np.testing.assert_allclose(total / passes, RECORDED[f"{case}_{setting}_score"], rtol=1e-6, atol=1e-6)


def test_a_large_cosine_does_not_overflow() -> None:
    images, captions, shown = vectors("overflow")
    found = contrast(images.float(), captions.float(), shown, batch=4, passes=1)
    assert torch.isfinite(found).all()
    assert abs(float(found[0]) - 0.01 * np.log(4)) < 1e-6  # the sum's form gives -1.5e-14
    assert not np.isfinite(RECORDED["overflow_score"]).all()


def test_batches_have_one_size_and_the_seed_decides() -> None:
    images, captions, shown = vectors("plain")
    one, again, other = (contrast(images, captions, shown, batch=16, passes=2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    whole = contrast(images, captions, shown, batch=40, passes=3)
    torch.testing.assert_close(whole, batch_contrast(images, captions, 0.01))


def test_a_caption_that_fits_everything_gains_nothing_by_it() -> None:
    generator = torch.Generator().manual_seed(0)
    images = normalize(torch.randn(200, 32, generator=generator) + 1)
    captions = normalize(images + 0.1 * torch.randn(200, 32, generator=generator))
    captions[0] = normalize(images.mean(0), dim=0)  # a caption that is near to all images
    score = contrast(images, captions, torch.arange(200), temperature=0.05)
    assert score.argmin() == 0


def test_pairs_far_below_the_best_of_their_batch_are_judged_as_exactly_as_others() -> None:
    generator = torch.Generator().manual_seed(0)
    images = normalize(torch.randn(60, 8, generator=generator))
    captions = normalize(torch.randn(60, 8, generator=generator))
    captions[0] = images[0]
    images[1], captions[1] = torch.eye(8)[0], -torch.eye(8)[0]
    for temperature in (0.05, 0.005):
        sims = images.double() @ captions.double().T / temperature
        exact = sims.diagonal() - (sims.logsumexp(0) + sims.logsumexp(1)) / 2 + np.log(60)
        found = batch_contrast(images, captions, temperature)
        torch.testing.assert_close(found.double(), temperature * exact, atol=1e-6, rtol=1e-6)
    lonely = torch.stack([torch.eye(3)[0], torch.eye(3)[1]])
    apart = torch.stack([torch.eye(3)[0], -torch.eye(3)[1]])  # the second caption fits nothing: cosines 0 and -1
    found = batch_contrast(lonely, apart, 0.005)
    assert torch.isfinite(found).all()
    assert float(found[1]) < -0.4
