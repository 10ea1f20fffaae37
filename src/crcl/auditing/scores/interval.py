"""An estimate with its 95 % interval, and how it is told."""

import numpy as np

WIDEST = 0.5
"""An interval of a share that is wider leaves more open than it rules out: its estimate is not told."""


class Interval(float):
    """An estimate with its 95 % interval.

    Example:
        >>> rate = Interval(0.188, 0.177, 0.197)
        >>> rate
        0.188 (0.177 to 0.197)
        >>> rate < 0.2, rate.low
        (True, 0.177)
    """

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> "Interval":
        """A float that also has `low` and `high`."""
        made = super().__new__(cls, value)
        made.low, made.high = low, high
        return made

    @property
    def vague(self) -> bool:
        """Whether the interval leaves more open than it rules out, so that the estimate says nothing."""
        return self.high - self.low > WIDEST

    def __repr__(self) -> str:
        return f"{float(self):.3g} ({self.low:.3g} to {self.high:.3g})"


def percent(share: float | None, decimals: int = 0) -> str:
    """A share as `12 %`; `unknown` for NaN or None."""
    return "unknown" if share is None or not np.isfinite(share) else f"{100 * share:.{decimals}f} %"


def bounds(found: Interval, decimals: int = 0) -> str:
    """An interval of a share in percent, such as `84–92`."""
    return f"{100 * found.low:.{decimals}f}–{100 * found.high:.{decimals}f}"


def told(found: Interval | None, decimals: int = 0) -> str:
    """An estimated share with its interval in percent, such as `88 % (84–92)`; `unknown` where there is none.

    Of a vague one the interval alone is told, as `between 11 and 85 %`.
    """
    if found is None:
        return "unknown"
    if found.vague:
        return f"between {100 * found.low:.{decimals}f} and {percent(found.high, decimals)}"
    return f"{percent(found, decimals)} ({bounds(found, decimals)})"


def unless_vague(found: Interval | None) -> Interval | None:
    """The estimate where its interval says something; None elsewhere."""
    return None if found is None or found.vague else found
