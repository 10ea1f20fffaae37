"""Probabilities that pairs are wrong, from correspondences: calibrated by the decoys."""

import numpy as np


def wrong_probability(correspondence: np.ndarray, decoys: np.ndarray, rate: float) -> np.ndarray:
    """The probability that each pair is mismatched. (N,) float32

    With F0 the distribution of the decoys' correspondences y and G that of the pairs', it is rate * f0(y) / g(y), where
    f0 and g are densities. Their ratio must not rise with y. It comes from the share of decoys among decoys and pairs
    at each y, by isotonic regression.

    Args:
        correspondence: (N,) of the pairs.
        decoys: (D,) of the decoys.
        rate: Share of mismatched pairs.
    """
    from sklearn.isotonic import isotonic_regression  # loads slowly: not for every command

    values, place = np.unique(np.concatenate([correspondence, decoys]), return_inverse=True)
    pairs = np.bincount(place[: len(correspondence)], minlength=len(values))
    known = np.bincount(place[len(correspondence) :], minlength=len(values))
    both = (pairs + known).astype(np.float64)
    share = isotonic_regression(known / both, sample_weight=both, increasing=False)  # of decoys, at each value
    scale = rate * len(correspondence) / len(decoys)
    # rate * f0 / g = scale * share / (1 - share), at most 1
    found = np.where(share * (1 + scale) >= 1, 1.0, scale * share / np.maximum(1 - share, 1e-300))
    return found[place[: len(correspondence)]].astype(np.float32)
