"""How sure an audit is: known mismatches among the training pairs, and what their beliefs say of all others.

A decoy is a caption of the data with a random other image. Decoys are trained on like any pair, and nothing tells them
from the others. At the end, with F0 the distribution of their beliefs and G that of the real pairs,

    G = rate * F0 + (1 - rate) * F1,    F1: the beliefs in pairs that match

if real mismatches look like random ones. Then rate <= G(t) / F0(t) at every threshold t.
"""

from dataclasses import dataclass, replace

import numpy as np

from crcl.data.pairs import Pairs

SHARE = 0.05
"""Decoys that an audit adds, as a share of the pairs, unless told otherwise."""
_STREAM = 0xDEC0  # sets the random numbers of decoys apart from others of the same seed


@dataclass(frozen=True)
class Estimate:
    """How many pairs are mismatched, and how right suspicions are at each threshold: estimated, truth is not needed."""

    rate: float
    """Share of mismatched pairs."""
    low: float
    high: float
    """Its interval of 95 %."""
    decoys: np.ndarray
    """(D,) what was believed of the known mismatches in the end"""
    thresholds: np.ndarray
    """(T,) ascending; pairs believed in by less are flagged"""
    flagged: np.ndarray
    """(T,) how many real pairs are"""
    precision: np.ndarray
    """(T,) share of the flagged that are mismatched; NaN where nothing is flagged"""
    recall: np.ndarray
    """(T,) share of the mismatched that are flagged"""


def draw(pairs: Pairs, share: float, seed: int) -> np.ndarray:
    """Captions without repetition, each with a random image that it is not shown with. (decoys, 2) int64"""
    rng = np.random.default_rng([_STREAM, seed])
    count = min(max(round(share * len(pairs)), 1), len(pairs))
    captions = np.sort(rng.permutation(len(pairs))[:count])
    shift = rng.integers(1, pairs.images, size=count)
    return np.stack([captions, (pairs.image_index[captions] + shift) % pairs.images], axis=1)


def add(pairs: Pairs, drawn: np.ndarray) -> Pairs:
    """The pairs with these decoys behind them."""
    captions, images = drawn.T
    rows = np.arange(len(pairs)) if pairs.caption_rows is None else pairs.caption_rows
    return replace(
        pairs,
        captions=[*pairs.captions, *(pairs.captions[int(number)] for number in captions)],
        image_index=np.concatenate([pairs.image_index, images]),
        truth=None if pairs.truth is None else np.concatenate([pairs.truth, np.zeros(len(drawn), dtype=bool)]),
        caption_rows=np.concatenate([rows, rows[captions]]),
    )
