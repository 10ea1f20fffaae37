"""Exchanging one word of a caption, so that it becomes nearly right but wrong.

Words of one group exclude each other: what is red is not blue. A word is exchanged for another of its group, in the
same form: "dogs" for "cats", never for "cat". `/` joins words that may mean the same, which are never exchanged for one
another. The lists are English. Captions without a listed word have nothing to exchange.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from crcl.data.duplicates import folded

WORDS: dict[str, tuple[str, ...]] = {
    "colour": ("red blue green yellow white black brown orange pink purple/violet grey/gray",),
    "number": ("two three four five six seven eight nine ten",),
    "place": (
        "left right",
        "above/over below/under/beneath/underneath",
        "top bottom",
        "front back/rear",
        "inside/indoors outside/outdoors",
        "behind beside",
    ),
    "people": (
        "man/guy/gentleman woman/lady",
        "men/guys/gentlemen women/ladies",
        "male female",
        "husband wife",
        "king queen",
        "young old/elderly",
    ),
    "noun": (
        "snow sand grass water/ocean/sea mud",
        "soccer/football basketball baseball/softball tennis hockey rugby volleyball golf",
        "jeans/pants/trousers shorts",
    ),
}
"""Words that have one form only here."""
NOUNS: dict[str, tuple[str, ...]] = {
    "people": ("boy girl", "father/dad mother/mom/mum", "son daughter", "brother sister"),
    "noun": (
        "dog/puppy cat/kitten horse/pony cow/bull bird/duck bear elephant zebra giraffe monkey rabbit/bunny lion tiger",
        "car/taxi/van truck bus train bicycle/bike/motorcycle/motorbike boat/ship/canoe/kayak airplane/plane tractor",
        "skateboard surfboard snowboard bicycle/bike/motorcycle/motorbike",
        "beach mountain/hill street/road/sidewalk park/garden/field/meadow forest river/lake desert",
        "shirt jacket/coat dress sweater vest",
        "hat/cap helmet",
        "chair table bed couch/sofa bench desk",
        "pizza sandwich cake salad banana apple",
        "guitar piano drum violin trumpet",
        "house church tower bridge",
        "kitchen bathroom bedroom",
        "tree/bush flower",
        "circle/disc square/box triangle star cross/plus diamond/rhombus heart",
    ),
}
"""Words that have a plural too."""
_WORD = re.compile(r"(?<![\w'’-])[A-Za-z]+(?![\w-])")
_VOWELS = "aeiou"


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    if noun.endswith("y") and noun[-2] not in _VOWELS:
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"


def _others() -> dict[str, tuple[str, ...]]:
    """For each listed word, the words that it may be exchanged for."""
    found: dict[str, dict[str, None]] = {}
    fixed, nouns = (
        [[meaning.split("/") for meaning in group.split()] for groups in kinds.values() for group in groups]
        for kinds in (WORDS, NOUNS)
    )
    plurals = [[[plural(word) for word in meaning] for meaning in group] for group in nouns]
    for group in (*fixed, *nouns, *plurals):
        for meaning in group:
            others = [word for other in group if other is not meaning for word in other]
            for word in meaning:
                found.setdefault(word, {}).update(dict.fromkeys(others))
    return {word: tuple(others) for word, others in found.items()}


OTHERS = _others()
"""For each listed word, the words that it may be exchanged for."""


def count_listed(captions: Iterable[str]) -> Counter[str]:
    """How often each listed word occurs in captions."""
    return Counter(
        word for caption in captions for found in _WORD.findall(caption) if (word := found.lower()) in OTHERS
    )


def swap(
    caption: str,
    counts: Mapping[str, int],
    rng: np.random.Generator,
    *,
    avoid: Collection[str] = (),
    longest: int | None = None,
) -> str | None:
    """The caption with one word exchanged for one that it does not have; None if nothing can be exchanged.

    The word is a random one of those that are listed. What it is exchanged for is drawn by how often it occurs: if rare
    words were drawn as often as common ones, the text alone would tell that it was changed.

    Args:
        caption: The caption.
        counts: How often words occur in the data; only these come in.
        rng: Draws the word and what it is exchanged for.
        avoid: Texts that must not come out, as `folded` gives them.
        longest: Only the first so many words are exchanged, since no more are read.
    """
    found = [match for match in _WORD.finditer(caption) if match.group().lower() in OTHERS]
    there = {match.group().lower() for match in found}
    if longest is not None:
        found = [match for match in found if len(caption[: match.start()].split()) < longest]
    for number in rng.permutation(len(found)).tolist():
        match = found[number]
        word, before = match.group(), caption[: match.start()]
        others = [
            other
            for other in OTHERS[word.lower()]
            if counts.get(other, 0) > 0 and other not in there and _follows(other, word, before)
        ]
        if not others:
            continue
        weights = np.array([counts[other] for other in others], dtype=np.float64)
        # in a random order, the common ones rather first
        for place in np.argsort(rng.exponential(size=len(others)) / weights, kind="stable").tolist():
            text = before + _cased(others[place], word) + caption[match.end() :]
            if folded(text) not in avoid:
                return text
    return None


def _follows(other: str, word: str, before: str) -> bool:
    """Whether another word may follow the same `a` or `an`, which would give it away."""
    last = before.split()[-1:]
    return not last or last[0].lower() not in ("a", "an") or (other[0] in _VOWELS) == (word[0].lower() in _VOWELS)


def _cased(other: str, word: str) -> str:
    if len(word) > 1 and word.isupper():
        return other.upper()
    return other.capitalize() if word[0].isupper() else other
