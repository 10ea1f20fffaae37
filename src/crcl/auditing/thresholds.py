"""Which pairs are suspect: the threshold that was given, that decoys recommend, or that the method itself goes by."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crcl.auditing.estimate import FEWEST, Estimate, estimate, told_apart
from crcl.auditing.findings import THRESHOLD
from crcl.errors import InputError
from crcl.progress import Progress
from crcl.runs.folder import Run

LOW_BELIEF = 0.2
"""Mean correspondence below which the threshold says little."""


@dataclass(frozen=True)
class Beliefs:
    """What a run believes of its pairs, and what its decoys say of that."""

    correspondence: np.ndarray | None
    """(N,); None for an imported run without any"""
    estimate: Estimate | None = None
    unsure: str = ""
    """Why decoys say nothing, where there are some that do not."""


def beliefs_of(run: Run) -> Beliefs:
    """The correspondences of a run and the estimate by its decoys."""
    if not run.has_beliefs:
        return Beliefs(None)
    beliefs, decoys = run.load_ledger(), run.load_decoy_ledger()
    if not len(decoys):
        return Beliefs(beliefs)
    if len(decoys) < FEWEST:
        why = f"{len(decoys)} decoys are too few for an estimate, which needs {FEWEST} or more"
        return Beliefs(beliefs, unsure=why)
    if not told_apart(beliefs, decoys):
        why = "the decoys have correspondences as high as the pairs: nothing was learnt that an estimate could use"
        return Beliefs(beliefs, unsure=why)
    return Beliefs(beliefs, estimate(beliefs, decoys))


@dataclass(frozen=True)
class Choice:
    """How to choose suspects: below a threshold, or as many as possible at an estimated precision; or neither."""

    threshold: float | None = None
    precision: float | None = None

    def __post_init__(self) -> None:
        """Refuse, before long work, a choice that cannot be made."""
        if self.threshold is not None and self.precision is not None:
            raise InputError("a threshold and a precision: give one of them")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise InputError(f"the threshold must be between 0 and 1, got {self.threshold:g}")
        if self.precision is not None and not 0 < self.precision <= 1:
            raise InputError(f"the precision must be above 0 and at most 1, such as 0.95, got {self.precision:g}")


def choose_threshold(beliefs: Beliefs, choice: Choice, *, own: float | None, method: str, progress: Progress) -> float:
    """The threshold below which pairs are suspect; what is unsure about it is reported.

    Args:
        beliefs: Those of the run.
        choice: What the user asked for.
        own: The threshold that the method itself goes by, if it has one.
        method: Its name, for messages.
        progress: Receives the messages.

    Returns:
        The threshold asked for, or with the precision asked for, or with the best estimated F1. Without an estimate the
        method's own, or 0.1. It is 0, which flags none, where decoys say nothing or no threshold has that precision.
    """
    if beliefs.unsure:
        progress.note(beliefs.unsure)
    if choice.threshold is not None:
        return choice.threshold
    if choice.precision is not None:
        return _precise(beliefs.estimate, choice.precision, progress)
    if beliefs.estimate is not None:
        return beliefs.estimate.balanced()
    if beliefs.unsure:
        return 0.0
    if own is None and beliefs.correspondence is not None:
        progress.note(
            f"correspondences of a run with {method} are probabilities within a batch, which have no natural "
            f"threshold: {THRESHOLD:g} is arbitrary, so trust the order of the pairs, not who is flagged. Train with "
            "decoys for a threshold that means something, or choose one by looking at the pairs around it"
        )
    return THRESHOLD if own is None else own


def _precise(estimated: Estimate | None, precision: float, progress: Progress) -> float:
    if estimated is None:
        raise InputError(
            "a precision is estimated from decoys, and the run has none that say anything", hint="train with {decoys}"
        )
    found = estimated.precise(precision)
    if not found:
        best = np.nanmax(estimated.precision, initial=0)
        progress.note(
            f"no threshold has an estimated precision of {precision:.0%} (the best has {best:.0%}), so nothing is "
            "flagged; a lower precision, or a threshold, flags some"
        )
    return found or 0.0


def refuse_unsure(beliefs: Beliefs, threshold: float | None, where: Path, *, mark: bool) -> None:
    """Refuse to remove pairs where decoys say nothing and no threshold is given."""
    if beliefs.unsure and threshold is None and not mark:
        raise InputError(
            f"{beliefs.unsure}; so no row is known to be wrong. Look at the pairs that the audit puts first",
            where=where,
            hint="give a {threshold} to remove those below it, or {mark} to keep all rows with their correspondence",
        )
