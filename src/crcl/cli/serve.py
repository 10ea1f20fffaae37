"""`crcl serve`: review an audit, and search with its run, in the browser."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.api.serving import PORT
from crcl.cli.console import say, shown
from crcl.cli.options import Device, Images, Memory, MovedData, Precision, Score, Threshold


def serve(
    source: Annotated[
        Path, typer.Argument(metavar="RUN_OR_AUDIT", help="A run folder, or the folder of an audit (NAME-audit).")
    ],
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    port: Annotated[int, typer.Option(help="Port to listen at; 0 is a free one.")] = PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen at; one that other machines reach needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(help="Letters and digits, at least 8, that a browser must know to open the page.")
    ] = None,
    threshold: Threshold = None,
    precision: Precision = None,
    score: Score = None,
    sample: Annotated[
        int, typer.Option(help="How many flagged and how many unflagged pairs the random sample has.")
    ] = 100,
    search: Annotated[bool, typer.Option(help="Encode images and captions for search.")] = True,
    images: Images = None,
    data: MovedData = None,
    device: Device = "auto",
    memory: Memory = None,
) -> None:
    """Review an audit, and search with its run, on a page in the browser; verdicts are kept in the run folder.

    Example: `crcl serve pairs-audit --open`

    The page shows one suspect at a time, and every action has a key. A verdict is on disk when the page shows it as
    saved. The random sample measures precision and recall, beside the estimate by decoys. Ctrl-C stops.

    Only this machine can open the page, and it loads nothing from elsewhere. For other machines: --host 0.0.0.0 --token
    SECRET123.
    """

    def ready(url: str) -> None:
        say(f"serving {url}  (Ctrl-C stops)")
        if open_:
            webbrowser.open(url)

    made = crcl.serve(
        source,
        data=data,
        images=images,
        threshold=threshold,
        precision=precision,
        score=score,
        sample=sample,
        search=search,
        host=host,
        port=port,
        token=token,
        device=device,
        memory=memory,
        ready=ready,
        progress=shown,
    )
    say(f"stopped; all verdicts are saved in {made.folder}")
