"""Which pairs are removed, moved or corrected where verdicts beat beliefs."""

from dataclasses import dataclass

import numpy as np

from crcl.data.split import Split
from crcl.runs.exchange.known import Known


@dataclass(frozen=True)
class ByVerdict:
    """How many judged rows verdicts decided on."""

    kept: int = 0
    """Rows said to be right; where rows are marked, all those with a verdict."""
    removed: int = 0
    """Rows said to be wrong; also those whose corrected pair is in the data already."""
    corrected: int = 0
    """Rows with a new caption."""
    moved: int = 0
    """Rows whose caption was moved to another image."""


@dataclass(frozen=True)
class Fates:
    """What becomes of N pairs."""

    correspondence: np.ndarray
    """(N,)"""
    removed: np.ndarray
    """(N,) bool"""
    images: np.ndarray
    """(N,) int64, the image that a caption is moved to, or -1"""
    captions: dict[int, str]
    """New captions by the number of the pair."""
    by_verdict: ByVerdict | None = None


def decide(
    pairs: Split, correspondence: np.ndarray, moved: np.ndarray | None, *, threshold: float, known: Known | None = None
) -> Fates:
    """What becomes of the pairs: verdicts decide where there are any, the threshold elsewhere.

    Args:
        pairs: N pairs.
        correspondence: (N,) beliefs.
        moved: (N,) images that captions are moved to by belief, or -1; those without a verdict are.
        threshold: Pairs with a lower correspondence are removed, unless they are moved.
        known: What verdicts say.
    """
    images = np.full(len(pairs), -1) if moved is None else moved
    if known is None:
        return Fates(correspondence, (correspondence < threshold) & (images < 0), images, {})
    images = np.where(np.isnan(known.beliefs), images, known.images)
    removed = np.where(np.isnan(known.beliefs), (correspondence < threshold) & (images < 0), known.wrong)
    removed &= ~known.repaired
    captions = dict(known.captions)
    for number in _repeated(pairs, known, removed):
        removed[number], images[number] = True, -1
        captions.pop(number, None)
    counts = ByVerdict(
        kept=int(known.right.sum()),
        removed=int((removed & known.wrong).sum()),
        corrected=len(captions),
        moved=int((known.wrong & (images >= 0)).sum()),
    )
    return Fates(known.over(correspondence), removed, images, captions, counts)


def _repeated(pairs: Split, known: Known, removed: np.ndarray) -> list[int]:
    """Repaired pairs that the data would then have twice: the same caption with the same image stays elsewhere."""
    stay = np.flatnonzero(~removed & ~known.repaired)
    there = {(int(pairs.image_index[number]), pairs.captions[number].strip()) for number in stay.tolist()}
    repeated = []
    for number in np.flatnonzero(known.repaired).tolist():
        image = int(known.images[number] if known.images[number] >= 0 else pairs.image_index[number])
        pair = (image, known.captions.get(number, pairs.captions[number]).strip())
        if pair in there:
            repeated.append(number)
        there.add(pair)
    return repeated
