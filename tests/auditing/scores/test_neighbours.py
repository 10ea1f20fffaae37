"""LEMoN's fixed form agrees with the authors' numbers, and leaves out the captions of the same image."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from crcl.auditing.scores.neighbours import FIXED, Weights, neighbours

RECORDED = np.load(Path(__file__).parents[2] / "fixtures/scores/lemon.npz", allow_pickle=False)
FLAT = {"captions": 1.0, "images": 1.0, "near": 0.0, "fitting": 0.0}


def vectors(case: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    images, captions = (torch.from_numpy(RECORDED[f"{case}_{side}"]).double() for side in ("images", "captions"))
    name = f"{case}_image_of"
    shown = RECORDED[name] if name in RECORDED.files else np.arange(len(captions))
    return normalize(images), normalize(captions), torch.from_numpy(shown.astype(np.int64))


@pytest.mark.parametrize(
    ("data", "case", "k"),
    [
        *(("plain", "plain", k) for k in (5, 30)),
        *(("twins", "twins_other_images", k) for k in (6, 30)),
        *(("shared", "other_images", k) for k in (5, 30)),
    ],
)
@pytest.mark.parametrize(("name", "given"), [("fixed", {}), ("flat", FLAT)])
def test_the_score_is_the_authors_with_the_sign_turned(data: str, case: str, k: int, name: str, given: dict) -> None:
    found = neighbours(*vectors(data), weights=Weights(**{"neighbours": k, **given})).numpy()
    recorded = RECORDED[f"{case}_cosine_k{k}_score_{name}"]
    ties = f"{case}_cosine_k{k}_unambiguous"  # where two neighbours are equally near, either may be taken
    clear = RECORDED[ties].astype(bool) if ties in RECORDED.files else np.ones(len(recorded), dtype=bool)
    assert clear.sum() > 10
    np.testing.assert_allclose(found[clear], -recorded[clear], rtol=1e-6, atol=1e-6)


def test_the_default_is_the_setting_without_labels() -> None:
    weights = (FIXED.captions, FIXED.images, FIXED.near, FIXED.fitting, FIXED.near, FIXED.fitting)
    assert weights == tuple(RECORDED["options_fixed"].tolist())
    assert FIXED.neighbours == 30


def test_fewer_pairs_than_neighbours_are_averaged_over_those_there_are() -> None:
    images, captions, shown = vectors("plain")
    few = images[:4], captions[:4], shown[:4]
    torch.testing.assert_close(
        neighbours(*few, weights=Weights(neighbours=50)), neighbours(*few, weights=Weights(neighbours=3))
    )


def test_an_image_alone_has_no_neighbours_and_is_judged_by_its_distance() -> None:
    images, captions, _ = vectors("plain")
    shown = torch.zeros(5, dtype=torch.int64)
    torch.testing.assert_close(neighbours(images[:1], captions[:5], shown), captions[:5] @ images[0] - 1)


def test_images_that_no_pair_shows_change_nothing() -> None:
    images, captions, shown = vectors("twins")
    more = torch.cat([images, -images[:3]])
    torch.testing.assert_close(neighbours(more, captions, shown), neighbours(images, captions, shown))
