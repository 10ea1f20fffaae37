"""Commands that train several runs and compare them: reproduce, demo."""

import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from crcl import config, experiments
from crcl.cli.options import Settings, make_folder
from crcl.cli.screen import note, out, shown
from crcl.errors import InputError, Interrupted, TrainingError, did_you_mean
from crcl.experiments import demo as demonstration
from crcl.experiments import jobs
from crcl.experiments import reproduce as reproducing
from crcl.experiments.planning import Planner
from crcl.storage import locked


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
    if print_jobs and only_gather:
        raise InputError("print what is left to train (--print-jobs) or write what there is (--gather), not both")
    wanted = [experiments.experiment(name) for name in dict.fromkeys(names)]
    called = [experiment.name for experiment in wanted]
    for name in {name for name in called if called.count(name) > 1}:
        raise InputError(f"{name}.toml: two files of this name; both would be written to {folder / name}.md")
    if data is None and any(experiment.rows for experiment in wanted):
        raise InputError("say with --data where the pairs are")
    planner = Planner(
        experiments.profile(profile),
        data or Path(),
        seeds=seeds,
        settings=tuple(settings or ()),
        matcher=matcher,
        rates=tuple(noise or ()),
        pixels=pixels,
        models=_models(wanted, model or ()),
    )
    store = jobs.Store(folder)
    wanted, others = planner.of_rates(wanted)
    planned = reproducing.jobs_of(planner, wanted)
    lines = [line for experiment in wanted for line in planner.left_out(experiment)]
    for line in dict.fromkeys([*others, *lines]):
        note(f"left out: {line}")
    if print_jobs:
        _print_jobs(store, planned, "-".join(experiment.name for experiment in wanted))
        return
    failed = []
    make_folder(store.scored)
    if not only_gather:
        with locked(folder, busy="another `crcl reproduce` is at work here; --gather writes what there is so far"):
            failed = _train_jobs(store, jobs.missing(store, planned), processes)
    failed += _gather(store, planner, wanted)
    if failed:
        told = list(dict.fromkeys(failed))
        raise TrainingError("\n".join([f"{len(told)} of {len(planned)} runs failed:", *told]))


def _models(wanted: Sequence[experiments.Experiment], given: Sequence[str]) -> dict[str, str]:
    """Where published models are, by their names in the tables."""
    known = {row.model for experiment in wanted for row in experiment.rows if row.model}
    found = {}
    for entry in given:
        name, _, where = entry.partition("=")
        if name not in known or not where:
            there = f"NAME is one of {', '.join(sorted(known))}" if known else "no table that is asked for has one"
            raise InputError(f"--model {entry}: expected NAME=FOLDER{did_you_mean(name, known)}; {there}")
        found[name] = where
    return found


def _train_jobs(store: jobs.Store, left: list[jobs.Job], processes: int) -> list[str]:
    if processes > 1:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a cluster sends is as good as Ctrl-C
        return jobs.train_apart(store, left, processes, progress=shown)
    try:
        return jobs.train_here(store, left, progress=shown)
    except Interrupted as stop:
        raise typer.Exit(130) from stop  # the same command goes on


def _print_jobs(store: jobs.Store, planned: Sequence[jobs.Job], name: str) -> None:
    left = jobs.missing(store, planned)
    script = jobs.write_jobs(store, left, name)
    for job in left:
        out.print(shlex.join(job.command(store.run(job).absolute())), soft_wrap=True)
    note(f"{len(left)} of {len(planned)} runs are left; one command a line here, or: sbatch {script}")


def _gather(store: jobs.Store, planner: Planner, wanted: Sequence[experiments.Experiment]) -> list[str]:
    """Write what there is; gives what is wrong with runs that cannot be read."""
    failed = []
    with locked(store.scored, wait=True):  # what is written takes minutes at most
        for experiment in wanted:
            command = _reproduce_command(experiment, planner)
            written, unreadable = reproducing.gather(store, planner, experiment, command=command, progress=shown)
            failed += unreadable
            for path in written:
                out.print(str(path), soft_wrap=True)
    return failed


def _reproduce_command(experiment: experiments.Experiment, planner: Planner) -> str:
    """The command that makes a table, without the paths of this machine."""
    words = ["crcl", "reproduce", experiment.file or experiment.name]
    if not experiment.rows:
        return shlex.join(words)
    words += ["--data", "DATA", "--profile", planner.profile.name]
    words += ["--seeds", str(planner.seeds)] + (["--matcher", planner.matcher] if planner.matcher else [])
    words += ["--pixels", "PIXELS"] if planner.pixels else []
    for name, where in planner.models.items():
        words += ["--model", f"{name}={'FOLDER' if Path(where).exists() else where}"]
    words += [word for rate in planner.rates for word in ("--noise", f"{rate:g}")]
    for setting in planner.settings:
        key = setting.partition("=")[0].strip()
        words += ["--set", f"{key}=FILE" if key in config.file_keys() else setting]
    return shlex.join(words)


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
