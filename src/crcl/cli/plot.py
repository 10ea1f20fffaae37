"""`crcl plot`: draw a run."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.cli.console import say, shown
from crcl.cli.options import Device, Features, Ids, Memory, MovedData, TextFeatures, moved


def plot(
    run: Annotated[Path, typer.Argument(help="A run folder, or the folder of an audit (NAME-audit).")],
    folder: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for the pictures; RUN/plots, if not given.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split to rank; 'none' draws no ranks.")] = "dev",
    threshold: Annotated[
        float | None,
        typer.Option(help="Pairs with a lower correspondence count as detected; the method's own, or 0.1."),
    ] = None,
    svg: Annotated[bool, typer.Option("--svg", help="Draw SVG instead of PNG.")] = False,
    device: Device = "auto",
    memory: Memory = None,
    data: MovedData = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
) -> None:
    """Draw a run: loss, scores and correspondences by epoch, ranks on a split, mismatches found by epoch.

    Example: `crcl plot runs/first`

    Mismatches found need injected noise: correspondences are compared with the truth only here, after the training.
    """
    pictures = crcl.plot(
        run,
        folder,
        split=None if split == "none" else split,
        threshold=threshold,
        svg=svg,
        data=moved(run, data, features, ids, text_features),
        device=device,
        memory=memory,
        progress=shown,
    )
    for path in pictures:
        say(str(path))
