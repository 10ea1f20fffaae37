"""Auditing pairs and cleaning data."""

from pathlib import Path
from typing import Any

from crcl.api.common import AnyRun, Settings, Shown, is_run, open_model, pairs_of, path_of, receiver, run_data
from crcl.auditing.clean import Cleaned
from crcl.auditing.judge import SUGGESTED, clean_run, judge
from crcl.auditing.prepare import Preparation, as_settings, prepare
from crcl.auditing.result import Audit
from crcl.auditing.thresholds import Choice
from crcl.data import decoys as known_mismatches
from crcl.data.pairs import Pairs
from crcl.errors import Interrupted
from crcl.retrieval.model import Model
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run


def audit(
    data: Any,
    folder: str | Path | None = None,
    *,
    images: str | Path | None = None,
    moved_to: Any = None,
    model: str | None = None,
    threshold: float | None = None,
    precision: float | None = None,
    suggest: int = SUGGESTED,
    decoys: float = known_mismatches.SHARE,
    preset: str | None = None,
    seed: int = 0,
    settings: Settings = None,
    device: str = "auto",
    memory: float | None = None,
    overwrite: bool = False,
    progress: Shown = False,
) -> Audit:
    """Find out which pairs are wrong, how sure that is, what would match instead, and how many are wrong in all.

    Given data, features are made where there are none, and CRCL is trained with decoys: known mismatches that tell how
    right the suspicions are. Every step is kept in `folder` and resumed by the same call. Given a run, its training
    pairs are audited; what concerns the training (`model`, `decoys`, `preset`, `seed`, `settings`) does not apply.

    Args:
        data: Pairs, or anything that `read` takes; or a run.
        folder: Where features and the run go; `NAME-audit` if not given. For a run: not used.
        images: The folder of the image files; the data's own, if not given.
        moved_to: Where the training data of a run is now, if it has moved.
        model: Vision model for the images: a saved model's folder or a hub name. Photos need one.
        threshold: Flag all pairs with a lower correspondence.
        precision: Or flag as many as possible at this estimated precision, such as 0.95. With neither, the best F1 that
            the decoys let estimate; without decoys, the method's own threshold.
        suggest: How many suspects, the worst first, get suggestions of what would match.
        decoys: Known mismatches to add, as a share of the pairs.
        preset: How to train; by default what suits the data.
        seed: Seed of weights, batches and decoys.
        settings: Any other settings of the training.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        memory: GiB for intermediate results.
        overwrite: Train again in place of an earlier audit in that folder.
        progress: Whether, or to whom, to show progress.

    Returns:
        The audit: estimates with intervals, the pairs as a table; it writes a report or a cleaned copy when asked.

    Example:
        >>> audit = crcl.audit("pairs.csv", images="photos", model="openai/clip-vit-base-patch32")
        >>> audit.rate
        0.212 (0.0714 to 0.32)
        >>> audit.report("report")
        PosixPath('report/index.html')
    """
    shown, choice = receiver(progress), Choice(threshold, precision)
    folder_of_images = None if images is None else Path(images)
    if is_run(data):
        opened = open_model(data, device=device, memory=memory)
        pairs = run_data(opened.config, moved_to, images=folder_of_images)
    else:
        pairs = pairs_of(data, images=folder_of_images)
        how = Preparation(
            model=model,
            decoys=decoys,
            preset=preset,
            seed=seed,
            device=device,
            memory=memory,
            settings=as_settings(settings),
            overwrite=overwrite,
        )
        run, pairs = prepare(pairs, _audit_folder(data, folder), how, progress=shown)
        opened = Model.open(run.path, device=device, memory=memory)
    try:
        return judge(opened, pairs, choice, images=folder_of_images, suggest=suggest, progress=shown)
    except KeyboardInterrupt:  # the training is done: the same call resumes after it
        raise Interrupted from None


def clean(
    run: AnyRun,
    path: str | Path,
    *,
    threshold: float | None = None,
    precision: float | None = None,
    mark: bool = False,
    data: Any = None,
    overwrite: bool = False,
    progress: Shown = False,
) -> Cleaned:
    """Write the table of a run again without the suspects, without scoring anything.

    Args:
        run: A run, trained on a table.
        path: The file to write, in the format of that table, which is never touched.
        threshold: Remove pairs with a lower correspondence.
        precision: Or remove as many as possible at this estimated precision.
        mark: Keep all rows, and add a column `correspondence` instead.
        data: Where the table is now, if it has moved.
        overwrite: Replace an existing file.
        progress: Whether, or to whom, to report what is unsure.

    Returns:
        How many rows were removed, are kept, and were not judged; and the threshold.

    Example:
        >>> crcl.clean("pairs-audit/run", "cleaner.csv", threshold=0.2)
        Cleaned(removed=7, kept=105, unjudged=24, threshold=0.2)
    """
    choice = Choice(threshold, precision)
    opened = Run.open(path_of(run))
    config = stored_config(opened)
    pairs = run_data(config, data)
    return clean_run(
        opened, config, pairs, Path(path), choice, mark=mark, overwrite=overwrite, progress=receiver(progress)
    )


def _audit_folder(data: Any, folder: str | Path | None) -> Path:
    if folder is not None:
        return Path(folder)
    source = data.name if isinstance(data, Pairs) and data.location is not None else data
    return Path(f"{Path(source).absolute().stem}-audit" if isinstance(source, str | Path) else "pairs-audit")
