"""Commands that judge pairs: audit, clean."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from crcl import config
from crcl.auditing import clean as cleaning
from crcl.auditing import estimate as decoys
from crcl.auditing import plan as pipeline
from crcl.auditing import result as auditing
from crcl.auditing import suggestions as suggesting
from crcl.auditing.report import page as reporting
from crcl.cli.console import warn_if_unfinished
from crcl.cli.flagging import beliefs_of, flagged_below
from crcl.cli.forerun import train_first
from crcl.cli.options import (
    CaptionColumn,
    Device,
    Features,
    Ids,
    ImageColumn,
    Memory,
    Settings,
    TextFeatures,
    located,
    refuse_input,
)
from crcl.cli.screen import note, out, shown, tell_next
from crcl.data import decoys as drawn_decoys
from crcl.data.pairs import Pairs
from crcl.data.sources import table as tables
from crcl.data.sources.rows import Columns
from crcl.data.split import Split
from crcl.errors import InputError, Interrupted
from crcl.retrieval.opening import open_scorer
from crcl.retrieval.scoring import Scorer
from crcl.runs.describe import conditions, stored_config
from crcl.runs.folder import Run
from crcl.training import inputs

OF_DATA, FILES = "Given data, not a run", "Files of features"
PRESETS = ", ".join(config.presets())
SUGGESTED = 10_000
"""Suspects that get suggestions, unless told otherwise."""
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
    precision: Annotated[
        float | None, typer.Option(help="Flag as many as can be with this estimated precision, e.g. 0.95.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Or flag all pairs believed in by less, 0 to 1; if neither: see below.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for a page to look at the suspects.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of the table's images; the table's own folder, if not given.")
    ] = None,
    suggest: Annotated[
        int, typer.Option(min=0, help="How many suspects, the worst first, get suggestions of what would match.")
    ] = SUGGESTED,
    device: Device = "auto",
    memory: Memory = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Vision model for the images: a saved model's folder or a hub name.", rich_help_panel=OF_DATA
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where features, run, table and report go; NAME-audit, if not given.", rich_help_panel=OF_DATA
        ),
    ] = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--decoys",
            help="Known mismatches to add, as a share of the pairs; 0.05, if not given.",
            rich_help_panel=OF_DATA,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help=f"How to train, by the data if not given: {PRESETS}.", rich_help_panel=OF_DATA),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of weights, batches and decoys.", rich_help_panel=OF_DATA)
    ] = None,
    settings: Settings = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Train anew, in place of what is there.", rich_help_panel=OF_DATA)
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Where a run's training data is now, if it has moved.", rich_help_panel=FILES)
    ] = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
) -> None:
    """Which pairs are wrong, how sure is that, what would match instead, and how many are wrong in all.

    Example: `crcl audit pairs.csv --images photos --model openai/clip-vit-base-patch32`, or `crcl audit runs/first`

    Given data, features are made and CRCL is trained first, with decoys: known mismatches that tell how right the
    suspicions are. Every step is gone on with after Ctrl-C, and kept: given again with another --precision it is quick.

    Without --precision and --threshold pairs are flagged at the best F1 that the decoys let estimate; without decoys
    below what the method itself goes by: 0.1 for crcl and gsc, 0.5 for those that divide the pairs. Where decoys say
    nothing, since they are few or believed as the pairs are, none is flagged.

    Columns: row (in the data, from 0), image, caption, correspondence (0 suspect, 1 match), suspect, similarity; truth
    where known; suggestions for suspects. A table's held-out rows are not trained on, and so not judged.
    """
    run, home = source, folder or Path(f"{source.absolute().stem}-audit")
    of_data = {"model": model, "folder": folder, "decoys": share, "preset": preset, "seed": seed, "set": settings}
    of_data |= {"image-column": image_column, "caption-column": caption_column, "overwrite": overwrite or None}
    if is_data := pipeline.is_data(source):
        if data is not None:
            raise InputError(f"{source}: that is the data; --data tells where that of a run is now")
        report, output, run = report or home / "report", output or home / "audit.csv", home / "run"
    elif given := [f"--{name}" for name, value in of_data.items() if value is not None]:
        raise InputError(f"{source}: a run, which is trained already; {', '.join(given)} would change nothing")
    else:
        Run.open(source)  # what is none is refused for that, not for what would be written there
    output = output or run / "audit.csv"
    auditing.check_choice(threshold=threshold, precision=precision)
    auditing.check_output(output)
    refuse_input(output, str(source))
    if report is not None:
        reporting.refuse_foreign(report)
    if images is not None and not images.is_dir():
        raise InputError(f"{images}: no such folder; it must hold the images")
    trained: Pairs | None = None
    if is_data:
        asked = {
            "data.decoys": drawn_decoys.SHARE if share is None else share,
            "data.features": features,
            "data.text_features": text_features,
            "data.ids": ids,
            "data.image_column": image_column,
            "data.caption_column": caption_column,
            "data.skip_empty": True if tables.recognises(source) else None,
            "train.seed": seed,
            "train.device": device,
            "train.memory": memory,
        }
        trained = train_first(
            source, home, asked, preset=preset, settings=settings or [], model=model, images=images, anew=overwrite
        )
        data = features = text_features = ids = None  # as the run has them
    with _kept():
        opened, stored, scorer = open_scorer(run, device=device, memory=memory)
        warn_if_unfinished(opened, stored)
        stored = located(stored, data, features, ids, text_features)
        beliefs, estimate, silent = beliefs_of(opened)
        at = flagged_below(stored, beliefs, estimate, threshold, precision, silent=silent)
        opened_pairs = trained or inputs.open_pairs(stored)
        pairs = inputs.audited_pairs(opened, stored, opened_pairs)
        refuse_input(output, pairs.source, stored.data.path)
        found = _found(pairs, beliefs, scorer, threshold=at, suggest=suggest)
        auditing.write(found, output)
        _tell(run, found, estimate, silent=bool(silent) and threshold is None)
        out.print(f"written to {output}", soft_wrap=True)
        if report is not None:
            about = [("data", Path(stored.data.path).name), ("run", conditions(opened, stored))]
            page = _write_report(report, found, estimate, opened_pairs, run=run, images=images, about=about)
            out.print(f"report: {page}", soft_wrap=True)
        if is_data and opened_pairs.is_table and (threshold is not None or not silent):
            chosen = {"--threshold": threshold, "--precision": precision}
            words = [word for name, value in chosen.items() if value is not None for word in (name, f"{value:g}")]
            tell_next(["clean", str(run), "-o", f"CLEANED{source.suffix}", *words])


def _found(
    pairs: Split, beliefs: np.ndarray | None, scorer: Scorer, *, threshold: float, suggest: int
) -> auditing.Audit:
    """The audit of a run's pairs, with suggestions for so many suspects."""
    with shown.task("similarities") as progress:
        similarity = scorer.pair_similarities(pairs, advance=progress)
    found = auditing.audit(pairs, beliefs, similarity, threshold=threshold)
    suspects = found.suspects[:suggest]
    if not len(suspects):
        return found
    with shown.task("suggestions") as progress:
        return replace(found, suggestions=suggesting.suggest(scorer, pairs, suspects, advance=progress))


@contextmanager
def _kept() -> Iterator[None]:
    """Stopped here, the training is done: the same command goes on with its run, and must not replace it."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None


def _tell(run: Path, found: auditing.Audit, estimate: decoys.Estimate | None, *, silent: bool) -> None:
    """What the audit found, in sentences."""
    if estimate is not None:
        for sentence in reporting.summary(found, estimate):
            out.print(sentence, soft_wrap=True)
    elif silent:
        out.print(
            f"none of {len(found.pairs):,} pairs is flagged, since the decoys do not tell which are wrong; they are in "
            "the order of what is believed. --threshold flags some, chosen by looking at the pairs around it",
            soft_wrap=True,
        )
    elif found.believes:
        flagged, pairs = len(found.suspects), len(found.pairs)
        out.print(
            f"{flagged:,} of {pairs:,} pairs ({flagged / pairs:.1%}) are suspect at threshold {found.threshold:g}",
            soft_wrap=True,
        )
    else:
        note(f"{run} was imported without beliefs: the pairs are in the order of their similarity, and none is suspect")
    if estimate is None and found.correspondence.mean() < auditing.LOW_BELIEF:
        note(
            f"the mean belief is {found.correspondence.mean():.3f}: with few pairs, few epochs or many captions that "
            "say the same, beliefs stay low. Trust their order; choose --threshold by looking at the pairs around it"
        )
    scores = found.detection()
    if scores is not None:
        known = {name: value for name, value in asdict(scores).items() if found.believes or name in ORDER_SCORES}
        numbers = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in known.items())
        out.print(f"against the injected noise: {numbers}", soft_wrap=True)


def _write_report(
    folder: Path,
    found: auditing.Audit,
    estimate: decoys.Estimate | None,
    data: Pairs,
    *,
    run: Path,
    images: Path | None,
    about: list[tuple[str, str]],
) -> Path:
    told: list[str] = []
    next_step, table = None, Path(data.name)
    if data.is_table:
        held_out, empty, skipped = data.unjudged(found.pairs)
        lacking = f"{empty:,} without an image or a caption, " if empty else ""
        told = [f"Not judged: {held_out:,} rows held out, {lacking}{skipped:,} images skipped."]
        if len(found.suspects):
            command = ["crcl", "clean", str(run), "-o", f"CLEANED{table.suffix}", "--threshold", str(found.threshold)]
            next_step = (shlex.join(command), "writes the table again without the flagged pairs.")
    with shown.task("report") as progress:
        return reporting.write_report(
            folder,
            found,
            title=f"Audit of {table.name}",
            estimate=estimate,
            suggestions=found.suggestions,
            find_image=pipeline.image_finder(data, images),
            told=told,
            next_step=next_step,
            about=about,
            progress=progress,
        )


def clean(
    run: Annotated[Path, typer.Argument(help="Run folder, trained on a table.")],
    output: Annotated[Path, typer.Option("-o", "--out", help="Table to write, in the format of the run's table.")],
    threshold: Annotated[float | None, typer.Option(help="Pairs believed in by less are left out.")] = None,
    precision: Annotated[
        float | None, typer.Option(help="Instead: leave out as many as can be, so large a share of them rightly.")
    ] = None,
    mark: Annotated[
        bool, typer.Option("--mark", help="Keep all rows, with a column 'correspondence' added instead.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Where the table is now, if it has moved.")] = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Write the run's table again without the suspects; all columns, values and the order stay as they are.

    Example: `crcl clean runs/first -o cleaned.csv`

    Rows that were not trained on (held out, or without a caption or a usable image) are not judged, and stay. The table
    itself is never touched.
    """
    opened = Run.open(run)
    stored = located(stored_config(opened), data, features, ids, text_features)
    table = Path(stored.data.path)
    cleaning.refuse_output(table, output, overwrite=overwrite)
    warn_if_unfinished(opened, stored)
    beliefs = opened.load_ledger()
    _, estimate, silent = beliefs_of(opened)
    if silent and threshold is None and not mark:
        raise InputError(
            f"{run}: {silent}; so no row is known to be wrong. Look at the pairs that `crcl audit` puts first, and "
            "give a --threshold to remove those below it, or --mark to keep all rows with what is believed of each"
        )
    at = flagged_below(stored, beliefs, estimate, threshold, precision, silent=silent)
    pairs = inputs.audited_pairs(opened, stored)
    columns = Columns(stored.data.image_column, stored.data.caption_column)
    done = cleaning.clean(table, output, pairs, beliefs, threshold=at, mark=mark, overwrite=overwrite, columns=columns)
    left = f" at threshold {at:g}" if not mark else f": all have a column '{cleaning.COLUMN}' now"
    out.print(f"{done.removed:,} rows removed, {done.kept:,} kept{left}", soft_wrap=True)
    if done.unjudged:
        what = "their belief is left empty" if mark else "they are kept"
        why = "held out, or without a caption or a usable image"
        out.print(f"{done.unjudged:,} rows were not judged ({why}); {what}", soft_wrap=True)
    out.print(f"written to {output}", soft_wrap=True)
