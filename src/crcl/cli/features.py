"""`crcl features`: features of image files."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.cli.console import say, show_next, shown
from crcl.cli.options import CaptionColumn, Device, ImageColumn, Images, Layout, Overwrite, pairs_of
from crcl.data.images import MOST_PIXELS
from crcl.data.pairs import Pairs
from crcl.data.sources import layout_of


def features(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGES_OR_TABLE", help="A table (image, caption), a folder, or image files."),
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
    batch_size: Annotated[int, typer.Option(min=1, help="Images that the model reads at once.")] = 32,
    cache: Annotated[
        Path | None, typer.Option(help="Where features are cached by content; FOLDER/cache, if not given.")
    ] = None,
    megapixels: Annotated[
        float, typer.Option(min=0.001, max=178, help="Larger images are skipped, before they are decoded.")
    ] = MOST_PIXELS / 1e6,
    device: Device = "auto",
    overwrite: Overwrite = False,
    image_column: ImageColumn = "image",
    caption_column: CaptionColumn = "caption",
    layout: Layout = None,
) -> None:
    """Make features of image files: by a vision model, or by the built-in pixel grid for drawings and tests.

    Example: `crcl features pairs.csv --images photos -o features --model openai/clip-vit-base-patch32`

    Images that cannot be used are listed in skipped.csv with the reason. After Ctrl-C the same command continues.
    """
    source: Pairs | list[Path] = sources
    is_table = len(sources) == 1 and layout_of(sources[0], layout) is not None
    if is_table:
        source = pairs_of(
            sources[0], images=images, image_column=image_column, caption_column=caption_column, layout=layout
        )
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
