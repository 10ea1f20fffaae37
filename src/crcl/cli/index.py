"""`crcl index`: vectors of a run's images and captions, to search in."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.cli.console import say, show_next, shown
from crcl.cli.options import Device, Dtype, Memory, Overwrite
from crcl.errors import InputError
from crcl.retrieval.engines.addresses import FORMS

_TO = "--to"


def index(
    run: Annotated[Path, typer.Argument(help="A run folder, or the folder of an audit (NAME-audit).")],
    data: Annotated[Path | None, typer.Argument(help="Other data, or the run's data if it has moved.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of the image files of other data without features.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--out", help="Folder to write; search.index.")] = None,
    to: Annotated[str | None, typer.Option(help=f"Write to an engine instead: {FORMS}.")] = None,
    split: Annotated[str | None, typer.Option(help="Only this split; all of them, if not given.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Add to an existing index of this run what it lacks.")] = False,
    recall: Annotated[
        float | None,
        typer.Option(
            help="Search some cells only: the cheapest setting that finds this share of the ten best, e.g. 0.95. Exact "
            "search (1) up to a million, if not given."
        ),
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    memory: Memory = None,
    dtype: Dtype = None,
) -> None:
    """Write the vectors of a run's images and captions to a folder, to search in.

    Example: `crcl index runs/first -o first.index`

    For matchers with one vector for each image and text. A process that is killed leaves the old index or the new one;
    what `--to` has written stays, and the same command resumes.
    """
    if to is not None:
        if output is not None or add or recall is not None:
            what = "an engine needs no folder, adds what it lacks, and has settings of its own"
            raise InputError(what, where=_TO, hint="leave --out, --add and --recall out")
        remote = crcl.index_to(
            run,
            to,
            data=data,
            images=images,
            split=split,
            overwrite=overwrite,
            device=device,
            memory=memory,
            dtype=dtype,
            progress=shown,
        )
        say(f"{remote.path}: {'; '.join(remote.sentences())}")
        show_next(["search", remote.path, "a sentence"])
        return
    output = output or Path("search.index")
    made = crcl.index(
        run,
        output,
        data=data,
        images=images,
        split=split,
        add=add,
        recall=recall,
        overwrite=overwrite,
        device=device,
        memory=memory,
        dtype=dtype,
        progress=shown,
    )
    say(f"{output}: {'; '.join(made.sentences())}; {made.bytes / 1e6:,.1f} MB")
    show_next(["search", str(output), "a sentence"])
