"""Commands that train several runs and compare them: reproduce, demo."""

import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from crcl import experiments
from crcl.cli.options import Settings
from crcl.cli.screen import note, out, shown
from crcl.errors import InputError
from crcl.experiments import demo as demonstration
from crcl.experiments import reproduce as reproducing


def reproduce(
    names: Annotated[list[str], typer.Argument(help=f"list, or some of: {', '.join(experiments.NAMES)}, FILE.toml.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="A precomp folder, or a table; for the profile paper the folder that holds f30k_precomp etc."
        ),
    ] = None,
    profile: Annotated[str, typer.Option(help="cpu: two cores' size, any data. paper: the paper's sizes.")] = "cpu",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ... of weights, batches and mismatches.")] = 3,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, tables and figures.")] = Path(
        "reproduce"
    ),
    matcher: Annotated[str | None, typer.Option(help="Train every row on this matcher instead of on its own.")] = None,
    pixels: Annotated[
        Path | None, typer.Option(help="For table3: what `crcl features --pixels` made of the images of a table.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="For table3: NAME=FOLDER of a saved model; NAME=none leaves its rows out.")
    ] = None,
    noise: Annotated[list[float] | None, typer.Option(help="Only these rates of mismatches, e.g. 0.4.")] = None,
    settings: Settings = None,
    processes: Annotated[int, typer.Option("--jobs", min=1, help="Trainings at a time.")] = 1,
    print_jobs: Annotated[
        bool, typer.Option("--print-jobs", help="Train nothing; print the commands that are left, for a cluster.")
    ] = False,
    only_gather: Annotated[bool, typer.Option("--gather", help="Train nothing; write what there is so far.")] = False,
) -> None:
    """Make the paper's tables and figures anew: train what they need, and show ours beside the paper's.

    Example: `crcl reproduce table4 --data data/flickr8k --matcher vse`

    Runs are kept in OUT/runs and shared between tables. Stop it at any time: the same command goes on, and with nothing
    left to train it only writes the tables. After --print-jobs the same command without it gathers the results.
    """
    if [name.lower() for name in names] == ["list"]:
        for name in experiments.NAMES:
            out.print(f"{name:<17}{experiments.experiment(name).title}", soft_wrap=True)
        return
    if processes > 1:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # clusters send SIGTERM: it ends as Ctrl-C does
    made = reproducing.reproduce(
        names,
        data=data,
        profile=profile,
        seeds=seeds,
        out=folder,
        matcher=matcher,
        pixels=pixels,
        model=_models(model or ()),
        noise=noise or (),
        settings=settings or (),
        processes=processes,
        print_jobs=print_jobs,
        gather=only_gather,
        progress=shown,
    )
    for command in made.commands:
        out.print(shlex.join(command), soft_wrap=True)
    if made.script is not None:
        left = f"{len(made.commands)} of {made.planned} runs are left"
        note(f"{left}; one command a line here, or: sbatch {made.script}")
    for path in made.written:
        out.print(str(path), soft_wrap=True)
    made.raise_failures()


def _models(given: Sequence[str]) -> dict[str, str]:
    """NAME=FOLDER, as a dict."""
    found = dict(entry.partition("=")[::2] for entry in given)
    for name, where in found.items():
        if not where:
            raise InputError(f"expected NAME=FOLDER, got {name}", where="--model")
    return found


def demo(
    folder: Annotated[Path, typer.Option("-o", "--out", help="Folder for data, runs and pictures.")] = Path("demo"),
    images: Annotated[int, typer.Option(min=20, help="Training images to draw.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything.")] = 0,
    settings: Settings = None,
) -> None:
    """Draw 2,000 scenes, mismatch 40 % of the pairs, train plainly and by CRCL, compare. A few minutes, no network.

    Example: `crcl demo -o demo`
    """

    outcomes = demonstration.demo(folder, images=images, seed=seed, settings=tuple(settings or ()), progress=shown)
    table = Table("method", "rSum", "text R@1", "image R@1", "detection AUROC", "AP", title="Test scores on the scenes")
    for outcome in outcomes:
        scores, found = outcome.retrieval, outcome.detection
        detected = (f"{found.auroc:.3f}", f"{found.average_precision:.3f}") if found else ("", "")
        table.add_row(outcome.name, f"{scores.rsum:.1f}", f"{scores.i2t.r1:.1f}", f"{scores.t2i.r1:.1f}", *detected)
    out.print(table)
    for name, what in demonstration.LEFT_BEHIND.items():
        out.print(f"{folder / name}  {what}", soft_wrap=True)
