"""Decoys among data with copies: none of them is a pair that is right after all."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from crcl.data import decoys
from crcl.data.split import Split

Tiny = Callable[..., Split]
TEXTS = [f"text {number} of a dog" for number in range(400)]


def old_draw(pairs: Split, share: float, seed: int) -> np.ndarray:
    """The decoys as they were drawn before copies were looked for."""
    rng = np.random.default_rng([0xDEC0, seed])
    count = max(round(share * len(pairs)), min(50, len(pairs) // 4), 1)
    captions = np.sort(rng.permutation(len(pairs))[:count])
    images = decoys._others_nearby(pairs.image_index[captions], pairs.images, rng)
    shown: dict[str, set[int]] = {pairs.captions[caption]: set() for caption in captions}
    for text, image in zip(pairs.captions, pairs.image_index.tolist(), strict=True):
        if text in shown:
            shown[text].add(image)
    for place, caption in enumerate(captions):
        known = shown[pairs.captions[caption]]
        if int(images[place]) in known:
            tries = rng.integers(pairs.images, size=1000).tolist()
            images[place] = next((image for image in tries if image not in known), images[place])
    return np.stack([captions, images], axis=1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_data_without_copies_gets_the_decoys_it_always_got(tiny: Tiny, seed: int) -> None:
    pairs = tiny(images=80, captions=5)
    plain = replace(pairs, captions=TEXTS)
    np.testing.assert_array_equal(decoys.draw(plain, 0.5, seed), old_draw(plain, 0.5, seed))
    repeated = replace(pairs, captions=[TEXTS[number % 150] for number in range(400)])  # texts with several images
    np.testing.assert_array_equal(decoys.draw(repeated, 0.9, seed), old_draw(repeated, 0.9, seed))


def doubled(tiny: Tiny, noise: float) -> Split:
    """Images 0 to 7, and seven (near) copies of each."""
    pairs = replace(tiny(images=64, captions=5, regions=6, size=20), captions=TEXTS[:320])
    features = np.array(pairs.features)
    features[8:] = np.tile(features[:8], (7, 1, 1)) + noise * np.random.default_rng(1).normal(size=(56, 6, 20))
    return replace(pairs, features=features)


@pytest.mark.parametrize("noise", [0, 0.02])
def test_no_decoy_shows_a_copy_of_the_caption_s_own_image(tiny: Tiny, noise: float) -> None:
    pairs = doubled(tiny, noise)
    drawn = decoys.draw(pairs, 0.9, seed=0)
    assert len(drawn) == 288
    assert (pairs.image_index[drawn[:, 0]] % 8 != drawn[:, 1] % 8).all()
    before = old_draw(pairs, 0.9, seed=0)
    assert (pairs.image_index[before[:, 0]] % 8 == before[:, 1] % 8).any()  # so it was needed
    np.testing.assert_array_equal(decoys.draw(pairs, 0.9, seed=0), drawn)
    near = decoys.draw(pairs, 0.9, seed=0, near=1.0)
    assert (near == before).all()  # 1: near copies are not looked for


def test_images_with_the_same_pixels_are_copies_whatever_their_features(tiny: Tiny) -> None:
    pairs = replace(tiny(images=64, captions=5), captions=TEXTS[:320])
    hashes = (np.arange(64) % 8).astype(np.uint8).repeat(32).reshape(64, 32)
    drawn = decoys.draw(replace(pairs, contents=hashes), 0.9, seed=0)
    assert (pairs.image_index[drawn[:, 0]] % 8 != drawn[:, 1] % 8).all()


def test_no_decoy_shows_an_image_or_its_copy_that_carries_the_same_words(tiny: Tiny) -> None:
    texts = [f"Text  {number % 100}" if number % 2 else f"text {number % 100}" for number in range(300)]
    texts = [text.upper() if number > 150 else text for number, text in enumerate(texts)]
    hashes = (np.arange(60) // 2).astype(np.uint8).repeat(32).reshape(60, 32)
    pairs = replace(tiny(images=60, captions=5), captions=texts, contents=hashes)
    drawn = decoys.draw(pairs, 0.9, seed=0)
    real = {(" ".join(text.lower().split()), image // 2) for text, image in zip(texts, pairs.image_index, strict=True)}
    decoy = {(" ".join(texts[caption].lower().split()), image // 2) for caption, image in drawn.tolist()}
    assert not decoy & real


def test_a_caption_that_says_nothing_of_one_image_is_no_decoy(tiny: Tiny) -> None:
    texts = [*TEXTS[:300], *(["a photo"] * 60), *(f"IMG_{number}.JPG" for number in range(40))]
    pairs = replace(tiny(images=80, captions=5), captions=texts)
    pairs = replace(pairs, image_index=np.random.default_rng(0).permutation(pairs.image_index))
    drawn = decoys.draw(pairs, 0.5, seed=0)
    assert len(drawn) == 200
    assert drawn[:, 0].max() < 300
    everything = decoys.draw(replace(pairs, captions=["a photo"] * 400), 0.1, seed=0)
    assert len(everything) == 50  # there is nothing else


def test_where_all_images_are_copies_there_are_decoys_all_the_same(tiny: Tiny) -> None:
    pairs = replace(tiny(images=8, captions=5), captions=TEXTS[:40], contents=np.zeros((8, 32), dtype=np.uint8))
    drawn = decoys.draw(pairs, 0.5, seed=0)
    assert len(drawn) == 20
    assert (pairs.image_index[drawn[:, 0]] != drawn[:, 1]).all()
