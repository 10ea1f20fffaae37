"""Commands about data, before any training: noise, features, info."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from crcl import config
from crcl.cli.options import (
    CaptionColumn,
    Data,
    Device,
    Features,
    Ids,
    ImageColumn,
    TextFeatures,
    columns_of,
    refuse_input,
)
from crcl.cli.screen import note, out, shown, tell_next
from crcl.data import noise as mismatching
from crcl.data.images import MOST_PIXELS, wanted_images
from crcl.data.pairs import Pairs
from crcl.data.sources import table as tables
from crcl.errors import InputError
from crcl.features.extract import Extracted, Extractor, extract
from crcl.features.grid import PixelGrid
from crcl.features.vision import Pixels, VisionModel
from crcl.runs import describe as describing
from crcl.runs.restore import choose_device


def noise(
    data: Data,
    output: Annotated[Path, typer.Option("-o", "--out", help="Index file to write (.npy).")],
    rate: Annotated[float, typer.Option(help="Share to mismatch, 0 to 1.")],
    level: Annotated[str, typer.Option(help="caption: single captions; image: all captions of an image.")] = "caption",
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Write a noise index in the field's layout, to share mismatches between tools and runs.

    Example: `crcl noise data/f30k_precomp --rate 0.4 -o noise_0.4.npy`
    """
    if output.exists() and not overwrite:
        raise InputError(f"{output}: exists already; replace it by --overwrite, or name another file")
    columns = columns_of(image_column, caption_column)
    opened = Pairs.of(data, features=features, ids=ids, text_features=text_features, columns=columns)
    pairs = opened.split("train")
    index = mismatching.mismatch(pairs.image_index, rate, seed, level=level, images=pairs.images)
    truth = mismatching.apply(pairs, index).truth
    refuse_input(output, pairs.source, str(data))
    mismatching.write_index(output, index)
    wrong = 0 if truth is None else int((~truth).sum())
    out.print(f"{wrong:,} of {len(pairs):,} training pairs are mismatched; written to {output}", soft_wrap=True)


def features(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGES_OR_TABLE", help="A table (image, caption), a folder, or image files."),
    ],
    folder: Annotated[Path, typer.Option("-o", "--out", help="Folder to write features.npy and ids.txt to.")],
    images: Annotated[
        Path | None, typer.Option(help="Folder of the table's images; where the table is, if not given.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="CLIP, SigLIP or DINOv2: a saved model's folder, or its name on the hub.")
    ] = None,
    grid: Annotated[int, typer.Option(min=1, max=32, help="N x N regions at most; 6 gives 36.")] = 6,
    whole: Annotated[bool, typer.Option("--global", help="One vector per image instead of regions.")] = False,
    pixels: Annotated[
        bool, typer.Option("--pixels", help="The pixels that --model reads, to fine-tune it (--matcher clip).")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that the model sees at once.")] = 32,
    cache: Annotated[
        Path | None, typer.Option(help="Where features are kept by content; FOLDER/cache, if not given.")
    ] = None,
    megapixels: Annotated[
        float, typer.Option(min=0.001, max=178, help="Larger images are skipped, before they are decoded.")
    ] = MOST_PIXELS / 1e6,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace features made in another way.")] = False,
) -> None:
    """Make features of image files: by a vision model, or by the built-in pixel grid for drawings and tests.

    Example: `crcl features pairs.csv --images photos -o features --model openai/clip-vit-base-patch32`

    What cannot be used is listed in skipped.csv with the reason. Ctrl-C is safe: the same command goes on.
    """
    columns = columns_of(image_column, caption_column)
    wanted = wanted_images(sources, folder=images, columns=columns)
    if pixels and (model is None or whole):
        raise InputError("--pixels are those that a model reads; give its --model with it, and no --global")
    if whole and model is None:
        raise InputError("--global is a model's vector of the whole image; give a --model with it")
    found = extract(
        wanted,
        extractor(model, grid=grid, whole=whole, pixels=pixels, device=device),
        folder,
        cache=cache,
        batch_size=batch_size,
        most_pixels=round(megapixels * 1e6),
        overwrite=overwrite,
        progress=shown,
    )
    shape = " x ".join(str(side) for side in found.shape)
    out.print(f"{found.images:,} images, {shape} each ({found.computed:,} computed now), in {folder}", soft_wrap=True)
    note_skipped(found, folder)
    if tables.recognises(sources[0]):
        words = ["--features", str(folder / "features.npy"), "--ids", str(folder / "ids.txt")]
        if pixels:
            words += ["--preset", "clip", "--set", f"matcher.model={model}"]
        tell_next(["train", str(sources[0]), "-o", "RUN", *words])


def extractor(
    model: str | None, *, grid: int = 6, whole: bool = False, pixels: bool = False, device: str = "auto"
) -> Extractor:
    """The vision model that is asked for, or else the pixel grid, with a word of warning."""
    if model is None:
        note("the built-in pixel grid knows colours and edges only, for drawings and tests; photos need a --model")
        return PixelGrid(grid=grid)
    if pixels:
        return Pixels(model)
    return VisionModel(model, grid=grid, whole=whole, device=choose_device(device))


def note_skipped(made: Extracted, folder: Path) -> None:
    """Say that images could not be used, and where the reasons are."""
    if made.skipped:
        note(
            f"{len(made.skipped):,} images were skipped, and training leaves their pairs out: {folder / 'skipped.csv'}"
        )


def info(
    path: Annotated[Path | None, typer.Argument(help="Data or run folder; nothing: all settings.")] = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
) -> None:
    """Say what is there: counts and shapes of data, config and progress of a run; without a path, every setting.

    Example: `crcl info runs/first`
    """
    if path is None:
        table = Table("key", "type", "default", "meaning", box=None, pad_edge=False)
        for key in config.describe_keys():
            table.add_row(*key)
        out.print(table)
        return
    columns = columns_of(image_column, caption_column)
    for name, fact in describing.describe(
        path, features=features, ids=ids, text_features=text_features, columns=columns
    ):
        out.print(f"{name:<12}{fact}", soft_wrap=True)
