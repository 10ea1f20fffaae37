"""`crcl clean`: a copy of the data without the suspects."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.auditing.clean import COLUMN
from crcl.cli.console import say, shown
from crcl.cli.options import Features, Ids, MovedData, Overwrite, Precision, TextFeatures, Threshold, moved


def clean(
    run: Annotated[Path, typer.Argument(help="Run folder, trained on a table.")],
    output: Annotated[Path, typer.Option("-o", "--out", help="Table to write, in the format of the run's table.")],
    threshold: Threshold = None,
    precision: Precision = None,
    relink: Annotated[
        float | None,
        typer.Option(
            help="Move captions that belong to another image with at least this belief, e.g. 0.9; needs a run of "
            "method relink."
        ),
    ] = None,
    mark: Annotated[bool, typer.Option("--mark", help=f"Keep all rows, and add a column '{COLUMN}' instead.")] = False,
    overwrite: Overwrite = False,
    data: MovedData = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
) -> None:
    """Write a copy of the run's table without the suspects; all columns, values and the order stay.

    Example: `crcl clean runs/first -o cleaned.csv`

    With --relink, captions that belong to another image are moved there: only the value in the column of images
    changes. The other suspects are removed.

    Rows that were not trained on (held out, or without a caption or a usable image) are not judged, and stay. The table
    itself is never touched.
    """
    done = crcl.clean(
        run,
        output,
        threshold=threshold,
        precision=precision,
        relink=relink,
        mark=mark,
        data=moved(run, data, features, ids, text_features),
        overwrite=overwrite,
        progress=shown,
    )
    how = f" with a new column '{COLUMN}'" if mark else f" at threshold {done.threshold:g}"
    relinked = "" if relink is None else f", {done.moved:,} of these moved to another image,"
    say(f"{done.removed:,} rows removed, {done.kept:,} kept{relinked}{how}")
    if done.unjudged:
        what = "their correspondence is left empty" if mark else "they are kept"
        say(f"{done.unjudged:,} rows were not judged (held out, or without a caption or a usable image); {what}")
    say(f"written to {output}")
