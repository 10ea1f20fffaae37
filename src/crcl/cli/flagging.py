"""Which pairs of a run are flagged, for the commands that need to know; what is unsure of it is said."""

import numpy as np

from crcl import config
from crcl.auditing import estimate as decoys
from crcl.auditing import result as auditing
from crcl.cli.screen import note
from crcl.runs.folder import Run


def beliefs_of(run: Run) -> tuple[np.ndarray | None, decoys.Estimate | None, str]:
    """What a run believes of its pairs, what its decoys say of that, and why not where they say nothing."""
    if not run.has_beliefs:
        return None, None, ""
    beliefs, of_decoys = run.load_ledger(), run.load_decoy_ledger()
    if not len(of_decoys):
        return beliefs, None, ""
    if len(of_decoys) < decoys.FEWEST:
        why = f"{len(of_decoys)} decoys are too few to estimate anything from; {decoys.FEWEST} would do"
        return beliefs, None, why
    if not decoys.told_apart(beliefs, of_decoys):
        why = "the decoys are believed as much as the pairs: nothing was learnt that an estimate could be made from"
        return beliefs, None, why
    return beliefs, decoys.estimate(beliefs, of_decoys), ""


def flagged_below(
    stored: config.Config,
    beliefs: np.ndarray | None,
    estimate: decoys.Estimate | None,
    threshold: float | None,
    precision: float | None,
    *,
    silent: str,
) -> float:
    """Below what pairs are flagged; 0, which flags none, where decoys say nothing (`silent`) and none is given."""
    own = stored.own_threshold()
    default = 0.0 if silent else auditing.THRESHOLD if own is None else own
    if silent:
        note(silent)
    at = auditing.choose_threshold(estimate, threshold=threshold, precision=precision, default=default)
    if own is None and threshold is None and estimate is None and beliefs is not None and not silent:
        note(
            f"beliefs of a run with {stored.method} are probabilities within a batch, which have no natural threshold: "
            f"{at:g} is arbitrary, so trust the order of the pairs, not who is flagged. Decoys give a "
            "threshold (crcl train --decoys 0.05), or choose --threshold by looking at the pairs around it"
        )
    if precision is not None and estimate is not None and not at:
        best = np.nanmax(estimate.precision, initial=0)
        note(
            f"no threshold has an estimated precision of {precision:.0%} (the best has {best:.0%}), so nothing is "
            "flagged; a --threshold or a lower --precision flags some"
        )
    return at
