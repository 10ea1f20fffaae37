"""`crcl reproduce`: the paper's tables and figures."""

import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl import experiments
from crcl.cli.console import say, shown
from crcl.cli.options import Settings
from crcl.errors import InputError


def reproduce(
    names: Annotated[list[str], typer.Argument(help=f"'list', or some of: {', '.join(experiments.NAMES)}, FILE.toml.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="A precomp folder, or other data with features; for the profile paper the folder that holds "
            "f30k_precomp etc."
        ),
    ] = None,
    profile: Annotated[str, typer.Option(help="cpu: sized for two cores, any data. paper: the paper's sizes.")] = "cpu",
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds of weights, batches and mismatches: 0, 1, ...")
    ] = 3,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, tables and figures.")] = Path(
        "reproduce"
    ),
    matcher: Annotated[str | None, typer.Option(help="Train every row on this matcher instead of on its own.")] = None,
    pixels: Annotated[
        Path | None, typer.Option(help="For table3: the folder that `crcl features --pixels` wrote for a table.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="For table3: NAME=FOLDER of a saved model; NAME=none leaves its rows out.")
    ] = None,
    noise: Annotated[list[float] | None, typer.Option(help="Only these rates of mismatches, e.g. 0.4.")] = None,
    noise_level: Annotated[
        str | None,
        typer.Option(help="caption, or image: mismatch all captions of an image together. [default: caption]"),
    ] = None,
    settings: Settings = None,
    processes: Annotated[int, typer.Option("--jobs", min=1, help="Trainings at a time.")] = 1,
    print_jobs: Annotated[
        bool, typer.Option("--print-jobs", help="Train nothing; print the commands that are left, for a cluster.")
    ] = False,
    only_gather: Annotated[
        bool, typer.Option("--gather", help="Train nothing; write tables and figures of the finished runs.")
    ] = False,
) -> None:
    """Reproduce the paper's tables and figures: train the runs they need, show ours beside the paper's.

    Example: `crcl reproduce table4 --data data/flickr8k --matcher vse`

    Runs are saved in OUT/runs and shared between tables. Stop it at any time: the same command continues, and with
    nothing left to train it only writes the tables. Once the jobs of --print-jobs are done, the same command without it
    writes the tables.
    """
    if [name.lower() for name in names] == ["list"]:
        for name in experiments.NAMES:
            say(f"{name:<17}{experiments.experiment(name).title}")
        return
    if processes > 1:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # clusters send SIGTERM: treat it as Ctrl-C
    made = crcl.reproduce(
        names,
        data=data,
        profile=profile,
        seeds=seeds,
        out=folder,
        matcher=matcher,
        pixels=pixels,
        model=_models(model or ()),
        noise=noise or (),
        noise_level=noise_level,
        settings=settings or (),
        processes=processes,
        print_jobs=print_jobs,
        gather=only_gather,
        progress=shown,
    )
    for command in made.commands:
        say(shlex.join(command))
    if made.script is not None:
        left = f"{len(made.commands)} of {made.planned} runs are left"
        shown.note(f"{left}; run the commands above, or: sbatch {made.script}")
    for path in made.written:
        say(str(path))
    made.raise_failures()


def _models(given: Sequence[str]) -> dict[str, str]:
    """NAME=FOLDER options as a dict."""
    found = dict(entry.partition("=")[::2] for entry in given)
    for name, where in found.items():
        if not where:
            raise InputError(f"expected NAME=FOLDER, got {name}", where="--model")
    return found
