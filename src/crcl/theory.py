"""The paper's bounds on the effect of noise on the robust complementary loss: Eq. 7 and Lemma 1 (docs/theory.md)."""

import math


def smallest_sum(n: int) -> float:
    """A_min = N tan(1/N): the smallest sum of tan(p) over probabilities that add up to 1 (all equal)."""
    return n * math.tan(1 / n)


def largest_sum() -> float:
    """A_max = tan(1): the largest sum of tan(p) over probabilities that add up to 1 (one of them is 1).

    The paper's sentence below Eq. 7 swaps the words "maximum" and "minimum"; its inequality A_min < A_max is right.
    """
    return math.tan(1)


def lower_bound(q: float, noise: float, n: int) -> float:
    """C of Eq. 7: how far below R(f*_eta), the risk of the noisy minimiser, R(f*) can lie. 0 at q = 1 (Lemma 1)."""
    _check(noise, n)
    return 2 * noise * _gap(q, n) / (1 - n * noise / (n - 1))


def noisy_upper_bound(q: float, noise: float, n: int) -> float:
    """C' of the supplement: how far above the noisy risk's minimum R_eta(f*) can lie. 0 at q = 1."""
    _check(noise, n)
    return -2 * noise * _gap(q, n)


def _check(noise: float, n: int) -> None:
    if not 0 <= noise < (n - 1) / n:
        raise ValueError(f"the bound needs a noise rate in [0, {(n - 1) / n:.4f}) for n = {n}, got {noise}")


def _gap(q: float, n: int) -> float:
    return float(smallest_sum(n) ** (1 - q) - largest_sum() ** (1 - q))
