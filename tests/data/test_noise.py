"""Mismatches by the field's two protocols, and its index files."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crcl.data import noise
from crcl.data.split import Split
from crcl.errors import InputError

FIELD = Path(__file__).parents[1] / "fixtures" / "field"


def make_pairs(images: int, each: int) -> Split:
    """`each` captions for each of `images` images, with one number as features."""
    return Split(
        captions=[""] * (images * each),
        image_index=np.arange(images * each) // each,
        features=np.zeros((images, 1, 1), np.float16),
        image_ids=[str(image) for image in range(images)],
        source="train_ims.npy",
    )


index_maps = st.lists(st.integers(0, 30), min_size=1, max_size=80).map(np.array)
rates = st.floats(0, 1)
levels = st.sampled_from(noise.LEVELS)
seeds = st.integers(0, 2**32)


@settings(deadline=None)
@given(index_maps, rates, seeds)
def test_caption_level_noise_moves_images_only_among_the_chosen_captions(
    image_index: np.ndarray, rate: float, seed: int
) -> None:
    index = noise.mismatch(image_index, rate, seed)
    assert sorted(index) == sorted(image_index)
    assert (index != image_index).sum() <= int(rate * len(image_index))


@settings(deadline=None)
@given(index_maps, rates, seeds)
def test_image_level_noise_is_a_permutation_of_the_images(image_index: np.ndarray, rate: float, seed: int) -> None:
    index = noise.mismatch(image_index, rate, seed, level="image")
    assert sorted(index) == list(range(image_index.max() + 1))
    assert (index != np.arange(len(index))).sum() <= int(rate * len(index))


@settings(deadline=None)
@given(index_maps, rates, seeds, levels)
def test_the_same_seed_gives_the_same_index(image_index: np.ndarray, rate: float, seed: int, level: str) -> None:
    before = image_index.copy()
    first = noise.mismatch(image_index, rate, seed, level=level)  # type: ignore[arg-type]
    assert np.array_equal(first, noise.mismatch(image_index, rate, seed, level=level))  # type: ignore[arg-type]
    assert np.array_equal(image_index, before)


@pytest.mark.parametrize(("level", "count"), [("caption", 1000), ("image", 200)])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4, 0.8, 1.0])
def test_the_share_of_mismatches_is_the_rate_but_for_fixed_points(level: str, count: int, rate: float) -> None:
    image_index = np.arange(1000) // 5
    index = noise.mismatch(image_index, rate, seed=3, level=level)  # type: ignore[arg-type]
    moved = (index != (image_index if level == "caption" else np.arange(200))).sum()
    assert int(rate * count) * 0.98 - 4 <= moved <= int(rate * count)


def test_other_seeds_give_other_mismatches() -> None:
    image_index = np.arange(100)
    assert not np.array_equal(noise.mismatch(image_index, 0.5, 0), noise.mismatch(image_index, 0.5, 1))


def test_images_without_captions_can_be_counted_in() -> None:
    assert len(noise.mismatch(np.array([0, 1]), 0.5, 0, level="image", images=7)) == 7


def test_truth_of_a_caption_level_index_is_where_the_image_is_the_captions_own() -> None:
    pairs = noise.apply(make_pairs(3, 2), np.array([0, 1, 1, 0, 2, 2]))
    assert pairs.image_index.tolist() == [0, 1, 1, 0, 2, 2]
    assert pairs.truth is not None
    assert pairs.truth.tolist() == [True, False, True, False, True, True]


def test_truth_of_an_image_level_index_is_where_the_image_stays() -> None:
    pairs = noise.apply(make_pairs(3, 2), np.array([2, 1, 0]))
    assert pairs.image_index.tolist() == [2, 2, 1, 1, 0, 0]
    assert pairs.truth is not None
    assert pairs.truth.tolist() == [False, False, True, True, False, False]


def test_with_one_caption_per_image_both_kinds_are_the_same() -> None:
    pairs = make_pairs(50, 1)
    for level in noise.LEVELS:
        index = noise.mismatch(pairs.image_index, 0.5, 1, level=level)  # type: ignore[arg-type]
        shown = noise.apply(pairs, index)
        assert np.array_equal(shown.image_index, index)
        assert np.array_equal(shown.truth, index == np.arange(50))


def test_the_published_caption_level_file_mismatches_40_percent_of_the_captions() -> None:
    pairs = noise.apply(make_pairs(29_000, 5), noise.read_index(FIELD / "f30k_caption_level_0.4.npy"))
    assert pairs.truth is not None
    assert (~pairs.truth).sum() == pytest.approx(58_000, abs=10)
    assert (np.bincount(pairs.image_index) == 5).all()


def test_the_published_image_level_file_mismatches_40_percent_of_the_images() -> None:
    pairs = noise.apply(make_pairs(29_000, 5), noise.read_index(FIELD / "f30k_image_level_0.4.npy"))
    assert pairs.truth is not None
    assert (~pairs.truth).sum() == pytest.approx(5 * 11_600, abs=50)


def test_an_index_survives_writing_and_reading(tmp_path: Path) -> None:
    index = noise.mismatch(np.arange(20) // 2, 0.5, 0)
    noise.write_index(tmp_path / "noise", index)
    again = noise.read_index(tmp_path / "noise")
    assert np.array_equal(again, index)
    assert again.dtype == np.int64


@pytest.mark.parametrize("rate", [-0.1, 1.01, float("nan"), float("inf"), 40])
def test_a_rate_outside_0_to_1_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match=f"noise rate is {rate}, expected a number from 0 to 1"):
        noise.mismatch(np.arange(4), rate, 0)


def test_an_unknown_level_and_a_negative_seed_are_refused() -> None:
    with pytest.raises(InputError, match=r"unknown noise level 'captions' \(did you mean 'caption'\?\)"):
        noise.mismatch(np.arange(4), 0.5, 0, level="captions")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="noise seed is -1"):
        noise.mismatch(np.arange(4), 0.5, -1)


def test_an_index_of_a_wrong_length_is_refused_with_both_that_fit() -> None:
    with pytest.raises(
        InputError, match=r"has 5 entries; train_ims.npy needs 6 \(one per caption\) or 3 \(one per image\)"
    ):
        noise.apply(make_pairs(3, 2), np.zeros(5, dtype=np.int64))


def test_an_index_out_of_range_is_refused_with_the_places() -> None:
    with pytest.raises(InputError, match="has 2 entries outside the image rows 0 to 2: entry 1 is 3, entry 4 is -1"):
        noise.apply(make_pairs(3, 2), np.array([0, 3, 1, 1, -1, 2]))


def test_noise_on_noise_is_refused() -> None:
    pairs = noise.apply(make_pairs(3, 2), np.array([2, 1, 0]))
    with pytest.raises(InputError, match="have injected noise already"):
        noise.apply(pairs, np.array([2, 1, 0]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.array([0, "a"], dtype=object), "contains Python objects, which are never loaded"),
        (np.array([0.0, 1.0]), "numbers are float64, expected int64"),
        (np.zeros((2, 2), dtype=np.int64), r"shape \(2, 2\), expected a 1-D array"),
        (np.zeros(0, dtype=np.int64), "empty"),
    ],
)
def test_a_file_that_is_no_index_is_refused(tmp_path: Path, content: np.ndarray, message: str) -> None:
    np.save(tmp_path / "noise.npy", content, allow_pickle=True)
    with pytest.raises(InputError, match=rf"noise\.npy: {message}"):
        noise.read_index(tmp_path / "noise.npy")


def test_a_missing_index_file_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "noise_0.4.npy").touch()
    with pytest.raises(InputError, match=r"noise_0.5.npy: not found \(did you mean 'noise_0.4.npy'\?\)"):
        noise.read_index(tmp_path / "noise_0.5.npy")
