"""The result of an audit: estimates with intervals, the pairs as a table, a report, a cleaned copy of the data."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crcl.auditing.clean import Cleaned, Cleaning, can_write, clean_pairs, refuse_output
from crcl.auditing.copies import Duplicates, write_duplicates
from crcl.auditing.estimate import Estimate
from crcl.auditing.findings import Findings, check_output, write_table
from crcl.auditing.origin import Origin, explain, suggest_more
from crcl.auditing.reasons import Reasons
from crcl.auditing.report.page import Details, write_report
from crcl.auditing.review.telling import about_verdicts, verdict_column
from crcl.auditing.scores.interval import Interval, unless_vague
from crcl.auditing.scores.telling import about_kinds, about_score, about_training, scores_table
from crcl.auditing.summary import about_decoys, caveats, precision_at, rate_of, recall_at, summary, unread
from crcl.auditing.thresholds import Choice, Correspondences, choose_threshold, refuse_unsure
from crcl.data.pictures.base import Pictures
from crcl.errors import InputError, Spell, python_spelling, spelled
from crcl.metrics import Detection
from crcl.progress import SILENT, Progress
from crcl.runs.folder import Run

if TYPE_CHECKING:  # pandas is not needed by the package
    import pandas


class Audit:
    """Which pairs are wrong, how sure that is, what would match instead, and how many are wrong in all.

    `crcl.audit` makes it. Nothing is written until `write`, `report` or `clean` is called.

    Example:
        >>> audit = crcl.audit("pairs.csv", images="photos", model="openai/clip-vit-base-patch32")
        >>> audit.rate, audit.precision, audit.recall
        (0.188 (0.177 to 0.197), 0.88 (0.84 to 0.92), 0.9 (0.88 to 0.91))
        >>> audit.at(precision=0.9).suspects.num_rows
        17
    """

    def __init__(
        self, findings: Findings, correspondences: Correspondences, origin: Origin, duplicates: Duplicates
    ) -> None:
        self.findings = findings
        self._correspondences = correspondences
        self._origin = origin
        self._duplicates = duplicates

    @property
    def run(self) -> Run:
        """The run that the correspondences come from."""
        return self._origin.run

    @property
    def threshold(self) -> float:
        """Pairs with a lower correspondence are suspects."""
        return self.findings.threshold

    @property
    def estimate(self) -> Estimate | None:
        """The estimate by decoys at every threshold; None where there are no decoys, or where they allow none."""
        return self._correspondences.estimate

    @property
    def unsure(self) -> str:
        """Why the decoys allow no estimate; empty where they do, or where there are none."""
        return self._correspondences.unsure

    @property
    def rate(self) -> Interval | None:
        """Estimated share of mismatched pairs, with its interval."""
        return None if self.estimate is None else rate_of(self.estimate)

    @property
    def precision(self) -> Interval | None:
        """Estimated share of the suspects that are mismatched; None if nothing is flagged, or its interval too wide."""
        return None if self.estimate is None else unless_vague(precision_at(self.estimate, self.threshold))

    @property
    def recall(self) -> Interval | None:
        """Estimated share of the mismatched pairs that are suspects, with its interval; None where that is too wide."""
        return None if self.estimate is None else unless_vague(recall_at(self.estimate, self.threshold))

    @property
    def recalls(self) -> dict[str, Interval | None]:
        """Share of decoys that are flagged, by kind: `random`, `near`, `swap`; None where its interval is too wide."""
        return {kind: unless_vague(found) for kind, found in self._correspondences.recall(self.threshold).items()}

    @property
    def score(self) -> str:
        """The score that the correspondences come from."""
        return self._correspondences.score

    @property
    def scores(self) -> pa.Table | None:
        """How well each score tells decoys from pairs, and what it estimates, the best first; None without decoys."""
        found = self._correspondences
        return scores_table(found.scores, found.ratings, found.score) if found.scores and found.ratings else None

    @property
    def kept(self) -> pa.Table | None:
        """The trade-off of cleaning: at each threshold the share kept, and how much of it is still wrong, estimated."""
        kept = None if self.estimate is None else self.estimate.kept()
        return kept and pa.table({"threshold": kept.thresholds, "kept": kept.share, "wrong": kept.wrong})

    @property
    def duplicates(self) -> Duplicates:
        """Images and captions that occur more than once: tables `images`, `near`, `captions` and `generic`."""
        return self._duplicates

    @property
    def reasons(self) -> dict[str, int]:
        """How many suspects have each reason, in the words of the column `reason`."""
        return self.why.counts()

    @cached_property
    def why(self) -> Reasons:
        """Why each suspect is one, and what would repair it."""
        return explain(self._origin, self.findings, self._correspondences, self.duplicates.copies)

    @property
    def name(self) -> str:
        """The name of the data, without its folder."""
        return Path(self._origin.data.name).name

    @property
    def pictures(self) -> Pictures | None:
        """Where the images lie; None if that is unknown."""
        return self._origin.pictures

    @property
    def correspondence(self) -> np.ndarray:
        """(N,) belief that each training pair matches, in the order of the data: 0 suspect, 1 match."""
        return self.findings.correspondence

    @property
    def p_wrong(self) -> np.ndarray | None:
        """(N,) probability that each training pair is mismatched, calibrated by decoys; None without an estimate."""
        return self.findings.p_wrong

    @property
    def detection(self) -> Detection | None:
        """Scores against the truth, where noise was injected; None elsewhere."""
        return self.findings.detection()

    @cached_property
    def table(self) -> pa.Table:
        """One row per training pair, worst first.

        Columns: row (in the data, from 0), image, caption, correspondence, suspect, similarity; p_wrong (the
        probability that the pair is mismatched) where decoys allow an estimate; truth where it is known. For suspects
        reason and fix (why, and what would repair it), lacking or regions (words that find nothing in the image, by
        matcher naaf; the region that each word fits best, by chan), least_sentence (of several), and `caption_1`,
        `image_1`, ...: suggestions of what would match, with similarities, or with the beliefs of a run of method
        `relink` (`image_1_belief`, and `image_1_row`, a row that shows it). `score_NAME` for each score. For copies
        copy_of, near_copy_of and generic_caption. Where the run was trained with verdicts: verdict.
        """
        rows, found = self.findings.rows, self._correspondences
        table = self.findings.table(self.why.columns(rows) if self.suspect_count else {})
        columns = {} if found.scores is None else {f"score_{name}": found.scores.of(name) for name in found.ratings}
        for name, values in columns.items():
            table = table.append_column(name, pa.array(values[rows].astype(np.float32), from_pandas=True))
        if found.known is not None:
            table = table.append_column("verdict", verdict_column(found.known, rows))
        for name, values in self.duplicates.columns(rows).items():
            table = table.append_column(name, values)
        return table

    @property
    def suspects(self) -> pa.Table:
        """The rows of `table` that are suspect, worst first."""
        return self.table.filter(pc.fill_null(self.table["suspect"], False))

    @property
    def suspect_count(self) -> int:
        """How many pairs are suspect."""
        return len(self.findings.suspects)

    @property
    def can_clean(self) -> bool:
        """Whether `clean` works: the data must be on disk, in a layout that can be written."""
        return (location := self._origin.data.location) is not None and can_write(location)

    @property
    def suffix(self) -> str:
        """The ending of the data's file, and of a cleaned copy; empty for a folder."""
        return "" if (data := Path(self._origin.data.name)).is_dir() else data.suffix

    def to_pandas(self) -> "pandas.DataFrame":
        """`table` as a DataFrame; needs pandas."""
        return self.table.to_pandas()

    def summary(self) -> list[str]:
        """What was found, in sentences."""
        found = summary(self.findings, self.estimate, unsure=self.unsure)
        unjudged = self._origin.not_judged(self.findings.pairs)
        return [*found, *unjudged, *self._judged_by(), *self.duplicates.sentences()]

    def _judged_by(self) -> list[str]:
        found = self._correspondences
        how = {"doubtful": found.doubtful, "blind": found.blind, "vague": found.vague is not None}
        return [
            *about_verdicts(found, self.threshold),
            *(about_kinds(found.recall(self.threshold)) if self.suspect_count else []),
            *about_score(found.score, found.ratings, **how),
            *([] if self.unsure else about_training(found.ratings)),
        ]

    def caveats(self, spell: Spell = python_spelling) -> list[str]:
        """Reasons to trust the numbers less, and what helps, in sentences; `spell` writes names of parameters."""
        advice = (spelled(one, spell) for one in about_decoys(self.estimate, self.threshold))
        return [*caveats(self.findings, self.estimate), *unread(self.run.made), *advice]

    def at(
        self,
        *,
        threshold: float | None = None,
        precision: float | None = None,
        keep: float | None = None,
        wrong_at_most: float | None = None,
        progress: Progress = SILENT,
    ) -> "Audit":
        """The same audit at another threshold. Only suggestions for new suspects are computed.

        Args:
            threshold: Flag all pairs with a lower correspondence.
            precision: Or flag as many as possible at this estimated precision, such as 0.95.
            keep: Or keep this share of the pairs, the most believed, such as 0.3.
            wrong_at_most: Or flag as few as possible, so that at most this share of the rest is mismatched, as
                estimated, such as 0.05.
            progress: Receives messages and progress.

        Returns:
            A new audit; this one stays as it is.
        """
        origin = self._origin
        choice = Choice(threshold, precision, keep, wrong_at_most)
        chosen = choose_threshold(
            self._correspondences, choice, own=origin.own_threshold, method=origin.method, progress=progress
        )
        found = replace(self.findings, threshold=chosen)
        suggestions = suggest_more(origin, found, self.findings.suggestions, progress)
        return Audit(replace(found, suggestions=suggestions), self._correspondences, origin, self.duplicates)

    def write(self, path: str | Path) -> Path:
        """Write `table` as `.csv` or `.parquet`; the latter with `image_path`, for other tools (docs/verdicts.md).

        Args:
            path: The file. An earlier audit is replaced, any other file is refused.
        """
        path = Path(path)
        check_output(path)
        self._origin.refuse_data(path, self.findings.pairs)
        write_table(self._origin.with_paths(self.table, path), path)
        return path

    def write_duplicates(self, path: str | Path) -> Path | None:
        """Write the copies as a table beside that of the audit; without any, nothing is written.

        Args:
            path: The table of the audit: beside `audit.csv` the file is `duplicates.csv`, beside `x.csv`
                `x-duplicates.csv`. An earlier one is replaced or removed, any other file is refused.

        Returns:
            The file; None if there are no copies.
        """
        return write_duplicates(self.duplicates, Path(path))

    def report(
        self,
        folder: str | Path,
        *,
        title: str = "",
        remarks: Sequence[str] = (),
        next_step: tuple[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> Path:
        """Write a report page: a summary, charts, and the worst pairs with their pictures and suggestions.

        Args:
            folder: A new or empty folder, or that of an earlier report, which is replaced.
            title: The heading; by default it names the data.
            remarks: More sentences for the summary.
            next_step: A command or call to show, and what it does.
            progress: Receives progress.

        Returns:
            The page, `folder/index.html`.
        """
        unjudged = [*self._origin.not_judged(self.findings.pairs), *unread(self.run.made)]
        with progress.task("report") as advance:
            return write_report(
                Path(folder),
                self.findings,
                title=title or f"Audit of {self.name}",
                estimate=self.estimate,
                unsure=self.unsure,
                pictures=self._origin.pictures,
                remarks=[*self._judged_by(), *remarks, *unjudged],
                next_step=next_step,
                details=Details(self.duplicates, self.why, self.scores, self._correspondences.recall(self.threshold)),
                about=[("data", self.name), ("run", self._origin.conditions)],
                advance=advance,
            )

    def clean(
        self,
        path: str | Path,
        *,
        relink: float | None = None,
        verdicts: bool = False,
        mark: bool = False,
        images: Literal["link", "copy"] | None = None,
        rewrite: bool = False,
        overwrite: bool = False,
    ) -> Cleaned:
        """Write a copy of the data without the suspects; all columns, values and the order stay as they are.

        Rows that were not trained on (held out, without a caption or a usable image) are not judged, and stay.

        Args:
            path: The file or the folder to write, in the layout of the data.
            relink: Move captions that belong to another image with at least this belief, such as 0.9; needs a run of
                method `relink`.
            verdicts: What was said of pairs in review beats correspondences: right ones stay, wrong ones are removed,
                or written with their new caption or image.
            mark: Keep all rows, and add a column `correspondence` instead.
            images: Link or copy the image files beside the cleaned data, where they are files of their own.
            rewrite: Write tars anew, instead of lists of what to keep.
            overwrite: Replace an existing file.
        """
        how = Cleaning(mark, overwrite, images, rewrite, relink, verdicts)
        path, location, found = Path(path), self._origin.data.location, self.findings
        if location is None:
            raise InputError("the data is in memory only", hint="filter it by `suspects`, or audit data on disk")
        refuse_output(location, path, overwrite=overwrite)
        refuse_unsure(self._correspondences, self.threshold or None, self.run.path, mark=mark or verdicts)
        at = found.threshold
        return clean_pairs(self.run, location, path, found.pairs, found.correspondence, threshold=at, how=how)

    def __repr__(self) -> str:
        lines = [*self.summary(), *self.caveats()]
        return "\n".join([f"Audit of {self._origin.data.name}", *(f"  {line}" for line in lines)])
