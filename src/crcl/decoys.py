"""How sure an audit is: known mismatches among the training pairs, and what their beliefs say of all others."""

from dataclasses import dataclass

import numpy as np


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
