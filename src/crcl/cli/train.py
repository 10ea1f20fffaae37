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
    Overwrite,
    Settings,
    TextFeatures,
    pairs_of,
)
from crcl.data.pairs import Pairs
from crcl.matchers import MATCHERS
from crcl.methods import METHODS
from crcl.progress import Together
from crcl.runs.describe import epochs_done, stored_config
from crcl.runs.folder import Run
from crcl.training.tensorboard import TensorBoard

NOISE = "Mismatches put in, to measure robustness"


def train(
    data: Data,
    run: Annotated[Path, typer.Option("-o", "--out", help="Run folder to write.")],
    preset: Annotated[str | None, typer.Option(help=f"One of: {', '.join(config.presets())}.")] = None,
    file: Annotated[Path | None, typer.Option("--config", help="TOML file of settings.")] = None,
    method: Annotated[str | None, typer.Option(help=f"One of: {', '.join(METHODS)}.")] = None,
    matcher: Annotated[str | None, typer.Option(help=f"One of: {', '.join(MATCHERS)}.")] = None,
    decoys: Annotated[
        float | None, typer.Option(help="Add known mismatches, e.g. 0.05: an audit then says how sure it is.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, batches and augmentation.")] = None,
    start: Annotated[
        Path | None, typer.Option(help="Train this run further: start from its matcher, words and correspondences.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = None,
    settings: Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run; it ends as if never interrupted.")
    ] = False,
    overwrite: Overwrite = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    noise: Annotated[
        float | None, typer.Option(help="Share of the training pairs to mismatch.", rich_help_panel=NOISE)
    ] = None,
    noise_level: Annotated[str | None, typer.Option(help="caption or image.", rich_help_panel=NOISE)] = None,
    noise_seed: Annotated[int | None, typer.Option(help="Seed of the mismatches.", rich_help_panel=NOISE)] = None,
    noise_file: Annotated[
        Path | None, typer.Option(help="Take them from the field's .npy index instead.", rich_help_panel=NOISE)
    ] = None,
    images: Images = None,
    model: Annotated[
        str | None, typer.Option(help="Vision model for images without features: a saved model's folder or a hub name.")
    ] = None,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    image_column: ImageColumn = "image",
    caption_column: CaptionColumn = "caption",
) -> None:
    """Train a matcher on pairs that are partly wrong, and learn which.

    Example: `crcl train data/f30k_precomp -o runs/first --preset f30k-vse --noise 0.4`

    Ctrl-C saves; the same command with --resume continues and ends as if it had never been interrupted.
    """
    pairs = pairs_of(
        data,
        images=images,
        features=features,
        text_features=text_features,
        ids=ids,
        image_column=image_column,
        caption_column=caption_column,
    )
    given = {"noise.level": noise_level, "noise.seed": noise_seed, "noise.file": noise_file, "train.device": device}
    if resume and run.is_dir():
        _say_if_finished(run)
    crcl.train(
        pairs,
        run,
        method=method,
        matcher=matcher,
        noise=noise,
        decoys=decoys,
        seed=seed,
        model=model,
        start=start,
        preset=preset,
        config=file,
        settings=[*(f"{key}={value}" for key, value in given.items() if value is not None), *(settings or ())],
        resume=resume,
        overwrite=overwrite,
        progress=Together(shown, TensorBoard(run / "tensorboard")) if tensorboard else shown,
    )
    say_where(run, pairs)


def _say_if_finished(path: Path) -> None:
    opened = Run.open(path)
    done, planned = epochs_done(opened, stored_config(opened))
    if done >= planned:
        say(f"finished already: {done} of {planned} epochs; nothing is left to train")


def say_where(run: Path, pairs: Pairs, *more: list[str]) -> None:
    """Where a run is, and what to do with it next."""
    say(f"the run is in {run}")
    split = [] if "test" in pairs.splits else ["--split", "dev"]
    show_next(["evaluate", str(run), *split], ["audit", str(run)], *more)
