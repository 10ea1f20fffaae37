"""`crcl search`: the images or captions of an index that fit best."""

import json
import webbrowser
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

import crcl
from crcl.cli.console import out, say
from crcl.cli.options import Candidates, Device, Rerank
from crcl.retrieval.index.hits import check_sheet
from crcl.terminal import printable


def search(
    index: Annotated[str, typer.Argument(help="Index folder, or the address of an engine, as `crcl index --to`.")],
    query: Annotated[str | None, typer.Argument(help="A sentence.")] = None,
    image: Annotated[Path | None, typer.Option(help="A photo, instead of a sentence.")] = None,
    like: Annotated[str | None, typer.Option(help="The name of an image of the index: find images near it.")] = None,
    k: Annotated[int, typer.Option("-k", help="How many to show.")] = 10,
    what: Annotated[
        Literal["images", "captions"] | None,
        typer.Option(help="What to find; captions for a photo and images otherwise, if not given."),
    ] = None,
    rerank: Rerank = None,
    candidates: Candidates = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sheet: Annotated[Path | None, typer.Option(help="Also write a page of thumbnails (.html).")] = None,
    open_sheet: Annotated[bool, typer.Option("--open", help="Open the page of thumbnails in the browser.")] = False,
    images: Annotated[Path | None, typer.Option(help="Folder of the image files, for the page.")] = None,
    run: Annotated[Path | None, typer.Option(help="The run of the index, if it has moved.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data with features for the second run, if not where that run says.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Find the images or captions of an index that fit a sentence, a photo, or one of its images best.

    Example: `crcl search first.index "two dogs run on a beach" -k 5 --open`
    """
    if sheet is not None:
        check_sheet(sheet)
    hits = crcl.search(
        index,
        query,
        image=image,
        like=like,
        k=k,
        what=what,
        rerank=rerank,
        candidates=candidates,
        run=run,
        data=data,
        device=device,
    )
    if sheet is not None or open_sheet:
        written = hits.sheet(sheet or Path(mkdtemp(prefix="crcl-")) / "search.html", images=images)
    if as_json:
        say(json.dumps([asdict(hit) for hit in hits]))
    else:
        table = Table("rank", "score", "image", "captions")
        for hit in hits:
            cells = (Text(printable(text)) for text in (hit.key, "\n".join(hit.captions)))
            table.add_row(str(hit.rank), f"{hit.score:.3f}", *cells)
        out.print(table)
        if sheet is not None or open_sheet:
            say(f"thumbnails: {written}")
    if open_sheet:
        webbrowser.open(written.absolute().as_uri())
