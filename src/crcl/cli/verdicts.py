"""`crcl verdicts`: write what people said of pairs to a file, or read it from one."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.cli.console import say
from crcl.cli.options import Features, Ids, MovedData, Overwrite, TextFeatures, moved
from crcl.errors import InputError
from crcl.runs.exchange.matching import IMPORTED

ACTIONS = ("export", "import")


def verdicts(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="export or import.")],
    run: Annotated[
        Path, typer.Argument(metavar="RUN_OR_AUDIT", help="A run folder, or the folder of an audit (NAME-audit).")
    ],
    file: Annotated[Path, typer.Argument(help="A .csv or .jsonl file: to write, or to read.")],
    reviewer: Annotated[str, typer.Option(help="With import: who gave verdicts whose line does not say.")] = IMPORTED,
    overwrite: Overwrite = False,
    data: MovedData = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
) -> None:
    """Write the verdicts of a run to a table, or add those of a table to a run.

    Example: `crcl verdicts export pairs-audit verdicts.csv`

    Columns: row, image, caption, verdict (right, wrong, unsure), new_caption, new_image, reviewer, at, queue. A file to
    import needs image, caption and verdict. A row must show the image and the caption that the line has; without rows,
    pairs are found by image and caption. A file with errors is refused as a whole; importing a file twice changes
    nothing.

    In CSV, a caption or name that a spreadsheet would take for a formula has an apostrophe before it, which import
    takes off again.
    """
    if action not in ACTIONS:
        raise InputError(f"'{action}' is neither export nor import", where="ACTION")
    where = moved(run, data, features, ids, text_features)
    if action == "export":
        count = crcl.export_verdicts(run, file, data=where, overwrite=overwrite).num_rows
        say(f"{count:,} verdicts written to {file}")
    else:
        done = crcl.import_verdicts(run, file, reviewer=reviewer, data=where)
        say(f"{done.added:,} verdicts added, {done.known:,} were there already")
