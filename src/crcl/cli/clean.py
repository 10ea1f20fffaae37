"""`crcl clean`: a copy of the data without the suspects."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import crcl
from crcl.cli.console import say, shown
from crcl.cli.options import (
    Features,
    Ids,
    Keep,
    MovedData,
    Precision,
    Score,
    TextFeatures,
    Threshold,
    WrongAtMost,
    moved,
)
from crcl.data.cleaning.judged import COLUMN
from crcl.errors import InputError


def clean(
    run: Annotated[Path, typer.Argument(help="A run folder, or the folder of an audit (NAME-audit).")],
    output: Annotated[Path, typer.Option("-o", "--out", help="File or folder to write, in the layout of the data.")],
    threshold: Threshold = None,
    precision: Precision = None,
    keep: Keep = None,
    wrong_at_most: WrongAtMost = None,
    score: Score = None,
    relink: Annotated[
        float | None,
        typer.Option(
            help="Move captions that belong to another image with at least this belief, e.g. 0.9; needs a run of "
            "method relink."
        ),
    ] = None,
    verdicts: Annotated[
        bool, typer.Option("--verdicts", help="What was said of pairs in review beats what is believed.")
    ] = False,
    mark: Annotated[bool, typer.Option("--mark", help=f"Keep all rows, and add a column '{COLUMN}' instead.")] = False,
    images: Annotated[
        str | None, typer.Option(help="link or copy the image files beside the cleaned data; neither, if not given.")
    ] = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write new tars, instead of lists of what to keep.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file; a folder is never replaced.")
    ] = False,
    data: MovedData = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
) -> None:
    """Write a copy of the run's data without the suspects; all columns, values and the order stay.

    Example: `crcl clean runs/first -o cleaned.csv`

    What is removed: all below --threshold; or as many as possible at an estimated --precision; or all but the best
    --keep; or as few as possible so that --wrong-at-most of the kept is wrong. With none, the best estimated F1
    decides.

    With --verdicts, pairs said to be right stay and those said to be wrong are removed, whatever is believed of them;
    corrected captions and images are written. "Unsure" says nothing. With --threshold 0 verdicts alone decide.

    With --relink, captions that belong to another image are moved there: only the value in the column of images
    changes. The other suspects are removed.

    Rows that were not trained on (held out, or without a caption or a usable image) are not judged, and stay. The data
    itself is never touched.
    """
    done = crcl.clean(
        run,
        output,
        threshold=threshold,
        precision=precision,
        keep=keep,
        wrong_at_most=wrong_at_most,
        score=score,
        relink=relink,
        verdicts=verdicts,
        mark=mark,
        images=_images(images),
        rewrite=rewrite,
        data=moved(run, data, features, ids, text_features),
        overwrite=overwrite,
        progress=shown,
    )
    how = f" with a new column '{COLUMN}'" if mark else f" at threshold {done.threshold:g}"
    relinked = "" if relink is None else f", {done.moved:,} of these moved to another image,"
    say(f"{done.removed:,} rows removed, {done.kept:,} kept{relinked}{how}")
    if done.verdicts is not None:
        by = done.verdicts
        rest = f" removed, {by.corrected:,} corrected, {by.moved:,} moved"
        say(f"by verdicts: {by.kept:,} {'marked' if mark else f'kept, {by.removed:,}{rest}'}")
    if done.unjudged:
        what = "their correspondence is left empty" if mark else "they are kept"
        say(f"{done.unjudged:,} rows were not judged (held out, or without a caption or a usable image); {what}")
    say(f"written to {output}")


def _images(given: str | None) -> Literal["link", "copy"] | None:
    if given not in (None, "link", "copy"):
        raise InputError(f"'{given}': image files are linked or copied", where="--images", hint="give link or copy")
    return given  # type: ignore[return-value]
