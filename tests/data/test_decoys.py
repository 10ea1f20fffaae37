"""Decoys of all kinds: none of them is a pair that is right after all, and the random ones are as ever."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from crcl.data import decoys
from crcl.data.decoys import Decoys
from crcl.data.duplicates import Likeness, folded
from crcl.data.maps.shards import Shards
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


COLOURS, THINGS = ["red", "blue", "green", "white"], ["dog", "cat", "car", "bus", "boat"]


def grouped(tiny: Tiny, *, groups: int = 12, of: int = 10, captions: int = 2) -> Split:
    """Images that resemble those of their group: image i is of group i modulo the number of groups."""
    pairs = tiny(images=groups * of, captions=captions, regions=3, size=24)
    centres = np.random.default_rng(1).normal(size=(groups, 1, 24))
    features = (centres[np.arange(groups * of) % groups] + 0.4 * np.array(pairs.features)).astype(np.float32)
    rng = np.random.default_rng(2)
    texts = [f"a {rng.choice(COLOURS)} {rng.choice(THINGS)} number {number}" for number in range(len(pairs))]
    return replace(pairs, features=features, captions=texts)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_random_decoys_stay_the_same_beside_other_kinds(tiny: Tiny, seed: int) -> None:
    pairs = grouped(tiny)
    alone = decoys.draw(pairs, 0.25, seed)
    np.testing.assert_array_equal(decoys.draw_kinds(pairs, 0.25, seed, kinds=["random"]).drawn, alone)
    found = decoys.draw_kinds(pairs, 0.25, seed)
    np.testing.assert_array_equal(found.drawn[: len(alone)], alone)
    assert found.kinds.tolist() == ["random"] * 60 + ["near"] * 20 + ["swap"] * 20
    again = decoys.draw_kinds(pairs, 0.25, seed)
    assert found.equals(again)
    assert not found.equals(decoys.draw_kinds(pairs, 0.25, seed + 1))
    assert not found.equals(None)


@pytest.mark.parametrize(
    ("pairs", "share", "each"), [(240, 0.05, 20), (240, 0.5, 20), (3000, 0.05, 30), (600, 0.05, 25)]
)
def test_other_kinds_are_a_fifth_as_many_but_neither_few_nor_more_than_a_twelfth(
    tiny: Tiny, pairs: int, share: float, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = grouped(tiny, of=pairs // 24)
    found = decoys.draw_kinds(data, share, seed=0)
    assert [(found.kinds == kind).sum() for kind in ("near", "swap")] == [each, each]
    monkeypatch.setattr(decoys, "MOST", 15)
    assert len(decoys.draw_kinds(data, share, seed=0, kinds=["near", "swap"])) == 30


def test_no_caption_is_in_two_decoys(tiny: Tiny) -> None:
    found = decoys.draw_kinds(grouped(tiny, captions=1), 0.5, seed=0)
    assert len(np.unique(found.drawn[:, 0])) == len(found) == 60 + 10 + 10


def test_a_near_decoy_has_the_caption_of_a_similar_image(tiny: Tiny) -> None:
    pairs = grouped(tiny)
    found = decoys.draw_kinds(pairs, 0.25, seed=0)
    own = pairs.image_index[found.drawn[:, 0]]
    near = found.kinds == "near"
    assert (own[near] != found.drawn[near, 1]).all()
    assert (own[near] % 12 == found.drawn[near, 1] % 12).mean() > 0.8  # nine of the ten most similar are of the group
    similarity = Likeness(pairs).similarity(own, found.drawn[:, 1])
    assert similarity[near].mean() > similarity[found.kinds == "random"].mean() + 0.3
    assert len(np.unique(found.drawn[near, 1])) == near.sum()  # each with an image of its own


@pytest.mark.parametrize("contents", [False, True])
def test_a_near_decoy_shows_no_copy_of_the_caption_s_image_nor_one_with_the_same_words(
    tiny: Tiny, contents: bool
) -> None:
    pairs = grouped(tiny)
    features = np.array(pairs.features)
    features[60:] = features[:60] if not contents else features[60:]  # image i + 60 is a copy of image i
    hashes = (np.arange(120) % 60).astype(np.uint8).repeat(32).reshape(120, 32)
    texts = [f"a red dog {number % 40}" for number in range(240)]
    pairs = replace(pairs, features=features, captions=texts, contents=hashes if contents else None)
    found = decoys.draw_kinds(pairs, 0.25, seed=0, kinds=["near"])
    assert len(found) == 20
    assert (pairs.image_index[found.drawn[:, 0]] % 60 != found.drawn[:, 1] % 60).all()
    real = {(text, image) for text, image in zip(texts, pairs.image_index.tolist(), strict=True)}
    assert not real & {(texts[caption], image) for caption, image in found.drawn.tolist()}


def test_where_all_images_are_copies_there_are_no_near_decoys(tiny: Tiny) -> None:
    pairs = grouped(tiny)
    same = replace(pairs, features=np.ones_like(pairs.features))
    assert decoys.draw_kinds(same, 0.25, seed=0).kinds.tolist() == ["random"] * 60 + ["swap"] * 20


def test_a_swap_decoy_is_the_image_s_own_caption_but_for_one_word_of_the_data(tiny: Tiny) -> None:
    pairs = grouped(tiny)
    found = decoys.draw_kinds(pairs, 0.25, seed=0, kinds=["swap"])
    assert len(found.texts) == len(found) == 20
    for text, (caption, image) in zip(found.texts, found.drawn.tolist(), strict=True):
        assert image == pairs.image_index[caption]
        changed = [
            (old, new) for old, new in zip(pairs.captions[caption].split(), text.split(), strict=True) if old != new
        ]
        assert len(changed) == 1
        assert any({*changed[0]} <= {*words} for words in (COLOURS, THINGS))


def test_a_swap_decoy_is_no_caption_of_its_image_or_of_a_copy(tiny: Tiny) -> None:
    pairs = tiny(images=60, captions=2)
    hashes = (np.arange(60) // 2).astype(np.uint8).repeat(32).reshape(60, 32)
    texts = [f"{['A  red', 'a blue', 'a green', 'a white'][number % 4]} dog {number // 4}" for number in range(120)]
    found = decoys.draw_kinds(replace(pairs, captions=texts, contents=hashes), 0.2, seed=0, kinds=["swap"])
    assert len(found) == 0  # an image and its copy have all colours
    found = decoys.draw_kinds(replace(pairs, captions=texts), 0.2, seed=0, kinds=["swap"])
    assert len(found) == 10
    for text, image in zip(found.texts, found.drawn[:, 1], strict=True):
        assert folded(text) not in {folded(texts[2 * image]), folded(texts[2 * image + 1])}


def test_words_that_come_in_are_common_enough_and_among_the_first(tiny: Tiny) -> None:
    texts = [
        f"a {'green' if number else 'pink'} thing, {number} times on {'snow' if number % 2 else 'sand'}"
        for number in range(240)
    ]
    pairs = replace(grouped(tiny), captions=texts)
    assert len(decoys.draw_kinds(pairs, 0.25, seed=0, kinds=["swap"], fewest=2)) == 20
    first = decoys.draw_kinds(pairs, 0.25, seed=0, kinds=["swap"], longest=3)
    assert all("pink thing" in text for text in first.texts)
    assert len(first) == 20
    both = decoys.draw_kinds(pairs, 0.25, seed=0, kinds=["swap"], longest=3, fewest=2)
    assert both.drawn[:, 0].tolist() == [0]  # only there "green" comes in


def test_decoys_follow_the_pairs_with_texts_and_vectors_of_their_own(tiny: Tiny) -> None:
    pairs = replace(tiny(images=6, captions=1), text_features=Shards([np.eye(6, dtype=np.float32)]))
    texts = (pairs.captions[4] + " red",)
    drawn, kinds = np.array([[1, 2], [4, 4]]), np.array(["near", "swap"])
    both = decoys.add(pairs, Decoys(drawn, kinds, texts, np.full((1, 6), 0.5, dtype=np.float16)))
    assert list(both.captions[6:]) == [pairs.captions[1], *texts]
    assert both.image_index[6:].tolist() == [2, 4]
    np.testing.assert_array_equal(both.gather_texts(np.array([0, 6, 7])), [np.eye(6)[0], np.eye(6)[1], [0.5] * 6])
    words = decoys.add(pairs, Decoys(drawn, kinds, texts))
    assert list(words.captions) == list(both.captions)
    np.testing.assert_array_equal(words.rows, [0, 1, 2, 3, 4, 5, 1, 4])
    assert decoys.add(pairs, drawn).captions[7] == pairs.captions[4]


def test_some_of_the_swaps_can_be_left_out() -> None:
    found = Decoys(np.arange(8).reshape(4, 2), np.array(["random", "near", "swap", "swap"]), ("a", "b"))
    some = found.keep_swaps(np.array([False, True]))
    assert (some.drawn[:, 0].tolist(), some.kinds.tolist(), some.texts) == (
        [0, 2, 6],
        ["random", "near", "swap"],
        ("b",),
    )
