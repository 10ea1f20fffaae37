"""The findings of an audit: every training pair with its correspondence, worst first, as a table and as a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from crcl.auditing.suggestions import Suggestions
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.metrics import Detection, detection
from crcl.storage import replacing, require_writable

THRESHOLD = 0.1
"""Default threshold without decoys or one of the method's own: the paper's ε (Eq. 12)."""
_FIRST = ["row", "image", "caption", "correspondence"]


@dataclass(frozen=True, eq=False)
class Findings:
    """All training pairs, worst first, and which of them are suspect."""

    rows: np.ndarray
    """(N,) pair numbers, the lowest correspondence first"""
    pairs: Split
    correspondence: np.ndarray
    """(N,) in the order of the pairs; NaN where the run has none"""
    similarity: np.ndarray
    """(N,) in the order of the pairs"""
    threshold: float
    """Pairs with a lower correspondence are suspects."""
    suggestions: Suggestions | None = None
    p_wrong: np.ndarray | None = None
    """(N,) probability that each pair is mismatched, in the order of the pairs; None where it cannot be estimated"""

    @property
    def suspects(self) -> np.ndarray:
        """Numbers of the suspect pairs, worst first."""
        return self.rows[self.correspondence[self.rows] < self.threshold]

    @property
    def has_correspondence(self) -> bool:
        """Whether there are correspondences; otherwise pairs are ordered by similarity, and none is suspect."""
        return not np.isnan(self.correspondence).any()

    def detection(self) -> Detection | None:
        """Scores against the truth, where it is known; without correspondences, of the order by similarity."""
        if self.pairs.truth is None:
            return None
        if not self.has_correspondence:
            return detection(self.similarity, self.pairs.truth, threshold=-np.inf)
        return detection(self.correspondence, self.pairs.truth, threshold=self.threshold)

    def table(self, beside: Mapping[str, pa.Array] = MappingProxyType({})) -> pa.Table:
        """One row per pair, worst first; `beside` are more columns, which stand before the suggestions."""
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
        if self.p_wrong is not None:
            columns["p_wrong"] = pa.array(self.p_wrong[rows].astype(np.float32))
        if self.pairs.truth is not None:
            columns["truth"] = pa.array(self.pairs.truth[rows])
        columns |= beside
        if self.suggestions is not None:
            columns |= _suggested(self.suggestions, self.pairs, rows)
        return pa.table(columns)


def _suggested(suggestions: Suggestions, pairs: Split, rows: np.ndarray) -> dict[str, pa.Array]:
    """Columns of suggestions, the best first; null where nothing is suggested."""
    place = np.full(len(pairs), -1)
    place[suggestions.rows] = np.arange(len(suggestions.rows))
    places = place[rows]  # (rows,) place of each row in the suggestions, or -1
    columns: dict[str, pa.Array] = {}
    shown_in = pairs.rows[first_shown(pairs)]
    for kind, numbers, fit, text in (
        ("caption", suggestions.captions, suggestions.caption_fit, pairs.captions),
        ("image", suggestions.images, suggestions.image_fit, [str(name) for name in pairs.image_ids]),
    ):
        for best in range(numbers.shape[1]):
            found = np.where(places < 0, -1, numbers[places, best])
            names = [None if number < 0 else text[number] for number in found]
            columns[f"{kind}_{best + 1}"] = pa.array(names, pa.string())
            if kind == "image" and suggestions.fit == "belief":
                columns[f"{kind}_{best + 1}_row"] = pa.array(shown_in[found], mask=found < 0)
            columns[f"{kind}_{best + 1}_{suggestions.fit}"] = pa.array(fit[places, best], mask=found < 0)
    return columns


def first_shown(pairs: Split) -> np.ndarray:
    """The first pair that shows each image; 0 for an image without pairs. (M,)"""
    first = np.zeros(pairs.images, dtype=np.int64)
    first[pairs.image_index[::-1]] = np.arange(len(pairs))[::-1]
    return first


def find(
    pairs: Split,
    correspondence: np.ndarray | None,
    similarity: np.ndarray,
    *,
    threshold: float = THRESHOLD,
    suggestions: Suggestions | None = None,
    p_wrong: np.ndarray | None = None,
) -> Findings:
    """Order the pairs by correspondence, then by similarity; without correspondences by similarity alone."""
    if not 0 <= threshold <= 1:
        raise InputError(f"the threshold must be between 0 and 1, got {threshold}")
    if correspondence is None:
        correspondence = np.full(len(pairs), np.nan, dtype=np.float32)
    if len(correspondence) != len(pairs):
        raise InputError(f"{len(pairs)} pairs, but correspondences of {len(correspondence)}", where=pairs.source)
    rows = np.lexsort((similarity, correspondence))
    return Findings(rows, pairs, correspondence, similarity, threshold, suggestions, p_wrong)


def write_table(table: pa.Table, path: str | Path) -> None:
    """Write a table as CSV or Parquet, by the file's ending; a failure leaves the old file."""
    path = Path(path)
    _check_ending(path)
    write = pa.csv.write_csv if path.suffix == ".csv" else pa.parquet.write_table
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            write(table, temporary)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", where=path) from error


def check_output(path: str | Path) -> None:
    """Refuse, before long work, a file that cannot be written, or that exists and is not an earlier audit."""
    path = Path(path)
    _check_ending(path)
    require_writable(path)
    if path.exists() and columns_of(path)[: len(_FIRST)] != _FIRST:
        raise InputError("exists and is not an audit, so it is not replaced", where=path, hint="name another file")


def _check_ending(path: Path) -> None:
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(
            "an audit is written as .csv or .parquet", where=path, hint="name a file that ends in one of these"
        )


def columns_of(path: Path) -> list[str]:
    """Names of a table's columns; empty where the file is not a table."""
    try:
        if path.suffix == ".parquet":
            return list(pa.parquet.read_schema(path).names)
        with path.open("rb") as file:
            return file.readline(1000).decode("utf-8", "replace").strip().replace('"', "").split(",")
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return []
