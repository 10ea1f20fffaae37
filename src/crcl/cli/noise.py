"""`crcl noise`: a noise index in the field's layout."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.cli.console import say
from crcl.cli.options import CaptionColumn, Data, Features, Ids, ImageColumn, Layout, Overwrite, TextFeatures, pairs_of


def noise(
    data: Data,
    output: Annotated[Path, typer.Option("-o", "--out", help="Index file to write (.npy).")],
    rate: Annotated[float, typer.Option(help="Share to mismatch, 0 to 1.")],
    level: Annotated[str, typer.Option(help="caption: single captions; image: all captions of an image.")] = "caption",
    seed: Annotated[int, typer.Option(help="Seed of the mismatches.")] = 0,
    overwrite: Overwrite = False,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    image_column: ImageColumn = "image",
    caption_column: CaptionColumn = "caption",
    layout: Layout = None,
) -> None:
    """Write a noise index in the field's layout, to share mismatches between tools and runs.

    Example: `crcl noise data/f30k_precomp --rate 0.4 -o noise_0.4.npy`
    """
    pairs = pairs_of(
        data,
        features=features,
        text_features=text_features,
        ids=ids,
        image_column=image_column,
        caption_column=caption_column,
        layout=layout,
    )
    truth = crcl.inject_noise(pairs, output, rate=rate, level=level, seed=seed, overwrite=overwrite)
    say(f"{int((~truth).sum()):,} of {len(truth):,} training pairs are mismatched; written to {output}")
