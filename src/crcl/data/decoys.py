"""Decoys: known mismatches added to the training pairs, to measure with.

They are of three kinds: a `random` one is a caption with a random other image; a `near` one is an image with the
caption of one of the images most like it; a `swap` one is an image with its own caption, with one word exchanged.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from crcl.data.duplicates import NEAR, Likeness, folded, generic_captions, same_images
from crcl.data.maps.shards import Shards
from crcl.data.nearby import nearest_images
from crcl.data.split import Split
from crcl.data.text.swaps import count_listed, swap

Kind = Literal["random", "near", "swap"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds of decoys, in the order in which they follow each other."""
SHARE = 0.05
"""Default number of decoys that an audit adds, as a share of the pairs."""
LEAST = 50
"""Fewest decoys to draw if the share gives fewer, but at most a quarter of the pairs."""
PART, FEWEST, MOST = 5, 25, 2000
"""Near and swap decoys are each a fifth of the random ones in number, but at least 25 and at most 2,000."""
TWELFTH = 12
"""Neither are they more than a twelfth of the pairs."""
SIMILAR = 10
"""A near decoy shows a caption of one of so many most similar images."""
READ = 40
"""A word is exchanged among so many first ones, which all models read."""
_STREAM = 0xDEC0  # keeps the random numbers of decoys apart from others drawn with the same seed
_BLOCK = 16  # images: decoys link only images of one block, so that a division by image can keep linked ones together
_TRIES = 1000  # attempts to draw an image that a text is not paired with
_COMPARED, _AT_ONCE = 64, 4  # of these, how many are compared with the caption's own image
_SPARE = 30  # further similar images, taken where the first are copies or have no caption left


@dataclass(frozen=True)
class Decoys:
    """D decoys, by kind: first the random ones, then the near ones, then those with an exchanged word."""

    drawn: np.ndarray
    """(D, 2) int64: the caption that each is made of, and the image that it is shown with."""
    kinds: np.ndarray
    """(D,) names of kinds."""
    texts: tuple[str, ...] = ()
    """The texts of the swap decoys."""
    vectors: np.ndarray | None = None
    """(swap decoys, G) float16, the vectors of these texts, where captions are vectors."""

    def __len__(self) -> int:
        """D."""
        return len(self.drawn)

    @classmethod
    def random(cls, drawn: np.ndarray) -> "Decoys":
        """Random decoys alone."""
        return cls(drawn, np.full(len(drawn), "random"))

    def keep_swaps(self, kept: np.ndarray) -> "Decoys":
        """The same decoys with only some of the swap ones, `(swap decoys,)` bool, before these have vectors."""
        left = self.kinds != "swap"
        left[~left] = kept
        texts = tuple(text for text, stays in zip(self.texts, kept, strict=True) if stays)
        return Decoys(self.drawn[left], self.kinds[left], texts)

    def equals(self, other: "Decoys | None") -> bool:
        """Whether others are the same decoys."""
        return other is not None and np.array_equal(self.drawn, other.drawn) and self.texts == other.texts


def draw(pairs: Split, share: float, seed: int, *, near: float = NEAR) -> np.ndarray:
    """Draw random decoys: captions without repetition, each with an image that no pair shows with the same text.

    Neither is it a copy of the caption's own image, which the caption would describe as well; and captions that say
    nothing of one image are not drawn, as they are no more wrong with another. A text that is paired with nearly all
    images gets an image that only this row does not show. Data without copies gets the same decoys as ever.

    Args:
        pairs: The pairs to draw captions and images from.
        share: Number of decoys as a share of the pairs.
        seed: Seed of the draw.
        near: Similarity from which images are near copies.

    Returns:
        Caption and image of each decoy, (decoys, 2) int64.
    """
    return _random(_Known(pairs, near), share, seed)


def draw_kinds(
    pairs: Split,
    share: float,
    seed: int,
    *,
    kinds: Collection[str] = KINDS,
    near: float = NEAR,
    fewest: int = 1,
    longest: int = READ,
) -> Decoys:
    """Draw decoys of several kinds, each of a caption of its own; the random ones are those of `draw`.

    Args:
        pairs: The pairs to draw captions and images from.
        share: Number of random decoys as a share of the pairs; those of the other kinds follow from it.
        seed: Seed of the draw.
        kinds: Kinds to draw.
        near: Similarity from which images are near copies.
        fewest: A word that comes in where one is exchanged occurs at least so often in the captions.
        longest: Only among so many first words of a caption one is exchanged.
    """
    known = _Known(pairs, near)
    drawn: list[np.ndarray] = [_random(known, share, seed)] if "random" in kinds else []
    names: list[str] = ["random"] * sum(map(len, drawn))
    left = ~known.generic
    left[np.concatenate([part[:, 0] for part in drawn]) if drawn else []] = False
    count = min(max(round(_count(share, len(pairs)) / PART), FEWEST), MOST, len(pairs) // TWELFTH)
    texts: tuple[str, ...] = ()
    if "near" in kinds:
        part = _near(known, count, np.random.default_rng([_STREAM, seed, 1]), left)
        left[part[:, 0]] = False
        drawn, names = [*drawn, part], [*names, *["near"] * len(part)]
    if "swap" in kinds:
        rng = np.random.default_rng([_STREAM, seed, 2])
        part, texts = _swapped(known, count, rng, left, fewest=fewest, longest=longest)
        drawn, names = [*drawn, part], [*names, *["swap"] * len(part)]
    return Decoys(np.concatenate(drawn), np.array(names, dtype=f"<U{max(map(len, KINDS))}"), texts)


class _Known:
    """What is known of the pairs before a draw."""

    def __init__(self, pairs: Split, near: float) -> None:
        self.pairs, self.near = pairs, near
        self.content = np.arange(pairs.images) if pairs.contents is None else same_images(pairs)
        """(M,) the first image with the same pixels"""
        self.generic = generic_captions(
            pairs.captions, self.content[pairs.image_index], images=len(np.unique(self.content))
        )
        """(N,) whether a caption says nothing of one image"""

    @cached_property
    def likeness(self) -> Likeness | None:
        """How similar images are; None if near copies do not count."""
        return Likeness(self.pairs) if self.near < 1 and self.pairs.images > 2 else None

    def copies(self, own: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Whether each image is an exact or near copy of the other. (images,) bool"""
        exact = self.content[own] == self.content[others]
        return exact if self.likeness is None else exact | (self.likeness.similarity(own, others) >= self.near)

    def texts_of(self, image: int) -> set[str]:
        """The texts that are shown with the content of an image."""
        content, rows = self._by_content
        start, end = np.searchsorted(content, self.content[image] + np.arange(2))
        return {folded(self.pairs.captions[row]) for row in rows[start:end]}

    @cached_property
    def _by_content(self) -> tuple[np.ndarray, np.ndarray]:
        """The contents that pairs show, sorted, and the pairs in that order."""
        shown = self.content[self.pairs.image_index]
        rows = np.argsort(shown, kind="stable")
        return shown[rows], rows


def _count(share: float, pairs: int) -> int:
    """The number of random decoys."""
    return max(round(share * pairs), min(LEAST, pairs // 4), 1)


def _random(known: _Known, share: float, seed: int) -> np.ndarray:
    pairs, rng = known.pairs, np.random.default_rng([_STREAM, seed])
    order = rng.permutation(len(pairs))
    telling = order[~known.generic[order]]
    captions = np.sort((telling if len(telling) else order)[: _count(share, len(pairs))])
    images = _others_nearby(pairs.image_index[captions], pairs.images, rng)
    allowed = _Allowed(known, captions)
    copied = known.copies(pairs.image_index[captions], images)
    kept = np.ones(len(captions), dtype=bool)
    for place, caption in enumerate(captions):
        if copied[place] or not allowed.by_text(int(caption), int(images[place])):
            tries = rng.integers(pairs.images, size=_TRIES)
            images[place], kept[place] = allowed.first(int(caption), int(images[place]), tries, copied=copied[place])
    return np.stack([captions, images], axis=1)[kept if kept.any() else slice(None)]


def _near(known: _Known, count: int, rng: np.random.Generator, left: np.ndarray) -> np.ndarray:
    """Near decoys: random images, each with a caption of one of the most similar images that are no copies of it.

    Args:
        known: What is known of the pairs.
        count: Number of decoys.
        rng: Draws images and captions.
        left: (N,) bool, captions that may be drawn.

    Returns:
        Caption and image of each decoy, (decoys, 2) int64; fewer where there are not enough.
    """
    shown = known.pairs.image_index
    images = shown[rng.permutation(len(shown))]
    images = images[np.sort(np.unique(images, return_index=True)[1])][: count + -(-count // 4)]
    captions = rng.permutation(np.flatnonzero(left))
    captions = captions[np.argsort(shown[captions], kind="stable")]  # those of an image stand together
    of_caption = shown[captions]
    similar = nearest_images(known.pairs, images, np.unique(of_caption), SIMILAR + _SPARE, rng)
    similar[:, :SIMILAR] = rng.permuted(similar[:, :SIMILAR], axis=1)
    found = np.full(len(images), -1)
    used: set[int] = set()
    for turn in range(similar.shape[1]):
        open_ = np.flatnonzero((found < 0) & (similar[:, turn] >= 0))
        copied = known.copies(images[open_], similar[open_, turn])
        for place in open_[~copied].tolist():
            there = known.texts_of(int(images[place]))
            start, end = np.searchsorted(of_caption, similar[place, turn] + np.arange(2))
            for caption in captions[start:end].tolist():
                if caption not in used and folded(known.pairs.captions[caption]) not in there:
                    found[place] = caption
                    used.add(caption)
                    break
    return np.stack([found, images], axis=1)[found >= 0][:count].astype(np.int64)


def _swapped(
    known: _Known,
    count: int,
    rng: np.random.Generator,
    left: np.ndarray,
    *,
    fewest: int,
    longest: int,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Swap decoys: random captions with one word exchanged, each with its own image, and their texts."""
    pairs = known.pairs
    counts = {word: often for word, often in count_listed(pairs.captions).items() if often >= fewest}
    drawn: list[int] = []
    texts: list[str] = []
    for caption in rng.permutation(np.flatnonzero(left)).tolist():
        if len(drawn) == count:
            break
        avoid = known.texts_of(int(pairs.image_index[caption]))
        text = swap(pairs.captions[caption], counts, rng, avoid=avoid, longest=longest)
        if text is not None:
            drawn.append(caption)
            texts.append(text)
    captions = np.array(drawn, dtype=np.int64)
    return np.stack([captions, pairs.image_index[captions]], axis=1), tuple(texts)


class _Allowed:
    """Which images may be shown with a caption as a random decoy."""

    def __init__(self, known: _Known, captions: np.ndarray) -> None:
        self.known, self.pairs = known, known.pairs
        texts = [folded(caption) for caption in self.pairs.captions]
        self.text_of = {int(caption): texts[caption] for caption in captions}
        self.shown: dict[str, set[int]] = {text: set() for text in self.text_of.values()}
        """Contents that are shown with a text."""
        for text, image in zip(texts, known.content[self.pairs.image_index].tolist(), strict=True):
            if text in self.shown:
                self.shown[text].add(image)

    def by_text(self, caption: int, image: int) -> bool:
        """Whether no pair shows this text with the image or an exact copy of it."""
        return int(self.known.content[image]) not in self.shown[self.text_of[caption]]

    def first(self, caption: int, drawn: int, tries: np.ndarray, *, copied: bool) -> tuple[int, bool]:
        """The first allowed image of `tries`, or else the drawn one; False if that is a copy of the caption's own."""
        fine = [image for image in tries.tolist() if self.by_text(caption, image)][:_COMPARED]
        own = np.full(len(fine), self.pairs.image_index[caption])
        for start in range(0, len(fine), _AT_ONCE):
            some = np.array(fine[start : start + _AT_ONCE])
            good = some[~self.known.copies(own[: len(some)], some)]
            if len(good):
                return int(good[0]), True
        return drawn, not copied


def _others_nearby(images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """For each image a random other one of its block, where all `count` images are divided into blocks at random."""
    place = rng.permutation(count)
    order = np.argsort(place)
    edges = np.linspace(0, count, max(count // _BLOCK, 1) + 1).astype(np.int64)
    own = place[images]
    block = np.searchsorted(edges, own, side="right") - 1
    start, size = edges[block], edges[block + 1] - edges[block]
    return order[start + (own - start + rng.integers(1, size)) % size]


def add(pairs: Split, decoys: Decoys | np.ndarray) -> Split:
    """The pairs followed by decoys, whose truth is False; captions and images of random decoys may be given alone.

    A swap decoy's caption vector is its own where it has one, and else that of its caption before the exchange.
    """
    known = decoys if isinstance(decoys, Decoys) else Decoys.random(decoys)
    captions, images = known.drawn.T
    texts, rows, vectors = [pairs.captions[int(number)] for number in captions], pairs.rows[captions], None
    if known.texts:
        texts[-len(known.texts) :] = known.texts
    if known.vectors is not None and pairs.text_features is not None:
        stored = pairs.text_features
        vectors = Shards([*stored.parts, known.vectors], [*stored.names, "decoys"])
        rows[-len(known.vectors) :] = len(stored) + np.arange(len(known.vectors))
    return replace(
        pairs,
        captions=[*pairs.captions, *texts],
        image_index=np.concatenate([pairs.image_index, images]),
        truth=None if pairs.truth is None else np.concatenate([pairs.truth, np.zeros(len(known), dtype=bool)]),
        caption_rows=np.concatenate([pairs.rows, rows]),
        text_features=pairs.text_features if vectors is None else vectors,
    )
