"""From a run to an audit: correspondences, what the decoys say, similarities, suggestions."""

from pathlib import Path

from crcl.auditing.clean import Cleaned, clean, refuse_output
from crcl.auditing.findings import find
from crcl.auditing.prepare import remembered_images
from crcl.auditing.report.thumbnails import images_below
from crcl.auditing.result import Audit, Origin, suggest_more
from crcl.auditing.thresholds import Choice, beliefs_of, choose_threshold, refuse_unsure
from crcl.config import Config
from crcl.data.pairs import Pairs
from crcl.data.sources.rows import USUAL
from crcl.progress import SILENT, Progress
from crcl.retrieval.model import Model
from crcl.runs.describe import conditions, report_unfinished
from crcl.runs.folder import Run
from crcl.training.inputs import audited_pairs

SUGGESTED = 10_000
"""Suspects that get suggestions, unless told otherwise."""


def judge(
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
    beliefs = beliefs_of(run)
    own = config.own_threshold()
    threshold = choose_threshold(beliefs, choice, own=own, method=config.method, progress=progress)
    pairs = audited_pairs(run, config, data)
    features = None if data.location is None else data.location.features
    folder = images or remembered_images(features) or data.image_folder
    origin = Origin(
        run=run,
        conditions=conditions(run, config),
        method=config.method,
        own_threshold=own,
        data=data,
        scorer=model.scorer,
        find_image=None if folder is None else images_below(folder),
        suggest=suggest,
    )
    with progress.task("similarities") as advance:
        similarity = model.scorer.pair_similarities(pairs, advance=advance)
    found = find(pairs, beliefs.correspondence, similarity, threshold=threshold)
    suggestions = suggest_more(origin, found, None, progress)
    if suggestions is not None:
        found = find(pairs, beliefs.correspondence, similarity, threshold=threshold, suggestions=suggestions)
    return Audit(found, beliefs, origin)


def clean_run(
    run: Run,
    config: Config,
    data: Pairs,
    path: Path,
    choice: Choice,
    *,
    mark: bool = False,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Cleaned:
    """Write the table of a run again without the suspects; nothing is scored."""
    where = "" if data.location is None else data.location.path
    refuse_output(Path(where), path, overwrite=overwrite)
    report_unfinished(run, config, progress)
    run.load_ledger()  # refuses a run without correspondences
    beliefs = beliefs_of(run)
    own = config.own_threshold()
    threshold = choose_threshold(beliefs, choice, own=own, method=config.method, progress=progress)
    refuse_unsure(beliefs, choice.threshold, run.path, mark=mark)
    pairs = audited_pairs(run, config, data)
    columns = data.location.columns if data.location is not None else USUAL
    return clean(
        where, path, pairs, run.load_ledger(), threshold=threshold, mark=mark, overwrite=overwrite, columns=columns
    )
