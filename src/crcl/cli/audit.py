"""`crcl audit`: which pairs are wrong."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl import config
from crcl.api.auditing import audit_folder
from crcl.api.common import path_of
from crcl.auditing.audit import SUGGESTED, check_outputs
from crcl.auditing.result import Audit
from crcl.cli.console import say, show_next, shown, spell
from crcl.cli.options import (
    CaptionColumn,
    Device,
    Dtype,
    Features,
    Ids,
    ImageColumn,
    Images,
    Keep,
    Layout,
    Memory,
    MovedData,
    Precision,
    Score,
    Settings,
    TextFeatures,
    Threshold,
    Verdicts,
    WrongAtMost,
    moved,
    pairs_of,
)
from crcl.data.decoys import KINDS, SHARE
from crcl.data.sources import layout_of
from crcl.errors import Interrupted
from crcl.matchers import MATCHERS
from crcl.runs.folder import Run
from crcl.terminal import is_follower

TRAINING = "Training, given data and not a run"
EPILOG = """
The method is relink, with a network or, below 4,000 pairs, by its linear model alone; --set method=crcl trains
CRCL.

Several scores judge the pairs, such as the belief after training, that of a linear model, or the cosine of vectors of
one model. The one that tells decoys from pairs best is taken, and told; --score takes another. A quick look without a
network comes first, and --quick stops there; after a training, what it added is told.

Without --precision, --threshold, --keep and --wrong-at-most, the threshold has the best estimated F1; without decoys
it is the method's own: 0.1 for crcl and gsc, 0.5 for relink and for methods that divide the pairs. Where the decoys
allow no estimate, because they are few or have correspondences as high as the pairs, or because nearly any share of
the pairs may be mismatched, no pair is flagged.

Columns: row (in the data, from 0), image, caption, correspondence (0 suspect, 1 match), suspect, similarity; p_wrong,
the probability that the pair is mismatched, where decoys allow an estimate; truth where known; for suspects reason
and fix, which say why and what would repair the pair, least_sentence, which of several fits the image least, and
other images and captions, with the beliefs in these (relink) or their similarities; score_NAME, each score. A table's
held-out rows are not trained on, and so not judged.

Copies of images and captions are listed in duplicates.csv beside the table, and told in columns copy_of, near_copy_of
and generic_caption, where there are any.
"""
"""What `--help` says after the options."""
WITHOUT_THRESHOLD = ("auroc", "average_precision")
"""Scores against the truth that need no threshold."""


def audit(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_DATA",
            help="A run folder or that of an audit; or data to train on first: a table, embeddings, hub:USER/NAME, "
            "the field's layout.",
        ),
    ],
    images: Images = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="CLIP, SigLIP or DINOv2, for images and, if it can, captions: a saved model's folder or a hub name."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Train no network: scores that need none, in a minute."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--out", help="Table to write (.csv or .parquet); audit.csv, if not given.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for a report page of the suspects.")] = None,
    threshold: Threshold = None,
    precision: Precision = None,
    keep: Keep = None,
    wrong_at_most: WrongAtMost = None,
    score: Score = None,
    suggest: Annotated[
        int, typer.Option(min=0, help="How many suspects, the worst first, get suggestions of what would match.")
    ] = SUGGESTED,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where features, run, table and report go; NAME-audit, if not given.", rich_help_panel=TRAINING
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Train again, in place of an earlier audit.", rich_help_panel=TRAINING)
    ] = False,
    decoys: Annotated[
        float | None,
        typer.Option(
            help=f"Known mismatches to add, as a share of the pairs; {SHARE:g}, if not given.", rich_help_panel=TRAINING
        ),
    ] = None,
    decoy_kinds: Annotated[
        str | None,
        typer.Option(
            help=f"Kinds of them, separated by commas: {', '.join(KINDS)}; all from 2,000 pairs on, else random.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    text_model: Annotated[
        str | None,
        typer.Option(
            help="Another model for the captions: a sentence encoder, CLIP or SigLIP.", rich_help_panel=TRAINING
        ),
    ] = None,
    long_captions: Annotated[
        str | None,
        typer.Option(
            help="Captions longer than the model reads are cut, or read by sentences: cut, mean or least.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    matcher: Annotated[
        str | None,
        typer.Option(help=f"By the data if not given: {', '.join(MATCHERS)}.", rich_help_panel=TRAINING),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"How to train, by the data if not given: {', '.join(config.presets())}.", rich_help_panel=TRAINING
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of weights, batches and decoys.", rich_help_panel=TRAINING)
    ] = None,
    verdicts: Verdicts = None,
    settings: Settings = None,
    data: MovedData = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    image_column: ImageColumn = "image",
    caption_column: CaptionColumn = "caption",
    layout: Layout = None,
    device: Device = "auto",
    memory: Memory = None,
    dtype: Dtype = None,
) -> None:
    """Which pairs are wrong, how sure is that, what would match instead, and how many are wrong in all.

    Example: `crcl audit pairs.csv --images photos --model openai/clip-vit-base-patch32`, or `crcl audit runs/first`

    Given data, the audit makes features and trains first, with decoys: known mismatches, from which it estimates its
    precision and recall. Every step is saved, and the same command resumes it, so another --precision is quick.
    """
    given_data = layout_of(source, layout) is not None
    if given_data:
        home = audit_folder(source, folder)
        run = home / ("quick" if quick else "run")
        output, report = output or home / "audit.csv", report or home / "report"
    else:
        run, output = Run.open(path_of(source)).path, output or source / "audit.csv"
    check_outputs(output, report, source)
    pairs = (
        source
        if not given_data
        else pairs_of(
            source,
            images=images,
            features=features,
            text_features=text_features,
            ids=ids,
            image_column=image_column,
            caption_column=caption_column,
            layout=layout,
        )
    )
    found = crcl.audit(
        pairs,
        home if given_data else folder,
        images=images,
        data=data if given_data else moved(source, data, features, ids, text_features),
        model=model,
        text_model=text_model,
        long_captions=long_captions,
        matcher=matcher,
        quick=quick,
        score=score,
        threshold=threshold,
        precision=precision,
        keep=keep,
        wrong_at_most=wrong_at_most,
        suggest=suggest,
        decoys=decoys,
        decoy_kinds=decoy_kinds,
        verdicts=verdicts,
        preset=preset,
        seed=seed,
        settings=settings,
        device=device,
        memory=memory,
        dtype=dtype,
        overwrite=overwrite,
        progress=shown,
    )
    if is_follower():
        return
    try:
        _write(found, output, report, run)
    except KeyboardInterrupt:  # the training is done: the same command resumes after it
        raise Interrupted from None
    if found.can_clean and (threshold is not None or not found.unsure):
        chosen = {"--threshold": threshold, "--precision": precision, "--keep": keep, "--wrong-at-most": wrong_at_most}
        words = [word for name, value in chosen.items() if value is not None for word in (name, f"{value:g}")]
        words += [] if score is None else ["--score", score]
        show_next(["serve", str(run), "--open"], ["clean", str(run), "-o", f"CLEANED{found.suffix}", *words])


def _write(found: Audit, output: Path, report: Path | None, run: Path) -> None:
    found.write(output)
    for sentence in found.summary():
        say(sentence)
    for sentence in found.caveats(spell):
        shown.note(sentence)
    scores = found.detection
    if scores is not None:
        has_threshold = found.findings.has_correspondence
        known = {name: value for name, value in asdict(scores).items() if has_threshold or name in WITHOUT_THRESHOLD}
        numbers = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in known.items())
        say(f"against the injected noise: {numbers}")
    say(f"written to {output}")
    copies = found.write_duplicates(output)
    if copies is not None:
        say(f"copies: {copies}")
    if report is not None:
        say(f"report: {found.report(report, next_step=_next_step(found, run), progress=shown)}")


def _next_step(found: Audit, run: Path) -> tuple[str, str] | None:
    """The command on the report that removes the flagged pairs."""
    if not found.can_clean or not found.suspect_count:
        return None
    words = ["crcl", "clean", str(run), "-o", f"CLEANED{found.suffix}", "--threshold", str(found.threshold)]
    return shlex.join(words), "writes a copy of the table without the flagged pairs."
