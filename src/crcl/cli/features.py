"""`crcl features`: features of image files, and vectors of captions."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.cli.console import say, show_next, shown
from crcl.cli.options import CaptionColumn, Device, ImageColumn, Images, Layout, Overwrite, pairs_of
from crcl.data.images import MOST_PIXELS
from crcl.data.pairs import Pairs
from crcl.data.sources import layout_of
from crcl.errors import InputError


def features(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES_OR_PAIRS",
            help="Pairs (a table, or any layout of docs/data.md), a folder of images, or image files.",
        ),
    ],
    folder: Annotated[Path, typer.Option("-o", "--out", help="Folder to write features.npy and ids.txt to.")],
    images: Images = None,
    model: Annotated[
        str | None, typer.Option(help="CLIP, SigLIP or DINOv2: a saved model's folder, or its name on the hub.")
    ] = None,
    grid: Annotated[int, typer.Option(min=1, max=32, help="N x N regions at most; 6 gives 36.")] = 6,
    whole: Annotated[bool, typer.Option("--global", help="One vector per image instead of regions.")] = False,
    pixels: Annotated[
        bool, typer.Option("--pixels", help="Write the pixels that --model reads, to fine-tune it (--matcher clip).")
    ] = False,
    texts: Annotated[
        bool, typer.Option("--texts", help="Make vectors of a table's captions instead, by --model.")
    ] = False,
    long_captions: Annotated[
        str, typer.Option(help="With --texts, of captions longer than the model reads: cut, mean or least.")
    ] = "cut",
    batch_size: Annotated[int, typer.Option(min=1, help="Images that the model reads at once.")] = 32,
    cache: Annotated[
        Path | None, typer.Option(help="Where features are cached by content; FOLDER/cache, if not given.")
    ] = None,
    megapixels: Annotated[
        float, typer.Option(min=0.001, max=178, help="Larger images are skipped, before they are decoded.")
    ] = MOST_PIXELS / 1e6,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that decode images; the number of cores, at most 4.")
    ] = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    image_column: ImageColumn = "image",
    caption_column: CaptionColumn = "caption",
    layout: Layout = None,
) -> None:
    """Make features of image files: by a vision model, or by the built-in pixel grid for drawings and tests.

    Example: `crcl features pairs.csv --images photos -o features --model openai/clip-vit-base-patch32`

    With --texts, vectors of captions: by the text side of CLIP or SigLIP, or by a sentence encoder.

    Images that cannot be used are listed in skipped.csv with the reason. After Ctrl-C the same command continues.
    """
    source: Pairs | list[Path] = sources
    is_table = len(sources) == 1 and layout_of(sources[0], layout) is not None
    if is_table:
        source = pairs_of(
            sources[0], images=images, image_column=image_column, caption_column=caption_column, layout=layout
        )
    if texts:
        _of_texts(source, sources[0], folder, model, long_captions, cache, device, overwrite)
        return
    made = crcl.extract_features(
        source,
        folder,
        images=images,
        model=model,
        grid=grid,
        whole=whole,
        pixels=pixels,
        batch_size=batch_size,
        cache=cache,
        megapixels=megapixels,
        workers=workers,
        device=device,
        overwrite=overwrite,
        progress=shown,
    )
    shape = " x ".join(str(side) for side in made.shape)
    say(f"{made.images:,} images, {shape} each ({made.computed:,} computed now), in {folder}")
    if is_table:
        words = ["--features", str(folder / "features.npy"), "--ids", str(folder / "ids.txt")]
        if pixels:
            words += ["--preset", "clip", "--set", f"matcher.model={model}"]
        show_next(["train", str(sources[0]), "-o", "RUN", *words])


def _of_texts(
    source: Pairs | list[Path],
    name: Path,
    folder: Path,
    model: str | None,
    long_captions: str,
    cache: Path | None,
    device: str,
    overwrite: bool,
) -> None:
    if not isinstance(source, Pairs):
        raise InputError("has no captions", where=name, hint="give a table with --texts")
    if model is None:
        raise InputError("captions need a model", hint="give --model with --texts: CLIP, SigLIP or a sentence encoder")
    made = crcl.extract_text_features(
        source,
        folder,
        model=model,
        long_captions=long_captions,
        cache=cache,
        device=device,
        overwrite=overwrite,
        progress=shown,
    )
    say(f"{made.captions:,} captions, {made.size} numbers each ({made.computed:,} computed now), in {folder}")
    words = ["--text-features", str(folder / "text_features.npy")]
    show_next(["train", str(name), "-o", "RUN", "--preset", "embeddings", "--features", "FEATURES.npy", *words])
