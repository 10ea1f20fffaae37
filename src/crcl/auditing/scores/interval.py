"""An estimate with its 95 % interval, and how it is told."""

import numpy as np


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

    def __repr__(self) -> str:
        return f"{float(self):.3g} ({self.low:.3g} to {self.high:.3g})"


def percent(share: float | None, decimals: int = 0) -> str:
    """A share as `12 %`; `unknown` for NaN or None."""
    return "unknown" if share is None or not np.isfinite(share) else f"{100 * share:.{decimals}f} %"


def bounds(found: Interval, decimals: int = 0) -> str:
    """An interval of a share in percent, such as `84–92`."""
    return f"{100 * found.low:.{decimals}f}–{100 * found.high:.{decimals}f}"


def told(found: Interval | None, decimals: int = 0) -> str:
    """An estimated share with its interval in percent, such as `88 % (84–92)`; `unknown` where there is none."""
    return "unknown" if found is None else f"{percent(found, decimals)} ({bounds(found, decimals)})"
