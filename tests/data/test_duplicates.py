"""Copies: equal and nearly equal images, equal captions, and captions that say nothing of one image."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crcl.data import duplicates
from crcl.data.duplicates import Likeness, find_copies, folded, is_file_name, nearest, shared_images
from crcl.data.maps.shards import Shards
from crcl.data.split import Split

Tiny = Callable[..., Split]


def with_features(pairs: Split, change: Callable[[np.ndarray], None]) -> Split:
    features = np.array(pairs.features)
    change(features)
    return replace(pairs, features=features)


def test_images_with_the_same_pixels_are_copies_of_the_first(tiny: Tiny) -> None:
    hashes = np.arange(6, dtype=np.uint8).repeat(32).reshape(6, 32)
    hashes[4] = hashes[1]
    hashes[5] = hashes[1]
    found = find_copies(replace(tiny(images=6), contents=hashes))
    assert found.same.tolist() == [0, 1, 2, 3, 1, 1]


def test_without_hashes_images_with_equal_features_are_copies(tiny: Tiny) -> None:
    def change(features: np.ndarray) -> None:
        features[5] = features[0]
        features[3] = features[2] + 1e-3

    found = find_copies(with_features(tiny(images=6), change))
    assert found.same.tolist() == [0, 1, 2, 3, 4, 0]


def slow_nearest(pairs: Split, least: float) -> tuple[list[int], np.ndarray]:
    """All images compared with all, one by one."""
    flat = np.asarray(pairs.features, dtype=np.float64).reshape(pairs.images, -1)
    flat = flat - flat.mean(0)
    near, similarity = [], []
    for one in range(pairs.images):
        of = [
            -1.0
            if other == one
            else flat[one] @ flat[other] / np.sqrt((flat[one] @ flat[one]) * (flat[other] @ flat[other]))
            for other in range(pairs.images)
        ]
        best = int(np.argmax(of))
        near.append(best if of[best] >= least else -1)
        similarity.append(of[best] if of[best] >= least else np.nan)
    return near, np.array(similarity)


@pytest.mark.parametrize("least", [0.3, 0.9])
def test_near_copies_are_those_that_a_comparison_of_all_with_all_finds(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, least: float
) -> None:
    rng = np.random.default_rng(0)

    def change(features: np.ndarray) -> None:
        features += 3  # the mean image is far from zero
        for copy in range(5):
            features[30 + copy] = features[copy] + 0.1 * rng.normal(size=features[0].shape)

    pairs = with_features(tiny(images=40, regions=6, size=8), change)
    monkeypatch.setattr(duplicates, "_DIRECTIONS", 4)  # sketches that rule out little
    monkeypatch.setattr(duplicates, "_PROMISING", 40)
    monkeypatch.setattr(duplicates, "_BYTES", 4 * 6 * 8 * 40)  # several blocks
    near, similarity = nearest(pairs, np.arange(40), least)
    expected, cosine = slow_nearest(pairs, least)
    assert near.tolist() == expected
    np.testing.assert_allclose(similarity, cosine, rtol=1e-5)
    assert sum(number >= 0 for number in expected) >= 10
    assert (near[:5] == np.arange(30, 35)).all()
    assert (near[30:35] == np.arange(5)).all()


def test_a_sketch_never_rules_out_a_near_copy(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = tiny(images=50, regions=3, size=20)
    monkeypatch.setattr(duplicates, "_DIRECTIONS", 7)
    likeness = Likeness(pairs)
    sketches = likeness.sketches(np.arange(50))
    assert sketches.shape == (50, 8)
    one, other = (side.ravel() for side in np.meshgrid(np.arange(50), np.arange(50)))
    assert (sketches @ sketches.T >= likeness.similarity(other, one).reshape(50, 50) - 1e-5).all()


def test_near_copies_of_the_same_features_are_searched_once(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(duplicates, "_KEPT", 20)
    searches: list[float] = []

    def counted(pairs: Split, images: np.ndarray, least: float, *more: Any) -> tuple[np.ndarray, np.ndarray]:
        searches.append(least)
        return nearest(pairs, images, least, *more)

    monkeypatch.setattr(duplicates, "nearest", counted)
    pairs = with_features(tiny(images=20), lambda features: features.__setitem__(7, features[3] + 1e-3))
    once, again = find_copies(pairs), find_copies(replace(pairs, captions=["other"] * len(pairs)))
    assert (once.near[7], once.near[3]) == (3, 7)
    np.testing.assert_array_equal(again.near, once.near)
    np.testing.assert_array_equal(again.similarity, once.similarity)
    assert len(searches) == 1
    find_copies(pairs, least=0.5)
    find_copies(with_features(pairs, lambda features: features.__setitem__(0, features[0] * 2)))
    assert len(searches) == 3
    find_copies(tiny(images=19))
    assert len(list((tmp_path / "crcl/copies").iterdir())) == 3
    wrong = [
        np.zeros((2, 1)),
        np.array([[99.0], [0], [1]]),
        np.array([[0.0], [99], [1]]),
        np.array([[0.0], [np.nan], [1]]),
    ]
    for content in [b"", b"no array", *wrong]:  # what is not whole is made again
        for file in (tmp_path / "crcl/copies").iterdir():
            file.write_bytes(content) if isinstance(content, bytes) else np.save(file, content)
        np.testing.assert_array_equal(find_copies(pairs).near, once.near)
    assert len(searches) == 4 + 6


def test_the_default_similarity_tells_copies_from_others_of_a_drawing() -> None:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(200, 36, 16)).astype(np.float32)
    features[100] = features[7] + 0.1 * rng.normal(size=features[7].shape)  # cosine 0.995
    features[101] = features[8] + 0.5 * rng.normal(size=features[8].shape)  # cosine 0.89
    pairs = Split(["x"] * 200, np.arange(200), features, [str(number) for number in range(200)])
    found = find_copies(pairs)
    assert np.flatnonzero(found.near >= 0).tolist() == [7, 100]
    assert found.near[[7, 100]].tolist() == [100, 7]
    assert found.similarity[7] == found.similarity[100] > 0.99


def test_near_copies_are_searched_without_exact_ones_and_not_among_too_many(tiny: Tiny) -> None:
    def change(features: np.ndarray) -> None:
        features[1] = features[0]
        features[2] = features[0] * 1.01

    pairs = with_features(tiny(images=12), change)
    found = find_copies(pairs)
    assert found.same[1] == 0
    assert found.near[:3].tolist() == [2, -1, 0]
    assert find_copies(pairs, most=11).searched is False
    assert (find_copies(pairs, most=11).near == -1).all()
    assert (find_copies(pairs, least=1).near == -1).all()


def test_equal_images_of_zeros_are_no_error() -> None:
    pairs = Split(["x"] * 4, np.arange(4), np.zeros((4, 1, 3), dtype=np.float32), list("abcd"))
    found = find_copies(pairs)
    assert found.same.tolist() == [0] * 4
    assert (found.near == -1).all()


def test_copies_of_another_split_are_counted(tiny: Tiny) -> None:
    train = tiny(images=6)
    dev = with_features(tiny(images=4, seed=1), lambda features: features.__setitem__(slice(0, 2), train.features[3]))
    assert shared_images(train, dev) == 2
    hashes = np.arange(10, dtype=np.uint8).repeat(32).reshape(10, 32)
    assert shared_images(replace(train, contents=hashes[:6]), replace(dev, contents=hashes[5:9])) == 1


def test_what_all_pairs_share_is_named(tiny: Tiny) -> None:
    pairs = tiny()
    assert duplicates.all_alike(pairs) == ""
    assert duplicates.all_alike(replace(pairs, captions=["A dog "] + ["a dog"] * (len(pairs) - 1))) == (
        "all captions are the same"
    )
    constant = replace(pairs, features=np.ones_like(pairs.features))
    assert duplicates.all_alike(constant) == "all images have the same features"
    vectors = np.ones((len(pairs), 3), np.float32)
    alike = replace(pairs, text_features=Shards([vectors], ["vectors"]))
    assert duplicates.all_alike(alike) == "all vectors of captions are the same"
    vectors[-1] = 0
    assert duplicates.all_alike(replace(pairs, text_features=Shards([vectors], ["vectors"]))) == ""


def test_captions_are_equal_whatever_their_case_and_spaces() -> None:
    assert folded("  A  red\tDOG ") == folded("a red dog") == "a red dog"
    assert duplicates.same_captions(["A dog", "a cat", "a  DOG", "a dog."]).tolist() == [0, 1, 0, 3]


@pytest.mark.parametrize(
    "caption",
    ["IMG_1234.JPG", "img 1234", "DSC00017", "my dog 2.png", "P1010042", "20190823_141500", "photo 3", "Untitled-1",
     "d41d8cd98f00b204e9800998ecf8427e", "holiday/beach.jpeg", "1234567890_a1b2c3d4e5"],
)  # fmt: skip
def test_names_of_files_are_told_as_such(caption: str) -> None:
    assert is_file_name(caption)


@pytest.mark.parametrize(
    "caption",
    ["a dog", "dog", "1990", "two dogs run", "an image of 3 dogs", "photo", "the 100 best photos", "dsc",
     "img of a cat", "a cat . jpg files lie around on the old desk", "facade", "x" * 5000, "image 3 of a red dog",
     "", "click here to see my best photo at home.jpg"],
)  # fmt: skip
def test_words_are_no_names_of_files(caption: str) -> None:
    assert not is_file_name(caption)


def test_a_pattern_cannot_be_made_slow() -> None:
    # with nested repetition such texts would take longer than anybody waits
    texts = ("a " * 100, "1" * 199 + "!", "_" * 200 + "!", "img" + "1 " * 97 + "!", "0_" * 100 + "!")
    assert [text for text in texts if is_file_name(text)] == []


def test_captions_that_many_different_images_carry_are_generic() -> None:
    assert [duplicates.generic_limit(images) for images in (10, 2_000, 4_000, 20_000, 10**6)] == [10, 10, 20, 100, 100]
    captions = ["a photo"] * 9 + ["A  Photo"] + ["rare"] * 9 + ["often"] * 12 + ["IMG_1.JPG", "a dog"]
    images = np.array([*range(10), *range(9), *([0] * 12), 3, 4])
    generic = duplicates.generic_captions(captions, images, images=100)
    assert {caption for caption, flag in zip(captions, generic, strict=True) if flag} == {
        "a photo",
        "A  Photo",
        "IMG_1.JPG",
    }
    assert not (generic & ~np.isin(captions, ["a photo", "A  Photo", "IMG_1.JPG"])).any()


def test_copies_of_one_image_count_once_for_its_caption(tiny: Tiny) -> None:
    pairs = tiny(images=12, captions=1)
    same = replace(pairs, captions=["a red dog"] * 12, contents=np.zeros((12, 32), dtype=np.uint8))
    assert not find_copies(same).generic.any()
    assert find_copies(replace(same, contents=None)).generic.all()
