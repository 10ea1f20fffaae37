"""`crcl import`: make a run of a published checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.cli.console import say, shown
from crcl.cli.options import CaptionColumn, Features, Ids, ImageColumn, Layout, Overwrite, pairs_of
from crcl.cli.train import say_where
from crcl.methods import methods_of


def import_(
    checkpoint: Annotated[
        Path, typer.Argument(help="The authors' file, e.g. model_best.pth.tar; or a CLIP's folder or hub name.")
    ],
    data: Annotated[Path, typer.Option(help="The data that it was trained on: a folder, or a table. A CLIP: any.")],
    run: Annotated[Path, typer.Option("-o", "--out", help="Run folder to write.")],
    vocab: Annotated[
        Path | None, typer.Option(help="Its vocabulary in the field's JSON; searched for near the data, if not given.")
    ] = None,
    noise_file: Annotated[Path | None, typer.Option(help="The noise index that it was trained with (.npy).")] = None,
    method: Annotated[str | None, typer.Option(help="The method that trained it, if the file does not say.")] = None,
    overwrite: Overwrite = False,
    features: Features = None,
    ids: Ids = None,
    image_column: ImageColumn = "image",
    caption_column: CaptionColumn = "caption",
    layout: Layout = None,
) -> None:
    """Make a run of a published checkpoint: CRCL, SGRAF, SCAN, DECL, RCL, NCR, BiCro, L2RM, GSC and more; CLIP, SigLIP.

    Example: `crcl import model_best.pth.tar --data data/f30k_precomp -o runs/published`

    Nothing in the file is executed: what is not weights, arrays or plain values is refused.
    """
    pairs = pairs_of(
        data, features=features, ids=ids, image_column=image_column, caption_column=caption_column, layout=layout
    )
    made = crcl.import_checkpoint(
        checkpoint, pairs, run, vocab=vocab, noise_file=noise_file, method=method, overwrite=overwrite, progress=shown
    )
    say(f"{made.config['matcher']['name']} imported from {made.imported}")
    fitting = methods_of(made.networks)
    further = [["train", str(data), "-o", "NEW", "--start", str(run), "--method", fitting[0]]] if fitting else []
    say_where(run, pairs, *further)
