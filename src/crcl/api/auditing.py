"""Auditing pairs and cleaning data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from crcl import distributed
from crcl.api.common import (
    AnyRun,
    Settings,
    Shown,
    as_names,
    as_settings,
    is_run,
    open_model,
    pairs_of,
    path_of,
    receiver,
    run_data,
    verdicts_path,
)
from crcl.auditing.audit import SUGGESTED, audit_run, clean_run
from crcl.auditing.clean import Cleaned, Cleaning
from crcl.auditing.prepare import Preparation, prepare
from crcl.auditing.result import Audit
from crcl.auditing.scores.of_run import check_score
from crcl.auditing.thresholds import Choice
from crcl.data import decoys as known_mismatches
from crcl.data.pairs import Pairs
from crcl.errors import InputError, Interrupted
from crcl.features.sentences import check_way
from crcl.retrieval.model import Model
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run


@distributed.processes()
def audit(
    source: Any,
    folder: str | Path | None = None,
    *,
    images: str | Path | None = None,
    data: Any = None,
    model: str | None = None,
    text_model: str | None = None,
    long_captions: str | None = None,
    matcher: str | None = None,
    quick: bool = False,
    score: str | None = None,
    threshold: float | None = None,
    precision: float | None = None,
    keep: float | None = None,
    wrong_at_most: float | None = None,
    suggest: int = SUGGESTED,
    decoys: float | None = None,
    decoy_kinds: str | Sequence[str] | None = None,
    verdicts: AnyRun | None = None,
    preset: str | None = None,
    seed: int | None = None,
    settings: Settings = None,
    device: str = "auto",
    memory: float | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    progress: Shown = False,
) -> Audit:
    """Find out which pairs are wrong, how sure that is, what would match instead, and how many are wrong in all.

    Given data, the audit makes features where there are none and trains with decoys: known mismatches, from which it
    estimates its precision and recall. The method is `relink`: with a network, or by its linear model alone where
    there are few pairs; `settings={"method": "crcl"}` trains CRCL. Every step is saved in `folder`, and the same call
    resumes it. Given a run, the audit judges the run's training pairs; parameters of the training (`folder`, `model`,
    `text_model`, `long_captions`, `matcher`, `decoys`, `decoy_kinds`, `verdicts`, `preset`, `seed`, `settings`,
    `quick`, `overwrite`) are refused. Several processes, which `torchrun` starts, share the work; each returns the
    audit, and the first one should write it.

    Args:
        source: Pairs, or anything that `read` takes; or a run.
        folder: Where features and the run go; `NAME-audit` in the current folder, if not given, and `memory-audit` for
            data in memory.
        images: The folder of the image files; the data's own, if not given.
        data: The data of a run, if it has moved: a path or pairs.
        model: Model for the images: a saved model's folder or a hub name. Photos need one. The text side of CLIP and
            SigLIP reads the captions too; with a `matcher` of words, captions are read word by word.
        text_model: Model for the captions, if it is another one: CLIP, SigLIP or a sentence encoder.
        long_captions: What becomes of captions that are longer than the model reads: `cut`, if not given; `mean`, the
            mean of their sentences; or `least`, the sentence that fits the image least.
        matcher: `vse`, `dual`, ...: docs/train.md; chosen by the data, if not given.
        quick: Train no network: scores that need none, in seconds to minutes. The result is in `folder/quick`.
        score: What to judge by: `belief`, `linear`, `combined`, `contrast`, `cosine`, `neighbours`, `similarity` or
            `consistency` (docs/audit.md); by default the one that tells decoys from pairs best.
        threshold: Flag all pairs with a lower correspondence.
        precision: Or flag as many as possible at this estimated precision, such as 0.95. With none of these, the
            threshold has the best estimated F1; without decoys it is the method's own.
        keep: Or keep this share of the pairs, the most believed, such as 0.3.
        wrong_at_most: Or flag as few as possible, so that at most this share of the rest is mismatched, as estimated,
            such as 0.05.
        suggest: How many suspects, the worst first, get suggestions of what would match.
        decoys: Known mismatches to add, as a share of the pairs; 0.05, if not given.
        decoy_kinds: Kinds of them; if not given, `random`, and from 2,000 pairs on also `near`, with the caption of a
            similar image, and `swap`, with one word exchanged (docs/audit.md).
        verdicts: A run that was reviewed, or a file of verdicts, to train with (docs/verdicts.md): the estimates count
            what is known, and say what they would be without.
        preset: A shipped set of settings with its own method; chosen by the data, if not given.
        seed: Seed of weights, batches and decoys; 0, if not given.
        settings: Any other settings of the training.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        memory: GiB for intermediate results.
        dtype: Number type of matrix products in training and in scoring, `float32` or `bfloat16`; if not given,
            `train.precision` in training, and float32 in scoring.
        overwrite: Train again in place of an earlier audit in that folder.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        The audit: estimates with intervals and the pairs as a table. It can write a report and a cleaned copy.

    Example:
        >>> audit = crcl.audit("pairs.csv", images="photos", model="openai/clip-vit-base-patch32")
        >>> audit.rate
        0.212 (0.0714 to 0.32)
        >>> audit.report("report")
        PosixPath('report/index.html')
    """
    shown, choice = receiver(progress), Choice(threshold, precision, keep, wrong_at_most)
    check_score(score)
    folder_of_images = None if images is None else Path(images)
    first: Run | None = None
    if is_run(source):
        opened = open_model(source, device=device, memory=memory, dtype=dtype, progress=shown)
        training: dict[str, Any] = {
            "folder": folder,
            "model": model,
            "text_model": text_model,
            "long_captions": long_captions,
        }
        training |= {
            "matcher": matcher,
            "decoys": decoys,
            "decoy_kinds": decoy_kinds,
            "verdicts": verdicts,
            "preset": preset,
            "seed": seed,
            "quick": quick or None,
        }
        _refuse_training(source, training | {"settings": settings, "overwrite": overwrite or None})
        pairs = run_data(opened.config, data, images=folder_of_images)
    else:
        pairs = pairs_of(source, images=folder_of_images)
        if data is not None:
            raise InputError("this is data, not a run", where=pairs.name, hint="leave {data} out")
        how = Preparation(
            model=model,
            text_model=text_model,
            long_captions=check_way(long_captions or "cut"),
            decoys=known_mismatches.SHARE if decoys is None else decoys,
            decoy_kinds=as_names(decoy_kinds),
            verdicts=verdicts_path(verdicts),
            preset=preset,
            seed=seed or 0,
            device=device,
            memory=memory,
            dtype=dtype,
            settings=(*(() if matcher is None else (f"matcher.name={matcher}",)), *as_settings(settings)),
            quick=quick,
            overwrite=overwrite,
        )
        prepared = prepare(pairs, audit_folder(source, folder), how, progress=shown)
        pairs, first = prepared.pairs, prepared.quick
        opened = Model.open(prepared.run.path, device=device, memory=memory, dtype=dtype)
    try:
        return audit_run(
            opened,
            pairs,
            choice,
            score=score,
            quick=first,
            images=folder_of_images,
            suggest=suggest,
            progress=shown,
        )
    except KeyboardInterrupt:  # the training is done: the same call resumes after it
        raise Interrupted from None


def clean(
    run: AnyRun,
    path: str | Path,
    *,
    threshold: float | None = None,
    precision: float | None = None,
    keep: float | None = None,
    wrong_at_most: float | None = None,
    score: str | None = None,
    relink: float | None = None,
    verdicts: bool = False,
    mark: bool = False,
    images: Literal["link", "copy"] | None = None,
    rewrite: bool = False,
    data: Any = None,
    overwrite: bool = False,
    progress: Shown = False,
) -> Cleaned:
    """Write a copy of a run's data without the suspects, from the correspondences in the run alone.

    Args:
        run: A run.
        path: The file or the folder to write, in the layout of the data. The data itself is never touched.
        threshold: Remove pairs with a lower correspondence.
        precision: Or remove as many as possible at this estimated precision.
        keep: Or keep this share of the judged pairs, the most believed, such as 0.3.
        wrong_at_most: Or remove as few as possible, so that at most this share of the kept pairs is mismatched, as
            estimated, such as 0.05.
        score: What to judge by, as in `audit`; by default what the last audit of the run would take.
        relink: Move captions that belong to another image with at least this belief, such as 0.9, to that image; only
            their image changes. The run must be trained with method `relink`.
        verdicts: What was said of pairs in review beats correspondences: right ones stay, wrong ones are removed, or
            written with their new caption or image.
        mark: Keep all rows, and add a column `correspondence` instead.
        images: Link or copy the image files beside the cleaned data, where they are files of their own.
        rewrite: Write tars anew, instead of lists of what to keep.
        data: The run's data, if it has moved: a path or pairs.
        overwrite: Replace an existing file.
        progress: True shows messages on the terminal; a `Progress` of your own receives them.

    Returns:
        How many rows were removed, how many were kept, how many of these were not judged or were moved; the
        threshold; and what verdicts decided.

    Example:
        >>> crcl.clean("pairs-audit/run", "cleaner.csv", threshold=0.2)
        Cleaned(removed=7, kept=105, unjudged=24, moved=0, threshold=0.2, verdicts=None)
    """
    choice = Choice(threshold, precision, keep, wrong_at_most)
    check_score(score)
    opened = Run.open(path_of(run))
    config = stored_config(opened)
    pairs = run_data(config, data)
    return clean_run(
        opened,
        config,
        pairs,
        Path(path),
        choice,
        score=score,
        how=Cleaning(mark, overwrite, images, rewrite, relink, verdicts),
        progress=receiver(progress),
    )


def audit_folder(source: Any, folder: str | Path | None = None) -> Path:
    """The given folder, or `NAME-audit` in the current one; `memory-audit` for data without a name."""
    if folder is not None:
        return Path(folder)
    named = source.name if isinstance(source, Pairs) and source.location is not None else source
    return Path(f"{Path(named).absolute().stem}-audit" if isinstance(named, str | Path) else "memory-audit")


def _refuse_training(run: AnyRun, given: dict[str, Any]) -> None:
    names = ", ".join(f"{{{name}}}" for name, value in given.items() if value is not None)
    if names:
        raise InputError("a run, which is trained already", where=path_of(run), hint=f"leave {names} out")
