"""The search for similar images agrees with a comparison of all with all."""

from collections.abc import Callable

import numpy as np
import pytest

from crcl.data import nearby
from crcl.data.nearby import nearest_images
from crcl.data.split import Split


@pytest.mark.parametrize("held", [64 * 2**20, 500])
def test_they_are_those_of_a_comparison_of_all_with_all(
    tiny: Callable[..., Split], monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(nearby, "_BYTES", held)  # few bytes: one image at a time
    pairs = tiny(images=40, regions=3, size=6)
    asked, among = np.array([3, 30, 39]), np.arange(5, 40)
    found = nearest_images(pairs, asked, among, 7, np.random.default_rng(0))
    pooled = np.asarray(pairs.features).mean(1)
    step = np.linspace(0, 34, min(35, max(held // (4 * 18), 1))).astype(int)
    centred = pooled - pooled[among[step]].mean(0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    for image, similar in zip(asked, found, strict=True):
        order = among[np.argsort(-(unit[among] @ unit[image]))]
        assert similar.tolist() == order[order != image][:7].tolist()


def test_where_there_are_fewer_the_rest_is_none(tiny: Callable[..., Split]) -> None:
    found = nearest_images(tiny(images=4), np.array([0, 1]), np.array([1, 2]), 3, np.random.default_rng(0))
    assert [sorted(row) for row in found.tolist()] == [[-1, 1, 2], [-1, -1, 2]]
    assert found[0, 2] == -1
    assert nearest_images(tiny(images=4), np.array([0]), np.empty(0, int), 3, np.random.default_rng(0)).tolist() == [
        [-1, -1, -1]
    ]


def test_of_very_many_a_sample_is_searched(tiny: Callable[..., Split], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby, "MOST", 10)
    pairs = tiny(images=60)
    found = nearest_images(pairs, np.arange(60), np.arange(60), 59, np.random.default_rng(0))
    there = set(np.unique(found).tolist()) - {-1}
    assert len(there) == 10
    assert (np.sort(found, axis=1)[:, :49] == -1).all()
