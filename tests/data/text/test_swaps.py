"""One word of a caption is exchanged for another that excludes it, and nothing else changes."""

import re
from collections import Counter

import numpy as np
import pytest

from crcl.data.duplicates import folded
from crcl.data.text.swaps import NOUNS, OTHERS, WORDS, count_listed, plural, swap

EVERY = Counter(dict.fromkeys(OTHERS, 1))
CAPTIONS = [
    "A man in a red shirt walks two dogs on the left.",
    "Three women behind a table; the tallest wears a blue hat",
    'the "old" church above the river',
    "BLACK CAT",
    "a boy's bike\nin front of the house",
]


def words(text: str) -> list[str]:
    return re.findall(r"\w+|\W+", text)


@pytest.mark.parametrize("caption", CAPTIONS)
@pytest.mark.parametrize("seed", range(20))
def test_exactly_one_word_differs_and_its_form_and_case_stay(caption: str, seed: int) -> None:
    text = swap(caption, EVERY, np.random.default_rng(seed))
    assert text is not None
    before, after = words(caption), words(text)
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1
    old, new = changed[0]
    assert new.lower() in OTHERS[old.lower()]
    assert (old.isupper(), old[0].isupper()) == (new.isupper(), new[0].isupper())
    assert text == swap(caption, EVERY, np.random.default_rng(seed))


def test_every_listed_word_is_drawn_sooner_or_later() -> None:
    seen = {swap(CAPTIONS[0], EVERY, np.random.default_rng(seed)) for seed in range(400)}
    changed = {
        old for text in seen for old, new in zip(words(CAPTIONS[0]), words(str(text)), strict=True) if old != new
    }
    assert changed == {"man", "red", "shirt", "two", "dogs", "left"}


@pytest.mark.parametrize(
    "caption",
    [
        "",
        "a photo",
        "in the evening",
        "a white-haired wo-man",
        "T-shirt",
        "redder",
        "Bär, rot",
        "left_2 red7",
        "IMG_2.JPG",
    ],
)
def test_nothing_is_exchanged_where_no_whole_word_is_listed(caption: str) -> None:
    assert swap(caption, EVERY, np.random.default_rng(0)) is None


def test_only_words_of_the_data_come_in_and_the_common_ones_rather() -> None:
    counts = count_listed(["A red car", *["the GREEN door"] * 90, *["blue"] * 10, "redder, pink-ish"])
    assert counts == {"red": 1, "car": 1, "green": 90, "blue": 10}
    texts = Counter(swap("red", counts, np.random.default_rng(seed)) for seed in range(400))
    assert set(texts) == {"green", "blue"}
    assert 0.8 < texts["green"] / 400 < 0.97
    assert swap("a truck", Counter({"truck": 3}), np.random.default_rng(0)) is None


def test_what_the_caption_has_already_does_not_come_in() -> None:
    for seed in range(20):
        assert swap("red and blue", Counter(red=1, blue=1), np.random.default_rng(seed)) is None
        assert swap("red, blue", Counter(red=1, blue=1, pink=1), np.random.default_rng(seed)) in (
            "pink, blue",
            "red, pink",
        )


def test_a_and_an_stay_right() -> None:
    for seed in range(30):
        assert swap("a dog", Counter(elephant=9, cat=1), np.random.default_rng(seed)) == "a cat"
    assert swap("An orange", Counter(red=1), np.random.default_rng(0)) is None


def test_texts_to_avoid_do_not_come_out_whatever_their_case_and_spaces() -> None:
    counts, avoid = Counter(red=1, blue=1, pink=1), {folded("BLUE   car")}
    assert {swap("red car", counts, np.random.default_rng(seed), avoid=avoid) for seed in range(20)} == {"pink car"}
    avoid.add("pink car")
    assert swap("red car", counts, np.random.default_rng(0), avoid=avoid) is None


def test_words_behind_the_last_that_is_read_stay() -> None:
    for seed in range(20):
        text = swap("a red car on a blue beach", EVERY, np.random.default_rng(seed), longest=3)
        assert text is not None
        assert text.endswith("on a blue beach")
    assert swap("on the very red car", EVERY, np.random.default_rng(0), longest=3) is None


def test_words_that_may_mean_the_same_are_never_exchanged_for_each_other() -> None:
    for kinds in (WORDS, NOUNS):
        for group in (group for groups in kinds.values() for group in groups):
            for meaning in (found.split("/") for found in group.split()):
                assert len(set(meaning)) == len(meaning)
                assert not any(set(OTHERS[word]) & set(meaning) for word in meaning)
    assert all(word in OTHERS[other] for word, others in OTHERS.items() for other in others)
    assert "gray" not in OTHERS["grey"]
    assert "bike" not in OTHERS["motorcycle"]


@pytest.mark.parametrize(
    ("noun", "several"),
    [("dog", "dogs"), ("puppy", "puppies"), ("boy", "boys"), ("bus", "buses"), ("bench", "benches")],
)
def test_plurals(noun: str, several: str) -> None:
    assert plural(noun) == several
