"""A split: the one door to the features, truth, and parts that do not fit together."""

from pathlib import Path

import numpy as np
import pytest

from crcl.data.maps.shards import Shards
from crcl.data.split import Split
from crcl.errors import InputError


def make_pairs(features: np.ndarray, /, **changes: object) -> Split:
    """Two captions for each row of features."""
    count = len(features)
    parts: dict[str, object] = {
        "captions": [f"caption {i}" for i in range(2 * count)],
        "image_index": np.repeat(np.arange(count), 2),
        "features": features,
        "image_ids": [f"{i}.jpg" for i in range(count)],
        "source": "train_ims.npy",
    }
    return Split(**(parts | changes))  # type: ignore[arg-type]


@pytest.fixture
def stored(tmp_path: Path) -> np.ndarray:
    """A read-only memory map of four images, (4, 3, 5) float16."""
    np.save(tmp_path / "train_ims.npy", np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float16))
    return np.load(tmp_path / "train_ims.npy", mmap_mode="r")


def test_pairs_count_captions_and_images(stored: np.ndarray) -> None:
    pairs = make_pairs(stored)
    assert (len(pairs), pairs.images) == (8, 4)


def test_pairs_show_their_counts_and_not_their_captions(stored: np.ndarray) -> None:
    images, regions, size = stored.shape
    pairs = make_pairs(stored)
    assert repr(pairs) == f"Split({len(pairs)} pairs, {images} images of {regions} x {size} numbers)"
    vectors = Shards([np.zeros((len(pairs), 7), np.float32)], ["vectors"])
    assert "vectors of captions of 7 numbers" in repr(make_pairs(stored, text_features=vectors))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ">f4"])
def test_gather_gives_a_fresh_float32_copy_of_the_images_asked_for(dtype: str) -> None:
    features = np.arange(24, dtype=dtype).reshape(4, 2, 3)
    gathered = make_pairs(features).gather(np.array([3, 0, 3]))
    assert gathered.dtype == np.float32
    assert np.array_equal(gathered, features[[3, 0, 3]])
    gathered[:] = -1
    assert features.min() == 0


def test_writing_into_what_was_gathered_leaves_the_file_alone(stored: np.ndarray) -> None:
    pairs, before = make_pairs(stored), np.array(stored)
    pairs.gather(np.arange(4))[:] = 0
    assert np.array_equal(stored, before)
    assert np.array_equal(pairs.gather(np.arange(4)), before.astype(np.float32))


def test_the_digest_of_features_is_that_of_what_is_read_not_of_how_it_is_stored(stored: np.ndarray) -> None:
    digest = make_pairs(stored).features_digest()
    turned = make_pairs(stored[::-1].astype(np.float32), feature_rows=np.array([3, 2, 1, 0]))
    assert turned.features_digest() == digest
    for row in range(4):
        other = np.array(stored)
        other[row, 0, 0] += 1
        assert make_pairs(other).features_digest() != digest
    assert make_pairs(stored.reshape(4, 5, 3)).features_digest() != digest
    texts = Shards([np.ones((8, 2), np.float32)])
    assert make_pairs(stored, text_features=texts).features_digest() != digest


def test_the_digest_of_many_features_reads_a_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crcl.data.split._DIGESTED", 4 * 15 * 10)
    features = np.zeros((1000, 3, 5), np.float32)
    digest = make_pairs(features).features_digest()
    features[1] = 1
    assert make_pairs(features).features_digest() == digest
    features[-1] = 1
    assert make_pairs(features).features_digest() != digest


def test_feature_rows_say_where_an_image_is_stored(stored: np.ndarray) -> None:
    pairs = make_pairs(stored[:2], features=stored, feature_rows=np.array([3, 1]))
    assert np.array_equal(pairs.gather(np.array([0, 1])), stored[[3, 1]].astype(np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_with_file_row_and_id(value: float) -> None:
    features = np.zeros((4, 2, 3), dtype=np.float32)
    features[2, 1, 1] = value
    pairs = make_pairs(features[:2], features=features, feature_rows=np.array([0, 2]))
    assert pairs.gather(np.array([0])).shape == (1, 2, 3)
    with pytest.raises(InputError, match=r"train_ims.npy: NaN or infinity in row 2 \(image '1.jpg'\); compute"):
        pairs.gather(np.array([0, 1]))


def test_large_numbers_whose_sum_overflows_are_not_refused() -> None:
    features = np.full((4, 2, 3), 3e38, dtype=np.float32)
    assert np.isfinite(make_pairs(features).gather(np.arange(4))).all()


def test_blind_pairs_have_no_truth(stored: np.ndarray) -> None:
    pairs = make_pairs(stored, truth=np.ones(8, dtype=bool))
    assert pairs.blind().truth is None
    assert pairs.truth is not None


def test_showing_other_images_makes_truth_where_they_stay(stored: np.ndarray) -> None:
    shown = make_pairs(stored).show(np.array([0, 1, 1, 0, 2, 2, 3, 3]))
    assert shown.truth is not None
    assert shown.truth.tolist() == [True, False, True, False, True, True, True, True]
    assert shown.image_index.tolist() == [0, 1, 1, 0, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_index": np.arange(3)}, "8 captions need an image index of as many entries"),
        ({"image_index": np.array([0, 1, 2, 3, 4, 0, 0, 0])}, "must be from 0 to 3"),
        ({"image_ids": ["a", "b"]}, "4 images have features, but 2 have ids"),
        ({"features": np.zeros((4, 2), np.float32)}, r"shape \(4, 2\), expected \(images, regions, size\)"),
        ({"truth": np.ones(3, dtype=bool)}, r"truth has shape \(3,\)"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(
    stored: np.ndarray, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_pairs(stored, **changes)


def test_showing_a_wrong_number_of_images_is_refused(stored: np.ndarray) -> None:
    with pytest.raises(InputError, match="8 captions need an image index of as many entries"):
        make_pairs(stored).show(np.arange(4))
