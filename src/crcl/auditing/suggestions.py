"""Suggestions for suspect pairs: other captions for the image and other images for the caption."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from crcl import distributed
from crcl.data.split import Split
from crcl.methods.base import Partners
from crcl.progress import Advance
from crcl.retrieval.scoring import Scorer, scoring_work, subtask

MOST = 3
"""Number of suggestions of each kind for a pair."""


@dataclass(frozen=True)
class Suggestions:
    """The best other captions and images for S pairs, best first; -1 where there are fewer than `most`."""

    rows: np.ndarray
    """(S,) numbers of the pairs"""
    captions: np.ndarray
    """(S, most) numbers of the pairs whose captions fit the image best, other than its own captions"""
    caption_fit: np.ndarray
    """(S, most)"""
    images: np.ndarray
    """(S, most) numbers of the images that fit the caption best, other than its own images"""
    image_fit: np.ndarray
    """(S, most)"""
    fit: Literal["similarity", "belief"] = "similarity"
    """What the fits are: similarities, or beliefs that a caption belongs to an image."""


def suggest(
    scorer: Scorer, pairs: Split, rows: np.ndarray, *, most: int = MOST, advance: Advance | None = None
) -> Suggestions:
    """The best other captions and images for some pairs, among all pairs.

    Each text is suggested once, however often it occurs. Similarities are computed block by block, and only the best
    so far are kept in memory. Several processes divide the candidates among them.

    Args:
        scorer: Computes similarities.
        pairs: All pairs, the candidates.
        rows: Numbers of the pairs that need suggestions.
        most: Number of suggestions of each kind.
        advance: Receives how much is done.
    """
    tokens, text_of = scorer.tokens(pairs), _first_with_same_text(pairs)
    images, of_image = np.unique(pairs.image_index[rows], return_inverse=True)
    texts, of_text = np.unique(text_of[rows], return_inverse=True)
    every_text, every_image = np.unique(text_of), np.arange(pairs.images)

    own_texts, own_images = _part(len(every_text)), _part(len(every_image))
    work = scoring_work(len(images), len(own_texts))
    total = work + scoring_work(len(own_images), len(texts))
    for_images = _Best(images, every_text, pairs.image_index, text_of, most)
    scorer.score(
        pairs,
        tokens,
        images,
        every_text[own_texts],
        lambda queries, candidates, block: for_images.see(queries, own_texts[candidates], block),
        advance=subtask(advance, 0, total),
    )
    for_texts = _Best(texts, every_image, text_of, pairs.image_index, most)
    scorer.score(
        pairs,
        tokens,
        every_image[own_images],
        texts,
        lambda candidates, queries, block: for_texts.see(queries, own_images[candidates], block.T),
        advance=subtask(advance, work, total),
    )
    for best in (for_images, for_texts):
        best.exchange()
    return Suggestions(
        rows,
        for_images.numbers[of_image],
        for_images.similarity[of_image],
        for_texts.numbers[of_text],
        for_texts.similarity[of_text],
    )


def _part(candidates: int) -> np.ndarray:
    """The places of the candidates that this process compares: an equal part of them."""
    return np.array_split(np.arange(candidates), distributed.count())[distributed.rank() % distributed.count()]


def suggest_believed(partners: Partners, pairs: Split, rows: np.ndarray, *, most: int = MOST) -> Suggestions:
    """The other images that captions belong to as a run believes, and the other captions that belong to the images.

    Args:
        partners: Other images for the caption of each pair, and the beliefs in these.
        pairs: All pairs.
        rows: Numbers of the pairs that need suggestions.
        most: Number of suggestions of each kind.
    """
    text_of = _first_with_same_text(pairs)
    believed = partners.beliefs > 0  # a caption whose image was never in doubt has no others
    every, images, beliefs = np.nonzero(believed)[0], partners.images[believed], partners.beliefs[believed]
    known = np.isin(text_of[every] * pairs.images + images, text_of * pairs.images + pairs.image_index)
    every, images, beliefs = every[~known], images[~known], beliefs[~known]
    for_rows = np.isin(every, rows)
    for_images = np.isin(images, pairs.image_index[rows])
    texts = text_of[every]
    found_images, image_fit = _best(every[for_rows], images[for_rows], beliefs[for_rows], rows, most)
    own = pairs.image_index[rows]
    found_texts, caption_fit = _best(images[for_images], texts[for_images], beliefs[for_images], own, most)
    return Suggestions(rows, found_texts, caption_fit, found_images, image_fit, "belief")


def _best(
    queries: np.ndarray, candidates: np.ndarray, beliefs: np.ndarray, asked: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """The most believed candidates of each asked query, each once, and the beliefs. (asked, most) each

    `queries`, `candidates` and `beliefs` are the E known beliefs, `(E,)` each.
    """
    order = np.lexsort((candidates, -beliefs, queries))
    couple = queries * (candidates.max(initial=0) + 1) + candidates
    _, first = np.unique(couple[order], return_index=True)
    order = order[np.sort(first)]
    queries, candidates, beliefs = queries[order], candidates[order], beliefs[order]
    start = np.searchsorted(queries, asked)
    count = np.searchsorted(queries, asked, side="right") - start
    place = np.arange(most)
    there = place < count[:, None]
    numbers = np.full((len(asked), most), -1, dtype=np.int64)
    fit = np.full((len(asked), most), -np.inf, dtype=np.float32)
    chosen = (start[:, None] + place)[there]
    numbers[there], fit[there] = candidates[chosen], beliefs[chosen]
    return numbers, fit


def join(one: Suggestions, other: Suggestions) -> Suggestions:
    """The suggestions for both sets of pairs, made in the same way."""
    return Suggestions(
        rows=np.concatenate([one.rows, other.rows]),
        captions=np.concatenate([one.captions, other.captions]),
        caption_fit=np.concatenate([one.caption_fit, other.caption_fit]),
        images=np.concatenate([one.images, other.images]),
        image_fit=np.concatenate([one.image_fit, other.image_fit]),
        fit=one.fit,
    )


class _Best:
    """The best candidates so far for each query; candidates that are paired with the query already are left out."""

    def __init__(
        self, queries: np.ndarray, candidates: np.ndarray, query_of: np.ndarray, candidate_of: np.ndarray, most: int
    ) -> None:
        """Prepare for queries and candidates; `query_of` and `candidate_of` (N,) are the two sides of each pair."""
        self.candidates = candidates
        self.numbers = np.full((len(queries), most), -1, dtype=np.int64)
        self.similarity = np.full((len(queries), most), -np.inf, dtype=np.float32)
        known = np.isin(query_of, queries)
        self.known_query = np.searchsorted(queries, query_of[known])
        self.known_candidate = np.searchsorted(candidates, candidate_of[known])
        self.column = np.full(len(candidates), -1, dtype=np.int64)  # of a candidate in the current block

    def see(self, queries: slice | np.ndarray, candidates: slice | np.ndarray, block: Tensor) -> None:
        """Update the best with a block of similarities, (queries, candidates), whose places are given."""
        asking = np.arange(len(self.numbers))[queries]
        offered = np.arange(len(self.candidates))[candidates]
        block = block.clone(memory_format=torch.contiguous_format)  # topk is slow on other strides
        block[self._known_in_block(asking, offered)] = -torch.inf
        best, place = block.topk(min(self.numbers.shape[1], block.shape[1]), dim=1)
        self._add(asking, best.cpu().numpy(), self.candidates[offered[place.cpu().numpy()]])

    def exchange(self) -> None:
        """Add the best of the other processes, which saw other candidates."""
        if distributed.count() == 1:
            return
        everyone = np.arange(len(self.numbers))
        similarities = distributed.collect(np.ascontiguousarray(self.similarity).tobytes())
        numbers = distributed.collect(np.ascontiguousarray(self.numbers).tobytes())
        for process, (fit, found) in enumerate(zip(similarities, numbers, strict=True)):
            if process != distributed.rank():
                shape = self.numbers.shape
                self._add(
                    everyone,
                    np.frombuffer(fit, np.float32).reshape(shape),
                    np.frombuffer(found, np.int64).reshape(shape),
                )

    def _add(self, asking: np.ndarray, best: np.ndarray, candidates: np.ndarray) -> None:
        """Keep the best of those so far and of more candidates of some queries. `(asking, more)` each"""
        similarity = np.concatenate([self.similarity[asking], best], axis=1)
        numbers = np.concatenate([self.numbers[asking], candidates], axis=1)
        numbers[np.isneginf(similarity)] = -1
        order = np.lexsort((numbers, -similarity), axis=1)[
            :, : self.numbers.shape[1]
        ]  # of equal similarities the first in the data
        self.similarity[asking] = np.take_along_axis(similarity, order, axis=1)
        self.numbers[asking] = np.take_along_axis(numbers, order, axis=1)

    def _known_in_block(self, asking: np.ndarray, offered: np.ndarray) -> tuple[Tensor, Tensor]:
        """Rows and columns of the block that belong to existing pairs."""
        row = np.full(len(self.numbers), -1, dtype=np.int64)
        row[asking] = np.arange(len(asking))
        self.column[offered] = np.arange(len(offered))
        rows, columns = row[self.known_query], self.column[self.known_candidate]
        self.column[offered] = -1
        both = (rows >= 0) & (columns >= 0)
        return torch.from_numpy(rows[both]), torch.from_numpy(columns[both])


def _first_with_same_text(pairs: Split) -> np.ndarray:
    """For each pair the number of the first one with the same caption. (N,)"""
    first: dict[str, int] = {}
    return np.array([first.setdefault(caption, number) for number, caption in enumerate(pairs.captions)])
