"""Making the paper's tables and figures, or those of a user's file: plan, train, gather."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crcl.config import file_keys
from crcl.errors import InputError, TrainingError, did_you_mean
from crcl.experiments import experiment, jobs
from crcl.experiments.blocks import Job
from crcl.experiments.declared import Experiment
from crcl.experiments.declared import profile as shipped_profile
from crcl.experiments.gathering import gather as gather_table
from crcl.experiments.planning import Planner
from crcl.experiments.store import Store, missing
from crcl.progress import SILENT, Progress
from crcl.storage import locked


@dataclass(frozen=True)
class Reproduction:
    """The result of `reproduce`: what was written, what failed, and commands to run elsewhere."""

    planned: int
    """How many trainings the tables need."""
    written: tuple[Path, ...] = ()
    """Tables and figures."""
    failed: tuple[str, ...] = ()
    """Runs that failed or cannot be read, each with the reason; their cells are empty."""
    commands: tuple[tuple[str, ...], ...] = ()
    """With `print_jobs`: the remaining trainings as commands."""
    script: Path | None = None
    """With `print_jobs`: a Slurm job array of the same."""

    def raise_failures(self) -> None:
        """Raise a TrainingError that names all failed runs, if there are any."""
        if self.failed:
            raise TrainingError("\n".join([f"{len(self.failed)} of {self.planned} runs failed:", *self.failed]))


def reproduce(
    names: Sequence[str],
    *,
    data: str | Path | None = None,
    profile: str = "cpu",
    seeds: int = 3,
    out: str | Path = "reproduce",
    matcher: str | None = None,
    pixels: str | Path | None = None,
    model: Mapping[str, str] | None = None,
    noise: Sequence[float] = (),
    noise_level: str | None = None,
    settings: Sequence[str] = (),
    processes: int = 1,
    print_jobs: bool = False,
    gather: bool = False,
    progress: Progress = SILENT,
) -> Reproduction:
    """Make tables and figures of the paper, or of TOML files: train what they need, and write ours beside the paper's.

    Runs are kept in `out`/runs and shared between tables; a second call trains only what is left.

    Args:
        names: Tables of the paper (`experiments.NAMES`), or paths of TOML files.
        data: A folder in the field's layout, or a table; for the profile `paper` a folder that holds f30k_precomp etc.
        profile: `cpu` (two cores' size, any data) or `paper` (the paper's sizes).
        seeds: Seeds 0, 1, ... of weights, batches and mismatches.
        out: Folder for runs, tables and figures.
        matcher: Train every row on this matcher instead of on its own.
        pixels: For table3, the pixels of a table's images.
        model: For table3, folders of published models by their names; `none` leaves a model's rows out.
        noise: Only these rates of mismatches; none: all.
        noise_level: `caption` mismatches single captions, `image` all captions of an image together; None: as the
            table says, which is `caption` unless a TOML file says otherwise.
        settings: Settings of every run, as `key=value`.
        processes: Trainings at a time.
        print_jobs: Train nothing; give the commands that are left, for a cluster.
        gather: Train nothing; write what is finished so far.
        progress: Receives messages and the progress of trainings.

    Example:
        >>> reproduce(["supp-fig-c"], out="tables").written[-1].name
        'supp-fig-c.md'
    """
    if print_jobs and gather:
        raise InputError("print the trainings that are left or write what is finished", hint="{print_jobs} or {gather}")
    out = Path(out)
    wanted = [experiment(name) for name in dict.fromkeys(names)]
    _refuse_same_names(wanted, out)
    if data is None and any(one.rows for one in wanted):
        raise InputError("the tables need pairs to train on", hint="say with {data} where they are")
    planner = Planner(
        shipped_profile(profile),
        Path(data or "."),
        seeds=seeds,
        settings=tuple(settings),
        matcher=matcher,
        rates=tuple(noise),
        level=noise_level,
        pixels=None if pixels is None else Path(pixels),
        models=_known_models(wanted, model or {}),
    )
    store = Store(out)
    wanted, others = planner.of_rates(wanted)
    planned = jobs_of(planner, wanted)
    lines = [line for one in wanted for line in planner.left_out(one)]
    for line in dict.fromkeys([*others, *lines]):
        progress.note(f"left out: {line}")
    if print_jobs:
        left = missing(store, planned)
        script = jobs.write_jobs(store, left, "-".join(one.name for one in wanted))
        commands = tuple(tuple(job.command(store.run(job).absolute())) for job in left)
        return Reproduction(len(planned), commands=commands, script=script)
    store.scored.mkdir(parents=True, exist_ok=True)
    failed = [] if gather else _train(store, planned, processes, progress)
    written, unreadable = _gather(store, planner, wanted, progress)
    return Reproduction(len(planned), tuple(written), tuple(dict.fromkeys([*failed, *unreadable])))


def jobs_of(planner: Planner, wanted: Sequence[Experiment]) -> list[Job]:
    """Every training that the experiments need, once; the first seed of all rows comes first."""
    found: dict[str, Job] = {}
    for one in wanted:
        for block in planner.blocks(one):
            found |= {job.key: job for entry in block.entries for trial in entry.trials for job in trial.jobs}
        found |= {job.key: job for _, job in planner.distributions(one)}
    return sorted(found.values(), key=lambda job: job.seed)


def _refuse_same_names(wanted: Sequence[Experiment], out: Path) -> None:
    called = [one.name for one in wanted]
    for name in {name for name in called if called.count(name) > 1}:
        raise InputError(f"two files of this name; both would be written to {out / name}.md", where=f"{name}.toml")


def _known_models(wanted: Sequence[Experiment], given: Mapping[str, str]) -> dict[str, str]:
    """The given folders of published models; refuses names that no table has."""
    known = {row.model for one in wanted for row in one.rows if row.model}
    for name in given:
        if name not in known:
            there = f"there are {', '.join(sorted(known))}" if known else "no requested table has one"
            raise InputError(f"no model '{name}'{did_you_mean(name, known)}; {there}", where="model")
    return dict(given)


def _train(store: Store, planned: Sequence[Job], processes: int, progress: Progress) -> list[str]:
    """Train the remaining jobs and return the failures."""
    busy = "another process is reproducing tables here"
    with locked(store.out, busy=busy, hint="pass {gather} to write what is finished so far"):
        left = missing(store, planned)
        if processes > 1:
            return jobs.train_apart(store, left, processes, progress=progress)
        return jobs.train_here(store, left, progress=progress)


def _gather(
    store: Store, planner: Planner, wanted: Sequence[Experiment], progress: Progress
) -> tuple[list[Path], list[str]]:
    """Write the finished tables; return the files and the problems with unreadable runs."""
    written: list[Path] = []
    failed: list[str] = []
    with locked(store.scored, wait=True):  # writing takes minutes at most
        for one in wanted:
            files, unreadable = gather_table(store, planner, one, command=command_of(one, planner), progress=progress)
            written += files
            failed += unreadable
    return written, failed


def command_of(one: Experiment, planner: Planner) -> str:
    """The command that makes a table, with placeholders instead of local paths."""
    words = ["crcl", "reproduce", one.file or one.name]
    if not one.rows:
        return shlex.join(words)
    words += ["--data", "DATA", "--profile", planner.profile.name]
    words += ["--seeds", str(planner.seeds)] + (["--matcher", planner.matcher] if planner.matcher else [])
    words += ["--pixels", "PIXELS"] if planner.pixels else []
    for name, where in planner.models.items():
        words += ["--model", f"{name}={'FOLDER' if Path(where).exists() else where}"]
    words += [word for rate in planner.rates for word in ("--noise", f"{rate:g}")]
    words += ["--noise-level", planner.level] if planner.level else []
    for setting in planner.settings:
        key = setting.partition("=")[0].strip()
        words += ["--set", f"{key}=FILE" if key in file_keys() else setting]
    return shlex.join(words)
