"""Audit of a run's training pairs: which are suspect."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from crcl.auditing.estimate import Estimate
from crcl.auditing.suggestions import Suggestions
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.metrics import Detection, detection
from crcl.storage import replacing, require_writable

THRESHOLD = 0.1
"""Pairs believed in by less than this are suspects where nothing better is known: the paper's ε (Eq. 12)."""

_FIRST = ["row", "image", "caption", "correspondence"]

LOW_BELIEF = 0.2
"""Mean belief below which the threshold says little."""


@dataclass(frozen=True)
class Audit:
    """All training pairs, worst first."""

    rows: np.ndarray
    """(N,) pair numbers, the least believed first"""
    pairs: Split
    correspondence: np.ndarray
    """(N,) in the order of the pairs; NaN where nothing is believed"""
    similarity: np.ndarray
    """(N,) in the order of the pairs"""
    threshold: float
    suggestions: Suggestions | None = None

    @property
    def suspects(self) -> np.ndarray:
        """Numbers of the suspect pairs, worst first."""
        return self.rows[self.correspondence[self.rows] < self.threshold]

    @property
    def believes(self) -> bool:
        """Whether anything is believed; otherwise the order is that of similarity, and nobody is suspect."""
        return not np.isnan(self.correspondence).any()

    def detection(self) -> Detection | None:
        """How right the suspicions are, where the truth is known; without beliefs, how right the order is."""
        if self.pairs.truth is None:
            return None
        if not self.believes:
            return detection(self.similarity, self.pairs.truth, threshold=-np.inf)
        return detection(self.correspondence, self.pairs.truth, threshold=self.threshold)

    def table(self) -> pa.Table:
        """One row per pair, worst first."""
        rows = self.rows
        images = self.pairs.image_index[rows]
        columns = {
            "row": pa.array(rows if self.pairs.caption_rows is None else self.pairs.caption_rows[rows]),
            "image": pa.array([str(self.pairs.image_ids[image]) for image in images], pa.string()),
            "caption": pa.array([self.pairs.captions[row] for row in rows], pa.string()),
            "correspondence": pa.array(self.correspondence[rows].astype(np.float32), from_pandas=True),  # NaN: null
            "suspect": pa.array(self.correspondence[rows] < self.threshold, mask=np.isnan(self.correspondence[rows])),
            "similarity": pa.array(self.similarity[rows].astype(np.float32)),
        }
        if self.pairs.truth is not None:
            columns["truth"] = pa.array(self.pairs.truth[rows])
        if self.suggestions is not None:
            columns |= _suggested(self.suggestions, self.pairs, rows)
        return pa.table(columns)


def _suggested(suggestions: Suggestions, pairs: Split, rows: np.ndarray) -> dict[str, pa.Array]:
    """Columns of what would match instead, the best first; null where nothing is suggested."""
    place = np.full(len(pairs), -1)
    place[suggestions.rows] = np.arange(len(suggestions.rows))
    asked = place[rows]  # (rows,) where each is among the suggestions, or -1
    columns: dict[str, pa.Array] = {}
    for kind, numbers, similarity, text in (
        ("caption", suggestions.captions, suggestions.caption_similarity, pairs.captions),
        ("image", suggestions.images, suggestions.image_similarity, [str(name) for name in pairs.image_ids]),
    ):
        for best in range(numbers.shape[1]):
            found = np.where(asked < 0, -1, numbers[asked, best])
            names = [None if number < 0 else text[number] for number in found]
            columns[f"{kind}_{best + 1}"] = pa.array(names, pa.string())
            columns[f"{kind}_{best + 1}_similarity"] = pa.array(similarity[asked, best], mask=found < 0)
    return columns


def choose_threshold(
    estimate: Estimate | None,
    *,
    threshold: float | None = None,
    precision: float | None = None,
    default: float = THRESHOLD,
) -> float:
    """The threshold that is asked for, or that has this estimated precision; else the best estimated one.

    Where nothing is estimated it is the `default`. Where none has the precision it is 0: the largest set of pairs of
    which so many are mismatched is the empty one.
    """
    check_choice(threshold=threshold, precision=precision)
    if threshold is not None:
        return threshold
    if precision is None:
        return default if estimate is None else estimate.balanced()
    if estimate is None:
        raise InputError(
            "a precision is estimated from decoys, and the run has none that say anything: train with --decoys 0.05"
        )
    return estimate.precise(precision) or 0.0


def check_choice(*, threshold: float | None, precision: float | None) -> None:
    """Refuse, before long work, what no threshold can be chosen by."""
    if threshold is not None and precision is not None:
        raise InputError("a threshold and a precision: give one of them")
    if threshold is not None and not 0 <= threshold <= 1:
        raise InputError(f"the threshold must be between 0 and 1, got {threshold:g}")
    if precision is not None and not 0 < precision <= 1:
        raise InputError(f"the precision must be above 0 and at most 1, such as 0.95, got {precision:g}")


def audit(
    pairs: Split,
    correspondence: np.ndarray | None,
    similarity: np.ndarray,
    *,
    threshold: float = THRESHOLD,
    suggestions: Suggestions | None = None,
) -> Audit:
    """Order the pairs by belief, then by similarity, worst first; by similarity alone where nothing is believed."""
    if not 0 <= threshold <= 1:
        raise InputError(f"the threshold must be between 0 and 1, got {threshold}")
    if correspondence is None:
        correspondence = np.full(len(pairs), np.nan, dtype=np.float32)
    if len(correspondence) != len(pairs):
        raise InputError(f"{pairs.source}: {len(pairs)} pairs, but beliefs for {len(correspondence)}")
    return Audit(np.lexsort((similarity, correspondence)), pairs, correspondence, similarity, threshold, suggestions)


def write(audit: Audit, path: str | Path) -> None:
    """Write the table as CSV or Parquet, by the file's ending; whole or not at all."""
    path = Path(path)
    _check_ending(path)
    write_table = pa.csv.write_csv if path.suffix == ".csv" else pa.parquet.write_table
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            write_table(audit.table(), temporary)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


def check_output(path: Path) -> None:
    """Refuse, before long work, a file that could not be written, or one that is no earlier audit."""
    _check_ending(path)
    require_writable(path)
    if path.exists() and _columns_of(path)[: len(_FIRST)] != _FIRST:
        raise InputError(f"{path}: exists already and is no audit, so it is not replaced; name another file")


def _check_ending(path: Path) -> None:
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{path}: an audit is written as .csv or .parquet")


def _columns_of(path: Path) -> list[str]:
    """Names of a table's columns; none where it is no table."""
    try:
        if path.suffix == ".parquet":
            return list(pa.parquet.read_schema(path).names)
        with path.open("rb") as file:
            return file.readline(1000).decode("utf-8", "replace").strip().replace('"', "").split(",")
    except (OSError, pa.ArrowException):
        return []
