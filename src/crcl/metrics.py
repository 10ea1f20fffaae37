"""Retrieval and detection scores, as functions of plain arrays.

`sims[m, n]` is the similarity of image m and text n, and `image_of_text[n]` the image that text n belongs to; images
may have different numbers of texts. Ranks count from 0. **Ties count against the model**: a wrong item with the same
similarity ranks before the right one, so a model that gives everything the same score gets the lowest result.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Recall:
    """Retrieval in one direction: share of queries in percent with a right item among the first K; ranks from 1."""

    r1: float
    r5: float
    r10: float
    median_rank: float
    mean_rank: float


@dataclass(frozen=True, repr=False)
class Retrieval:
    """Retrieval in both directions."""

    i2t: Recall
    t2i: Recall

    @property
    def rsum(self) -> float:
        return sum(r.r1 + r.r5 + r.r10 for r in (self.i2t, self.t2i))

    def __repr__(self) -> str:
        recalls = (
            f"{name} R@1 {found.r1:.1f}, R@5 {found.r5:.1f}, R@10 {found.r10:.1f}"
            for name, found in (("image to text", self.i2t), ("text to image", self.t2i))
        )
        return f"{type(self).__name__}({self._of()}{'; '.join(recalls)}; rSum {self.rsum:.1f})"

    def _of(self) -> str:
        """What the scores are of, for `repr`."""
        return ""


@dataclass(frozen=True)
class Detection:
    """How well low correspondences find the mismatched pairs; precision, recall and F1 at a threshold."""

    auroc: float
    average_precision: float
    precision: float
    recall: float
    f1: float


def ranks(sims: np.ndarray, image_of_text: np.ndarray, *, block: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """Rank of each image's best own text (images that have one), and of each text's image. (images,), (texts,)"""
    images, texts = sims.shape
    if len(image_of_text) != texts:
        raise ValueError(f"{texts} columns of similarities, but {len(image_of_text)} texts")
    own = sims[image_of_text, np.arange(texts)]  # (texts,)
    _require_finite(own)
    best = np.full(images, -np.inf, dtype=sims.dtype)
    np.maximum.at(best, image_of_text, own)
    own_texts_at_best = np.bincount(image_of_text[own >= best[image_of_text]], minlength=images)
    i2t = np.empty(images, dtype=np.int64)
    t2i = np.full(texts, -1, dtype=np.int64)  # each text's own image is counted below, once
    for start in range(0, images, block):
        rows = sims[start : start + block]
        _require_finite(rows)
        i2t[start : start + block] = (rows >= best[start : start + block, None]).sum(1)
        t2i += (rows >= own[None, :]).sum(0)
    return (i2t - own_texts_at_best)[np.isfinite(best)], t2i


def recall(ranks: np.ndarray) -> Recall:
    """R@1, R@5, R@10, median and mean rank of ranks that count from 0."""
    if not len(ranks):
        raise ValueError("no queries: recall of nothing is not defined")
    r1, r5, r10 = (float(100 * (ranks < k).mean()) for k in (1, 5, 10))
    return Recall(r1, r5, r10, float(np.floor(np.median(ranks)) + 1), float(ranks.mean() + 1))


def retrieval(sims: np.ndarray, image_of_text: np.ndarray) -> Retrieval:
    """Scores of one similarity matrix in both directions."""
    i2t, t2i = ranks(sims, image_of_text)
    return Retrieval(recall(i2t), recall(t2i))


def mean(folds: list[Retrieval]) -> Retrieval:
    """The average of several folds, score by score."""

    def average(direction: str) -> Recall:
        values = np.array([list(vars(getattr(fold, direction)).values()) for fold in folds])
        return Recall(*(float(value) for value in values.mean(0)))

    return Retrieval(average("i2t"), average("t2i"))


def detection(correspondence: np.ndarray, truth: np.ndarray, *, threshold: float) -> Detection | None:
    """Scores of "below the threshold is a mismatch" against the truth; None if all pairs match or all mismatch."""
    mismatched = ~truth.astype(bool)
    if mismatched.all() or not mismatched.any():
        return None
    from sklearn.metrics import average_precision_score, roc_auc_score  # imported here because it is slow to load

    flagged = correspondence < threshold
    found = int((flagged & mismatched).sum())
    precision = found / flagged.sum() if flagged.any() else 0.0
    share = found / mismatched.sum()
    return Detection(
        auroc=float(roc_auc_score(mismatched, -correspondence)),
        average_precision=float(average_precision_score(mismatched, -correspondence)),
        precision=float(precision),
        recall=float(share),
        f1=float(2 * precision * share / (precision + share)) if found else 0.0,
    )


def _require_finite(sims: np.ndarray) -> None:
    if not np.isfinite(sims).all():
        raise ValueError("similarities contain NaN or infinity: no rank can be given")
