"""Auditing the training pairs of a run: correspondences, estimates by decoys, similarities, suggestions."""

from dataclasses import replace
from pathlib import Path

from crcl.auditing.clean import PLAIN, Cleaned, Cleaning, clean, refuse_output
from crcl.auditing.copies import find_duplicates
from crcl.auditing.findings import find
from crcl.auditing.making import recorded_image_folder
from crcl.auditing.partners import check_relink, moves
from crcl.auditing.result import Audit, Origin, suggest_more
from crcl.auditing.thresholds import Choice, choose_threshold, read_correspondences, refuse_unsure
from crcl.config import Config
from crcl.data.pairs import Pairs
from crcl.data.pictures.files import Files
from crcl.data.sources.base import Location
from crcl.progress import SILENT, Progress
from crcl.retrieval.model import Model
from crcl.runs.describe import conditions, report_unfinished
from crcl.runs.folder import Run
from crcl.training.inputs import audited_pairs

SUGGESTED = 10_000
"""Default number of suspects that get suggestions."""


def audit_run(
    model: Model,
    data: Pairs,
    choice: Choice,
    *,
    images: Path | None = None,
    suggest: int = SUGGESTED,
    progress: Progress = SILENT,
) -> Audit:
    """Audit the training pairs of a run.

    Args:
        model: The run's matcher.
        data: Its training data.
        choice: Which pairs are suspect.
        images: The folder of the image files, for pictures; where the data says, if not given.
        suggest: How many suspects, the worst first, get suggestions.
        progress: Receives messages and progress.
    """
    run, config = model.run, model.config
    report_unfinished(run, config, progress)
    correspondences = read_correspondences(run)
    own = config.own_threshold()
    threshold = choose_threshold(correspondences, choice, own=own, method=config.method, progress=progress)
    pairs = audited_pairs(run, config, data)
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
    with progress.task("similarities") as advance:
        similarity = model.scorer.pair_similarities(pairs, advance=advance)
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
    relink: float | None = None,
    how: Cleaning = PLAIN,
    progress: Progress = SILENT,
) -> Cleaned:
    """Write the data of a run again without the suspects, from the run's correspondences alone."""
    check_relink(relink, mark=how.mark)
    location = data.location or Location("")
    refuse_output(location, path, overwrite=how.overwrite)
    report_unfinished(run, config, progress)
    run.load_ledger()  # refuses a run without correspondences
    correspondences = read_correspondences(run)
    own = config.own_threshold()
    threshold = choose_threshold(correspondences, choice, own=own, method=config.method, progress=progress)
    refuse_unsure(correspondences, choice.threshold, run.path, mark=how.mark)
    pairs = audited_pairs(run, config, data)
    beliefs = run.load_ledger()
    return clean(
        location,
        path,
        pairs,
        beliefs,
        threshold=threshold,
        moved=moves(run, location, pairs, beliefs, relink),
        how=how,
    )
