"""Auditing the training pairs of a run: correspondences, estimates by decoys, similarities, suggestions."""

from dataclasses import replace
from pathlib import Path

from crcl.auditing.clean import PLAIN, Cleaned, Cleaning, clean_pairs, refuse_output
from crcl.auditing.copies import check_duplicates_file, find_duplicates
from crcl.auditing.findings import check_output, find
from crcl.auditing.making import recorded_image_folder
from crcl.auditing.origin import Origin, suggest_more
from crcl.auditing.report.page import check_report_folder
from crcl.auditing.result import Audit
from crcl.auditing.scores.of_run import score_run
from crcl.auditing.thresholds import Choice, choose_threshold, read_correspondences, refuse_unsure
from crcl.config import Config
from crcl.data.duplicates import all_alike
from crcl.data.pairs import Pairs
from crcl.data.pictures.files import Files
from crcl.data.sources.base import Location
from crcl.progress import SILENT, Progress
from crcl.retrieval.model import Model
from crcl.runs.describe import conditions, report_unfinished
from crcl.runs.folder import Run
from crcl.storage import refuse_input
from crcl.training.inputs import audited_pairs

SUGGESTED = 10_000
"""Default number of suspects that get suggestions."""


def audit_run(
    model: Model,
    data: Pairs,
    choice: Choice,
    *,
    score: str | None = None,
    quick: Run | None = None,
    images: Path | None = None,
    suggest: int = SUGGESTED,
    progress: Progress = SILENT,
) -> Audit:
    """Audit the training pairs of a run.

    Args:
        model: The run's matcher.
        data: Its training data.
        choice: Which pairs are suspect.
        score: The score to judge by; by default the one that tells decoys from pairs best.
        quick: A run without a network on the same pairs and decoys, whose scores count too.
        images: The folder of the image files, for pictures; where the data says, if not given.
        suggest: How many suspects, the worst first, get suggestions.
        progress: Receives messages and progress.
    """
    run, config = model.run, model.config
    report_unfinished(run, config, progress)
    pairs = audited_pairs(run, config, data)
    if run.has_beliefs:
        similarity = score_run(model, data, beside=quick, progress=progress).values["similarity"][: len(pairs)]
    else:
        with progress.task("similarities") as advance:
            similarity = model.scorer.pair_similarities(pairs, advance=advance)
    correspondences = read_correspondences(run, score)
    if correspondences.unsure and (cause := all_alike(pairs)):
        correspondences = replace(correspondences, unsure=f"{correspondences.unsure}: {cause}")
    own = config.own_threshold()
    threshold = choose_threshold(correspondences, choice, own=own, method=config.method, progress=progress)
    features = None if data.location is None else data.location.features
    folder = images or recorded_image_folder(features)
    origin = Origin(
        run=run,
        conditions=conditions(run, config),
        method=config.method,
        own_threshold=own,
        data=data,
        scorer=model.scorer,
        pictures=data.pictures if folder is None else Files(folder),
        suggest=suggest,
    )
    found = find(
        pairs, correspondences.correspondence, similarity, threshold=threshold, p_wrong=correspondences.p_wrong()
    )
    duplicates = find_duplicates(pairs, data, least=config.data.near_copies, progress=progress)
    suggestions = suggest_more(origin, found, None, progress)
    return Audit(replace(found, suggestions=suggestions), correspondences, origin, duplicates)


def clean_run(
    run: Run,
    config: Config,
    data: Pairs,
    path: Path,
    choice: Choice,
    *,
    score: str | None = None,
    how: Cleaning = PLAIN,
    progress: Progress = SILENT,
) -> Cleaned:
    """Write the data of a run again without the suspects, from the scores in the run folder alone."""
    location = data.location or Location("")
    refuse_output(location, path, overwrite=how.overwrite)
    report_unfinished(run, config, progress)
    run.load_ledger()  # refuses a run without correspondences
    correspondences = read_correspondences(run, score)
    assert correspondences.correspondence is not None
    own = config.own_threshold()
    threshold = choose_threshold(correspondences, choice, own=own, method=config.method, progress=progress)
    refuse_unsure(correspondences, choice.threshold, run.path, mark=how.mark or how.verdicts)
    pairs = audited_pairs(run, config, data)
    return clean_pairs(run, location, path, pairs, correspondences.correspondence, threshold=threshold, how=how)


def check_outputs(table: Path, report: Path | None, source: Path) -> None:
    """Refuse, before long work, files and folders that `Audit.write` and `Audit.report` would refuse after it.

    Args:
        table: The table to write.
        report: The folder of the report, if there is to be one.
        source: The data or run to audit, which is never overwritten.
    """
    check_output(table)
    check_duplicates_file(table)
    refuse_input(table, str(source))
    if report is not None:
        check_report_folder(report)
