"""Retrieval scores on a split, of one matcher or of the mean of several, optionally in folds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crcl import metrics
from crcl.data.split import Split
from crcl.data.text.vectors import Texts
from crcl.errors import InputError
from crcl.progress import Advance
from crcl.retrieval.scoring import Scorer, scoring_work, subtask
from crcl.retrieval.similarity_file import empty_copy


@dataclass(frozen=True)
class Evaluation:
    """Retrieval scores of several matchers."""

    together: metrics.Retrieval
    """Scores of the mean of their similarities."""
    members: list[metrics.Retrieval]
    """Scores of each matcher alone."""


@dataclass(frozen=True, repr=False)
class Evaluated(metrics.Retrieval):
    """Retrieval scores with the conditions to report them with."""

    split: str = ""
    folds: int = 1
    images: int = 0
    captions: int = 0
    runs: tuple[str, ...] = ()
    """Run folders; the similarities of several are averaged."""
    conditions: tuple[str, ...] = ()
    """Method, matcher, noise and seed of each run as text."""
    members: tuple[metrics.Retrieval, ...] = ()
    """The scores of each run alone."""

    def _of(self) -> str:
        return f"{self.split}, {self.images:,} images, {self.captions:,} captions: "


def evaluate(
    scorers: Sequence[Scorer],
    pairs: Split,
    *,
    folds: int = 1,
    tokens: Texts | None = None,
    advance: Advance | None = None,
) -> metrics.Retrieval:
    """Retrieval scores of one matcher, or of several by the mean of their similarities.

    `folds` splits the images into consecutive parts of equal size and averages their scores (COCO 1K: 5 folds).
    `tokens` are the encoded captions for a single scorer, if they are already known.
    """
    return evaluate_each(scorers, pairs, folds=folds, tokens=tokens, advance=advance).together


def evaluate_each(
    scorers: Sequence[Scorer],
    pairs: Split,
    *,
    folds: int = 1,
    tokens: Texts | None = None,
    advance: Advance | None = None,
    out: np.ndarray | None = None,
) -> Evaluation:
    """Retrieval scores of several matchers together and of each alone, computing every similarity once.

    Writes the mean similarities to `out`, if given, which excludes folds. Progress counts the work of all matchers.
    """
    check_folds(pairs, folds)
    if out is not None and folds > 1:
        raise ValueError("with folds there is no matrix of all images with all captions to write to out")
    each = folded(pairs, folds)
    work = [len(scorers) * scoring_work(part.images, len(part)) for part in each]
    parts, done = [], 0
    for part, own in zip(each, work, strict=True):
        known = tokens if folds == 1 else None
        parts.append(_evaluate_part(scorers, part, tokens=known, advance=subtask(advance, done, sum(work)), out=out))
        done += own
    members = zip(*(part.members for part in parts), strict=True)
    return Evaluation(
        metrics.mean([part.together for part in parts]), [metrics.mean(list(member)) for member in members]
    )


def check_folds(pairs: Split, folds: int) -> None:
    """Refuse, before long work, a split without pairs or a number of images that the folds do not divide."""
    if not len(pairs):
        raise InputError("no pairs to evaluate on", where=pairs.source)
    if folds < 1 or pairs.images % folds:
        raise InputError(f"{pairs.images} images cannot be split into {folds} folds of equal size")


def folded(pairs: Split, folds: int) -> list[Split]:
    """Consecutive parts of equal size by their images; the pairs themselves, if there is one."""
    return [pairs] if folds == 1 else [_fold(pairs, fold, pairs.images // folds) for fold in range(folds)]


def _evaluate_part(
    scorers: Sequence[Scorer],
    pairs: Split,
    *,
    tokens: Texts | None,
    advance: Advance | None,
    out: np.ndarray | None,
) -> Evaluation:
    members: list[metrics.Retrieval] = []
    mean = mean_similarities(
        scorers,
        pairs,
        tokens=tokens,
        advance=advance,
        out=out,
        each=lambda sims: members.append(metrics.retrieval(sims, pairs.image_index)),
    )
    together = metrics.retrieval(mean, pairs.image_index) if len(scorers) > 1 else members[0]
    return Evaluation(together, members)


def mean_similarities(
    scorers: Sequence[Scorer],
    pairs: Split,
    *,
    tokens: Texts | None = None,
    advance: Advance | None = None,
    out: np.ndarray | None = None,
    each: Callable[[np.ndarray], None] | None = None,
) -> np.ndarray:
    """Mean of the matchers' similarities; calls `each` with those of every matcher. (images, captions)"""
    work = scoring_work(pairs.images, len(pairs))
    mean = spare = None
    for number, scorer in enumerate(scorers):
        part = subtask(advance, number * work, len(scorers) * work)
        if mean is None:
            mean = sims = scorer.similarities(pairs, tokens=tokens, advance=part, out=out)
        else:
            spare = sims = scorer.similarities(pairs, advance=part, out=empty_copy(mean) if spare is None else spare)
        if each is not None:
            each(sims)
        if sims is not mean:
            mean += sims
    if mean is None:
        raise ValueError("no matcher to score with")
    if len(scorers) > 1:
        mean /= len(scorers)
    return mean


def _fold(pairs: Split, fold: int, size: int) -> Split:
    images = np.arange(fold * size, (fold + 1) * size)
    members = np.flatnonzero((pairs.image_index >= images[0]) & (pairs.image_index <= images[-1]))
    if not len(members):
        what = f"no captions for images {images[0]} to {images[-1]}, fold {fold + 1}"
        raise InputError(what, where=pairs.source)
    return replace(
        pairs,
        captions=[pairs.captions[int(row)] for row in members],
        image_index=pairs.image_index[members] - images[0],
        image_ids=pairs.image_ids[images[0] : images[-1] + 1],
        truth=None,
        feature_rows=images if pairs.feature_rows is None else pairs.feature_rows[images],
        caption_rows=pairs.rows[members],
    )
