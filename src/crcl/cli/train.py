"""`crcl train`: train a matcher on pairs that are partly wrong."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl import config
from crcl.cli.console import say, show_next, shown
from crcl.cli.options import (
    CaptionColumn,
    Data,
    Features,
    Ids,
    ImageColumn,
    Images,
    Layout,
    Overwrite,
    Settings,
    TextFeatures,
    Verdicts,
    pairs_of,
)
from crcl.data.decoys import KINDS
from crcl.data.pairs import Pairs
from crcl.matchers import MATCHERS
from crcl.methods import METHODS

NOISE = "Mismatches on purpose, to measure robustness"


def train(
    data: Data,
    run: Annotated[Path, typer.Option("-o", "--out", help="Run folder to write.")],
    preset: Annotated[str | None, typer.Option(help=f"One of: {', '.join(config.presets())}.")] = None,
    file: Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")] = None,
    method: Annotated[str | None, typer.Option(help=f"One of: {', '.join(METHODS)}.")] = None,
    matcher: Annotated[str | None, typer.Option(help=f"One of: {', '.join(MATCHERS)}.")] = None,
    decoys: Annotated[
        float | None, typer.Option(help="Add known mismatches, e.g. 0.05: an audit then estimates its precision.")
    ] = None,
    decoy_kinds: Annotated[
        str | None, typer.Option(help=f"Kinds of them, separated by commas: {', '.join(KINDS)}; random, if not given.")
    ] = None,
    verdicts: Verdicts = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, batches and augmentation.")] = None,
    start: Annotated[
        Path | None, typer.Option(help="Continue from this run: its matcher, vocabulary and correspondences.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = None,
    settings: Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run; the result is the same, bit for bit.")
    ] = False,
    overwrite: Overwrite = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    noise: Annotated[
        float | None, typer.Option(help="Share of the training pairs to mismatch.", rich_help_panel=NOISE)
    ] = None,
    noise_level: Annotated[str | None, typer.Option(help="caption or image.", rich_help_panel=NOISE)] = None,
    noise_seed: Annotated[int | None, typer.Option(help="Seed of the mismatches.", rich_help_panel=NOISE)] = None,
    noise_file: Annotated[
        Path | None, typer.Option(help="Read them from a noise index (.npy) instead.", rich_help_panel=NOISE)
    ] = None,
    images: Images = None,
    model: Annotated[
        str | None, typer.Option(help="Vision model for images without features: a saved model's folder or a hub name.")
    ] = None,
    text_model: Annotated[
        str | None, typer.Option(help="Another model for vectors of captions: a sentence encoder, CLIP or SigLIP.")
    ] = None,
    long_captions: Annotated[
        str, typer.Option(help="Captions longer than this model reads are cut, or read by sentences: cut, mean, least.")
    ] = "cut",
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    image_column: ImageColumn = "image",
    caption_column: CaptionColumn = "caption",
    layout: Layout = None,
) -> None:
    """Train a matcher on pairs that are partly wrong, and learn which ones are.

    Example: `crcl train data/f30k_precomp -o runs/first --preset f30k-vse --noise 0.4`

    Ctrl-C and SIGTERM save; the same command with --resume continues, and ends bit-identical to an uninterrupted run.
    """
    pairs = pairs_of(
        data,
        images=images,
        features=features,
        text_features=text_features,
        ids=ids,
        image_column=image_column,
        caption_column=caption_column,
        layout=layout,
    )
    given = {"noise.level": noise_level, "noise.seed": noise_seed, "noise.file": noise_file, "train.device": device}
    crcl.train(
        pairs,
        run,
        method=method,
        matcher=matcher,
        noise=noise,
        decoys=decoys,
        decoy_kinds=decoy_kinds,
        verdicts=verdicts,
        seed=seed,
        model=model,
        text_model=text_model,
        long_captions=long_captions,
        start=start,
        preset=preset,
        config=file,
        settings=[*(f"{key}={value}" for key, value in given.items() if value is not None), *(settings or ())],
        resume=resume,
        overwrite=overwrite,
        tensorboard=tensorboard,
        progress=shown,
    )
    say_where(run, pairs)


def say_where(run: Path, pairs: Pairs, *more: list[str]) -> None:
    """Say where a run is, and which commands use it."""
    say(f"the run is in {run}")
    split = [] if "test" in pairs.splits else ["--split", "dev"]
    show_next(["evaluate", str(run), *split], ["audit", str(run)], *more)
