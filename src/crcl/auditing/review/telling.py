"""What verdicts changed in an audit, in sentences and as a column of its table."""

import numpy as np
import pyarrow as pa

from crcl.auditing.scores.interval import told
from crcl.auditing.summary import precision_at, rate_of, recall_at
from crcl.auditing.thresholds import Correspondences
from crcl.runs.exchange.known import Known


def about_verdicts(found: Correspondences, threshold: float) -> list[str]:
    """How many verdicts the training knew, and what the estimates would be without; nothing where there were none."""
    known = found.known
    if known is None:
        return []
    wrong, right = int(known.wrong.sum()), int(known.right.sum())
    trained = f"Trained with verdicts on {wrong + right:,} pairs: {wrong:,} wrong, {right:,} right."
    if found.without is None:
        return [trained]
    alone = found.without
    return [
        f"{trained} By decoys alone, {told(rate_of(alone), 1)} would be mismatched, and at this threshold "
        f"precision {told(precision_at(alone, threshold))}, recall {told(recall_at(alone, threshold))}."
    ]


def verdict_column(known: Known, rows: np.ndarray) -> pa.Array:
    """What was said of each pair, `right` or `wrong`; null where nothing was."""
    said = [None if np.isnan(belief) else "right" if belief else "wrong" for belief in known.beliefs[rows]]
    return pa.array(said, pa.string())
