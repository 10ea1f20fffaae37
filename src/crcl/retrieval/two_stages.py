"""Retrieval in two stages: a first matcher finds candidates, and a slower and better one ranks them again.

Each caption has the images that are most similar to it by the first stage as its candidates, and each image the
captions. The candidates come first, in the order of the second stage; everything else follows in that of the first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from crcl import metrics
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.progress import Advance
from crcl.retrieval.evaluation import Evaluated, check_folds, folded, mean_similarities
from crcl.retrieval.listed import listed_similarities
from crcl.retrieval.scoring import Scorer, scoring_work, subtask

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Similarities `(P,)` of listed images `(P,)` with listed captions `(P,)`."""


@dataclass(frozen=True)
class Candidates:
    """The best images of each caption and the best captions of each image; and all these pairs, each once."""

    images_of: np.ndarray
    """(captions, C)"""
    captions_of: np.ndarray
    """(images, C)"""
    images: np.ndarray
    """Images of the pairs, ascending. (P,)"""
    captions: np.ndarray
    """Captions of the pairs. (P,)"""
    of_captions: np.ndarray
    """The number of the pair of each caption and candidate. (captions, C)"""
    of_images: np.ndarray
    """The number of the pair of each image and candidate. (images, C)"""


@dataclass(frozen=True)
class TwoStages:
    """Scores of a retrieval in two stages, and how good its candidates were."""

    scores: metrics.Retrieval
    first: metrics.Retrieval
    """Scores of the first stage alone."""
    i2t_found: float
    """Share of the images that have one of their own captions among their candidates, in percent."""
    t2i_found: float
    """Share of the captions that have their image among their candidates, in percent."""
    compared: float
    """Share of all images and captions that the second stage compared, in percent."""


@dataclass(frozen=True)
class EvaluatedInStages(Evaluated):
    """Retrieval scores of two stages, with the conditions to report them with; `members` are the first stage's runs."""

    first: metrics.Retrieval | None = None
    """Scores of the first stage alone."""
    reranked_by: tuple[str, ...] = ()
    """Run folders of the second stage."""
    candidates: int = 0
    """How many images of each caption, and captions of each image, the second stage ranked again."""
    i2t_found: float = 0.0
    """Share of the images that have one of their own captions among their candidates, in percent."""
    t2i_found: float = 0.0
    """Share of the captions that have their image among their candidates, in percent."""
    compared: float = 0.0
    """Share of all images and captions that the second stage compared, in percent."""


def find_candidates(coarse: np.ndarray, count: int) -> Candidates:
    """The `count` best images of each caption and captions of each image, by similarities (images, captions).

    Of equal similarities the first ones are taken.
    """
    if count < 1:
        raise InputError(f"{count} candidates: at least one is needed", hint="set {candidates} to 1 or more")
    captions = coarse.shape[1]
    images_of, captions_of = _best(coarse.T, count), _best(coarse, count)
    keys = [
        (images_of * captions + np.arange(captions)[:, None]).ravel(),
        (np.arange(len(coarse))[:, None] * captions + captions_of).ravel(),
    ]
    distinct, number = np.unique(np.concatenate(keys), return_inverse=True)
    of_captions, of_images = np.split(number.ravel(), [images_of.size])
    return Candidates(
        images_of=images_of,
        captions_of=captions_of,
        images=distinct // captions,
        captions=distinct % captions,
        of_captions=of_captions.reshape(images_of.shape),
        of_images=of_images.reshape(captions_of.shape),
    )


def ranks(
    coarse: np.ndarray, image_of_text: np.ndarray, candidates: Candidates, fine: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks in two stages, as those of `metrics.ranks`. (images that have a text,), (texts,)

    `fine` (P,) are the second stage's similarities of the pairs of `candidates`. What is not among the candidates keeps
    the rank of the first stage, since all candidates were before it there, too.
    """
    i2t, t2i = metrics.ranks(coarse, image_of_text)
    found, rank = _ranks_among(fine[candidates.of_captions], candidates.images_of == image_of_text[:, None])
    t2i = np.where(found, rank, t2i)
    own = image_of_text[candidates.captions_of] == np.arange(len(coarse))[:, None]
    found, rank = _ranks_among(fine[candidates.of_images], own)
    shown = np.bincount(image_of_text, minlength=len(coarse)) > 0
    return np.where(found[shown], rank[shown], i2t), t2i


def rank_again(coarse: np.ndarray, image_of_text: np.ndarray, count: int, score: Score) -> TwoStages:
    """Scores of a first stage with similarities (images, captions), whose candidates `score` ranks again."""
    candidates = find_candidates(coarse, count)
    i2t, t2i = ranks(coarse, image_of_text, candidates, score(candidates.images, candidates.captions))
    own = image_of_text[candidates.captions_of] == np.arange(len(coarse))[:, None]
    shown = np.bincount(image_of_text, minlength=len(coarse)) > 0
    return TwoStages(
        scores=metrics.Retrieval(metrics.recall(i2t), metrics.recall(t2i)),
        first=metrics.retrieval(coarse, image_of_text),
        i2t_found=float(100 * own.any(1)[shown].mean()),
        t2i_found=float(100 * (candidates.images_of == image_of_text[:, None]).any(1).mean()),
        compared=100 * len(candidates.images) / coarse.size,
    )


def evaluate_in_stages(
    first: Sequence[Scorer],
    second: Sequence[Scorer],
    pairs: Split,
    *,
    candidates: int,
    folds: int = 1,
    advance: Advance | None = None,
) -> TwoStages:
    """Scores of matchers whose candidates other matchers rank again; several are the mean of their similarities."""
    check_folds(pairs, folds)
    parts = folded(pairs, folds)
    work = [(len(first) + len(second)) * scoring_work(part.images, len(part)) for part in parts]
    found = []
    for number, part in enumerate(parts):
        told = subtask(advance, sum(work[:number]), sum(work))
        coarse = mean_similarities(first, part, advance=told)
        again = subtask(told, len(first) * scoring_work(part.images, len(part)), sum(work))
        score = mean_of_listed(second, part, advance=again)
        found.append(rank_again(coarse, part.image_index, candidates, score))
    return TwoStages(
        scores=metrics.mean([each.scores for each in found]),
        first=metrics.mean([each.first for each in found]),
        i2t_found=float(np.mean([each.i2t_found for each in found])),
        t2i_found=float(np.mean([each.t2i_found for each in found])),
        compared=float(np.mean([each.compared for each in found])),
    )


def mean_of_listed(scorers: Sequence[Scorer], pairs: Split, *, advance: Advance | None = None) -> Score:
    """A function that gives the mean of the matchers' similarities of listed pairs."""
    work = scoring_work(pairs.images, len(pairs))

    def score(images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        if len(images) == pairs.images * len(pairs):
            return mean_similarities(scorers, pairs, advance=advance)[images, captions]
        total = np.zeros(len(images), dtype=np.float32)
        for number, scorer in enumerate(scorers):
            total += listed_similarities(scorer, pairs, images, captions, advance=_scaled(advance, number, work))
        return total / len(scorers)

    return score


def _scaled(advance: Advance | None, number: int, work: int) -> Advance | None:
    """Progress of the listed pairs of a matcher, counted as if they were the whole matrix."""
    if advance is None:
        return None
    return lambda done, total: advance(number * work + work * done // total, work)


def _best(sims: np.ndarray, count: int, *, block: int = 1024) -> np.ndarray:
    """Columns of the `count` largest numbers of each row, largest first; of equal ones the first. (rows, count)"""
    parts = [
        np.argsort(-sims[start : start + block], axis=1, kind="stable")[:, :count]
        for start in range(0, len(sims), block)
    ]
    return np.concatenate(parts)


def _ranks_among(fine: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether a right one is among the candidates of each query, and the rank of the best of these; ties count against.

    Both arguments are (queries, C). Returns (queries,), (queries,)
    """
    best = np.where(own, fine, -np.inf).max(1)
    before = (fine >= best[:, None]) & ~own
    return np.any(own, axis=1, keepdims=False), before.sum(1)
