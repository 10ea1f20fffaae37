"""`crcl audit`: which pairs are wrong."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl import config
from crcl.auditing.findings import check_output
from crcl.auditing.judge import SUGGESTED
from crcl.auditing.report.page import refuse_foreign
from crcl.auditing.result import Audit
from crcl.auditing.thresholds import LOW_BELIEF, Choice
from crcl.cli.console import say, show_next, shown
from crcl.cli.options import (
    CaptionColumn,
    Device,
    Features,
    Ids,
    ImageColumn,
    Images,
    Memory,
    MovedData,
    Precision,
    Settings,
    TextFeatures,
    Threshold,
    moved,
    pairs_of,
    refuse,
)
from crcl.data.decoys import SHARE
from crcl.data.pairs import Pairs
from crcl.data.sources import layout_of
from crcl.errors import InputError, Interrupted
from crcl.runs.folder import Run
from crcl.storage import refuse_input

TRAINING = "Given data, not a run"
ORDER_SCORES = ("auroc", "average_precision")
"""Scores of an audit that need no threshold."""


def audit(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_DATA",
            help="A run folder; or data to train on first: a table, embeddings, the field's layout.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--out", help="Table to write (.csv or .parquet); audit.csv, if not given.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for a page to look at the suspects.")] = None,
    threshold: Threshold = None,
    precision: Precision = None,
    images: Images = None,
    suggest: Annotated[
        int, typer.Option(min=0, help="How many suspects, the worst first, get suggestions of what would match.")
    ] = SUGGESTED,
    device: Device = "auto",
    memory: Memory = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Vision model for the images: a saved model's folder or a hub name.", rich_help_panel=TRAINING
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where features, run, table and report go; NAME-audit, if not given.", rich_help_panel=TRAINING
        ),
    ] = None,
    decoys: Annotated[
        float | None,
        typer.Option(
            help=f"Known mismatches to add, as a share of the pairs; {SHARE:g}, if not given.", rich_help_panel=TRAINING
        ),
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
    settings: Settings = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Train again, in place of an earlier audit.", rich_help_panel=TRAINING)
    ] = False,
    data: MovedData = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    image_column: ImageColumn = "image",
    caption_column: CaptionColumn = "caption",
) -> None:
    """Which pairs are wrong, how sure is that, what would match instead, and how many are wrong in all.

    Example: `crcl audit pairs.csv --images photos --model openai/clip-vit-base-patch32`, or `crcl audit runs/first`

    Given data, features are made and CRCL is trained first, with decoys: known mismatches that tell how right the
    suspicions are. Every step is kept and resumed by the same command, so another --precision is quick.

    Without --precision and --threshold pairs are flagged at the best F1 that the decoys let estimate; without decoys
    below the method's own threshold: 0.1 for crcl and gsc, 0.5 for those that divide the pairs. Where decoys say
    nothing, since they are few or believed as much as the pairs, none is flagged.

    Columns: row (in the data, from 0), image, caption, correspondence (0 suspect, 1 match), suspect, similarity; truth
    where known; suggestions for suspects. A table's held-out rows are not trained on, and so not judged.
    """
    layout = layout_of(source)
    columns = (image_column, caption_column)
    training = {"model": model, "folder": folder, "decoys": decoys, "preset": preset, "seed": seed, "set": settings}
    home = folder or Path(f"{source.absolute().stem}-audit")
    if layout is None:
        named = {"image-column": columns[0] != "image", "caption-column": columns[1] != "caption"}
        refuse(training | named | {"overwrite": overwrite}, source, "a run, which is trained already")
        Run.open(source)  # anything else is refused for that, not for what would be written there
        run, output = source, output or source / "audit.csv"
    else:
        if data is not None:
            raise InputError("that is the data; --data says where that of a run is now", where=source)
        run, output, report = home / "run", output or home / "audit.csv", report or home / "report"
    Choice(threshold, precision)
    check_output(output)
    refuse_input(output, str(source))
    if report is not None:
        refuse_foreign(report)
    target: Path | Pairs = source
    if layout is not None:
        target = pairs_of(
            source,
            images=images,
            features=features,
            text_features=text_features,
            ids=ids,
            image_column=image_column,
            caption_column=caption_column,
        )
    found = crcl.audit(
        target,
        home,
        images=images,
        moved_to=moved(source, data, features, ids, text_features) if layout is None else None,
        model=model,
        threshold=threshold,
        precision=precision,
        suggest=suggest,
        decoys=SHARE if decoys is None else decoys,
        preset=preset,
        seed=seed or 0,
        settings=settings,
        device=device,
        memory=memory,
        overwrite=overwrite,
        progress=shown,
    )
    try:
        _write(found, output, report, run)
    except KeyboardInterrupt:  # the training is done, and must not be repeated
        raise Interrupted from None
    if layout == "table" and (threshold is not None or not found.unsure):
        chosen = {"--threshold": threshold, "--precision": precision}
        words = [word for name, value in chosen.items() if value is not None for word in (name, f"{value:g}")]
        show_next(["clean", str(run), "-o", f"CLEANED{source.suffix}", *words])


def _write(found: Audit, output: Path, report: Path | None, run: Path) -> None:
    found.write(output)
    _describe(found)
    say(f"written to {output}")
    if report is not None:
        say(f"report: {found.report(report, next_step=_next_step(found, run), progress=shown)}")


def _next_step(found: Audit, run: Path) -> tuple[str, str] | None:
    """The command on the report that removes what is flagged on it."""
    if not found.can_clean or not found.suspect_count:
        return None
    words = ["crcl", "clean", str(run), "-o", f"CLEANED{found.suffix}", "--threshold", str(found.threshold)]
    return shlex.join(words), "writes the table again without the flagged pairs."


def _describe(found: Audit) -> None:
    """What the audit found, in sentences."""
    findings = found.findings
    pairs = len(findings.pairs)
    if found.estimate is not None:
        for sentence in found.summary():
            say(sentence)
    elif found.unsure and not found.threshold:
        say(
            f"none of {pairs:,} pairs is flagged, since the decoys do not tell which are wrong; they are in the order "
            "of their correspondence. --threshold flags some: choose it by looking at the pairs around it"
        )
    elif findings.believes:
        flagged = found.suspect_count
        say(f"{flagged:,} of {pairs:,} pairs ({flagged / pairs:.1%}) are suspect at threshold {found.threshold:g}")
    else:
        shown.note(
            f"{found.run.path} was imported without correspondences: the pairs are in the order of their similarity, "
            "and none is suspect"
        )
    mean = found.correspondence.mean()
    if found.estimate is None and mean < LOW_BELIEF:
        shown.note(
            f"the mean correspondence is {mean:.3f}: with few pairs, few epochs or many captions that say the same, "
            "correspondences stay low. Trust their order; choose --threshold by looking at the pairs around it"
        )
    scores = found.detection
    if scores is not None:
        known = {name: value for name, value in asdict(scores).items() if findings.believes or name in ORDER_SCORES}
        numbers = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in known.items())
        say(f"against the injected noise: {numbers}")
