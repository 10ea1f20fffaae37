"""What matchers say of parts of captions: words that find nothing, where the others are, the least fitting sentence."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crcl.data.maps.shards import Shards
from crcl.data.split import Split
from crcl.data.text.vocabulary import tokenize
from crcl.matchers.base import Encoded, eval_mode
from crcl.retrieval.scoring import Scorer

_BLOCK = 32  # pairs at a time: every image of a block is compared with every text of it
_Judge = Callable[[Encoded, Encoded], Tensor]


@dataclass(frozen=True)
class Told:
    """What a matcher says of parts of captions, as text; empty where it has nothing to say."""

    column: str
    """Name of a column for `cells`: `lacking`, `regions` or `least_sentence`."""
    cells: list[str]
    sentences: list[str]


def told_of_words(scorer: Scorer, pairs: Split, numbers: np.ndarray, *, grid: int = 0) -> Told | None:
    """What the matcher says of the words of each of these pairs; None if it does not judge words.

    Args:
        scorer: The matcher, and what it reads captions with.
        pairs: The pairs.
        numbers: Numbers of the pairs to tell of.
        grid: Rows, and columns, of regions in an image; 0 if they are no grid.
    """
    if (found := lacking_words(scorer, pairs, numbers)) is not None:
        return Told("lacking", [" ".join(words) for words in found], [_lacking(words) for words in found])
    if (matched := words_by_region(scorer, pairs, numbers)) is not None:
        cells = ["; ".join(f"{words} → {_place(region, grid)}" for words, region in each) for each in matched]
        return Told("regions", cells, [cell and f"Words and where they fit best: {cell}." for cell in cells])
    return None


def told_of_sentences(
    scorer: Scorer,
    pairs: Split,
    numbers: np.ndarray,
    parts: Sequence[Sequence[str]],
    vectors: Callable[[Sequence[str]], np.ndarray] | None = None,
) -> Told | None:
    """The sentence of each of these pairs' captions that fits its image least, by the matcher.

    Args:
        scorer: The matcher, and what it reads captions with.
        pairs: The pairs.
        numbers: Numbers of the pairs to tell of.
        parts: The sentences of their captions; nothing is told of a caption with fewer than two.
        vectors: Gives vectors of sentences, for a matcher that reads these.

    Returns:
        None if no caption has several sentences.
    """
    some = [place for place, own in enumerate(parts) if len(own) > 1]
    if not some:
        return None
    counts = [len(parts[place]) for place in some]
    texts = [text for place in some for text in parts[place]]
    divided = replace(
        pairs,
        captions=texts,
        image_index=np.repeat(pairs.image_index[numbers[some]], counts),
        truth=None,
        caption_rows=None,
        text_features=None if vectors is None else Shards([vectors(texts)], ["sentences of captions"]),
    )
    sims = scorer.pair_similarities(divided)
    cells = [""] * len(parts)
    for place, own in zip(some, np.split(sims, np.cumsum(counts)[:-1]), strict=True):
        cells[place] = parts[place][int(np.argmin(own))]
    return Told("least_sentence", cells, [cell and f"Fits the picture least: “{cell}”" for cell in cells])


def _lacking(words: list[str]) -> str:
    if not words:
        return ""
    named = f"word “{words[0]}” fits" if len(words) == 1 else f"words “{' '.join(words)}” fit"
    return f"The {named} nothing in the picture."


def _place(region: int, grid: int) -> str:
    """A region by number, and where it is in the picture, if that is known: rows and columns count from 1."""
    return f"region {region}" + (f" (row {region // grid + 1}, column {region % grid + 1})" if grid else "")


def lacking_words(scorer: Scorer, pairs: Split, numbers: np.ndarray) -> list[list[str]] | None:
    """For each of these pairs the words of its caption that find nothing in its image, by the matcher's `lacking`.

    None if the matcher does not judge words.
    """
    judge: _Judge | None = getattr(scorer.matcher, "lacking", None)
    if judge is None:
        return None
    judged = _word_by_word(judge, scorer, pairs, numbers)
    return [[word for word, lacks in words if lacks] for words in judged]


def words_by_region(scorer: Scorer, pairs: Split, numbers: np.ndarray) -> list[list[tuple[str, int]]] | None:
    """For each of these pairs the words of its caption, joined where neighbours share a region, and their regions.

    None if the matcher does not match words with regions (`best_regions`).

    Returns:
        Words and the number of their region, from 0, such as `("black dog", 14)`, in the order of the caption.
    """
    judge: _Judge | None = getattr(scorer.matcher, "best_regions", None)
    if judge is None:
        return None
    return [
        [(" ".join(word for word, _ in some), region) for region, some in groupby(words, lambda pair: pair[1])]
        for words in _word_by_word(judge, scorer, pairs, numbers)
    ]


def _word_by_word(judge: _Judge, scorer: Scorer, pairs: Split, numbers: np.ndarray) -> Iterator[list[tuple[str, Any]]]:
    """The words of each pair's caption without punctuation, each with what the matcher says of it there."""
    tokens = scorer.tokens(pairs)
    with eval_mode(scorer.matcher) as device:
        for start in range(0, len(numbers), _BLOCK):
            some = numbers[start : start + _BLOCK]
            images = scorer.encode_images(pairs, pairs.image_index[some], device)
            own = torch.arange(len(some), device=device)
            said = judge(images, scorer.encode_texts(tokens, some, device))[own, own].tolist()
            for row, values in zip(some, said, strict=True):
                words = tokenize(pairs.captions[row])  # the first value is that of `<start>`
                named = [any(map(str.isalnum, word)) for word in words]
                yield list(compress(zip(words, values[1:], strict=False), named))
