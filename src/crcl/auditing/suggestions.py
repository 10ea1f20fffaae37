"""What would match instead: for suspect pairs, other captions for the image and other images for the caption."""

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from crcl.data.split import Split
from crcl.progress import Advance
from crcl.retrieval.scoring import Scorer, part_of, scoring_work

MOST = 3
"""Suggestions of each kind for a pair."""


@dataclass(frozen=True)
class Suggestions:
    """For S pairs the best of the other captions and images, best first; -1 where there are fewer."""

    rows: np.ndarray
    """(S,) numbers of the pairs"""
    captions: np.ndarray
    """(S, most) numbers of pairs, whose captions fit the image best of those that are not shown with it"""
    caption_similarity: np.ndarray
    """(S, most)"""
    images: np.ndarray
    """(S, most) numbers of images that fit the caption best, other than those it is shown with"""
    image_similarity: np.ndarray
    """(S, most)"""


def suggest(
    scorer: Scorer, pairs: Split, rows: np.ndarray, *, most: int = MOST, advance: Advance | None = None
) -> Suggestions:
    """The best other captions and images for some pairs, among all pairs.

    Each text is suggested once, however often it occurs. All are gone through block by block, and only the best so far
    are kept.
    """
    tokens, text_of = scorer.tokens(pairs), _first_with_same_text(pairs)
    images, of_image = np.unique(pairs.image_index[rows], return_inverse=True)
    texts, of_text = np.unique(text_of[rows], return_inverse=True)
    every_text, every_image = np.unique(text_of), np.arange(pairs.images)

    work = scoring_work(len(images), len(every_text))
    total = work + scoring_work(len(every_image), len(texts))
    for_images = _Best(images, every_text, pairs.image_index, text_of, most)
    scorer.score(pairs, tokens, images, every_text, for_images.see, advance=part_of(advance, 0, total))
    for_texts = _Best(texts, every_image, text_of, pairs.image_index, most)
    scorer.score(
        pairs,
        tokens,
        every_image,
        texts,
        lambda found, asking, block: for_texts.see(asking, found, block.T),
        advance=part_of(advance, work, total),
    )
    return Suggestions(
        rows,
        for_images.numbers[of_image],
        for_images.similarity[of_image],
        for_texts.numbers[of_text],
        for_texts.similarity[of_text],
    )


def join(one: Suggestions, other: Suggestions) -> Suggestions:
    """The suggestions for both sets of pairs."""
    return Suggestions(
        *(np.concatenate([getattr(one, field.name), getattr(other, field.name)]) for field in fields(Suggestions))
    )


class _Best:
    """The best candidates so far of each of some queries; what is shown with a query already is no candidate."""

    def __init__(
        self, queries: np.ndarray, candidates: np.ndarray, query_of: np.ndarray, candidate_of: np.ndarray, most: int
    ) -> None:
        """`query_of` and `candidate_of` (N,) tell for each pair what is shown with what."""
        self.candidates = candidates
        self.numbers = np.full((len(queries), most), -1, dtype=np.int64)
        self.similarity = np.full((len(queries), most), -np.inf, dtype=np.float32)
        known = np.isin(query_of, queries)
        self.known_query = np.searchsorted(queries, query_of[known])
        self.known_candidate = np.searchsorted(candidates, candidate_of[known])
        self.column = np.full(len(candidates), -1, dtype=np.int64)  # of a candidate in the block at hand

    def see(self, queries: slice | np.ndarray, candidates: slice | np.ndarray, block: Tensor) -> None:
        """Take a block of similarities, (queries, candidates), given by their places."""
        asking = np.arange(len(self.numbers))[queries]
        offered = np.arange(len(self.candidates))[candidates]
        block = block.clone(memory_format=torch.contiguous_format)  # rows of queries, or topk is slow
        block[self._known_in_block(asking, offered)] = -torch.inf
        best, place = block.topk(min(self.numbers.shape[1], block.shape[1]), dim=1)
        similarity = np.concatenate([self.similarity[asking], best.cpu().numpy()], axis=1)
        numbers = np.concatenate([self.numbers[asking], self.candidates[offered[place.cpu().numpy()]]], axis=1)
        numbers[np.isneginf(similarity)] = -1
        order = np.lexsort((numbers, -similarity), axis=1)[
            :, : self.numbers.shape[1]
        ]  # equal ones: the first in the data
        self.similarity[asking] = np.take_along_axis(similarity, order, axis=1)
        self.numbers[asking] = np.take_along_axis(numbers, order, axis=1)

    def _known_in_block(self, asking: np.ndarray, offered: np.ndarray) -> tuple[Tensor, Tensor]:
        """Rows and columns of the block at which there is what is shown together already."""
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
