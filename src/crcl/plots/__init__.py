"""Figures: each is a function of plain arrays that returns a matplotlib Figure."""

from crcl.plots.contact_sheet import SheetRow, sheet
from crcl.plots.correspondence import beliefs, distributions, precision_recall, tradeoff
from crcl.plots.methods import comparison, epochs, overview, robustness, sweeps
from crcl.plots.retrieval import ranks
from crcl.plots.style import align, save, svg
from crcl.plots.theory import bound
from crcl.plots.training import curves, detected, ridge

__all__ = [
    "SheetRow",
    "align",
    "beliefs",
    "bound",
    "comparison",
    "curves",
    "detected",
    "distributions",
    "epochs",
    "overview",
    "precision_recall",
    "ranks",
    "ridge",
    "robustness",
    "save",
    "sheet",
    "svg",
    "sweeps",
    "tradeoff",
]
