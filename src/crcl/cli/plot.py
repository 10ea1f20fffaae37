"""`crcl plot`: draw a run."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.cli.console import say, shown
from crcl.cli.options import Device, Features, Ids, Memory, MovedData, TextFeatures, moved


def plot(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    folder: Annotated[Path | None, typer.Option("-o", "--out", help="Folder to draw into; RUN/plots.")] = None,
    split: Annotated[str, typer.Option(help="Split to rank; none: no ranks.")] = "dev",
    threshold: Annotated[
        float | None, typer.Option(help="Lower correspondences count as detected; the method's own, or 0.1.")
    ] = None,
    svg: Annotated[bool, typer.Option("--svg", help="Draw SVG instead of PNG.")] = False,
    device: Device = "auto",
    memory: Memory = None,
    data: MovedData = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
) -> None:
    """Draw a run: loss and scores by epoch, how correspondences sharpen, ranks, the mismatches found by epoch.

    Example: `crcl plot runs/first`

    The last one needs injected mismatches. The truth is compared with correspondences here, long after the training.
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
