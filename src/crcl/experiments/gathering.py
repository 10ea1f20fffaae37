"""Tables and figures from the runs that are finished: ours beside the paper's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from crcl import plots
from crcl.config import Config
from crcl.errors import InputError
from crcl.experiments import tables as comparison
from crcl.experiments.blocks import Block
from crcl.experiments.declared import SCORES, Experiment
from crcl.experiments.drawing import TrainingPairs, figures_of
from crcl.experiments.planning import Planner, is_fitted
from crcl.experiments.store import Store, missing
from crcl.experiments.tables import Line, Part
from crcl.metrics import detection
from crcl.progress import Progress
from crcl.runs.describe import epochs_done
from crcl.runs.folder import Run
from crcl.storage import write_bytes


def gather(
    store: Store, planner: Planner, experiment: Experiment, *, command: str, progress: Progress
) -> tuple[list[Path], list[str]]:
    """Measure the finished runs and write the table and figures of an experiment.

    Gives what was written, and what is wrong with runs that cannot be read: their cells are empty.
    """
    blocks = planner.blocks(experiment)
    failed = _measure_all(store, blocks, progress)
    parts = [_part(store, block) for block in blocks]
    looked_at, unreadable = _pairs(store, planner, experiment)
    failed += [*unreadable, *(_damaged_histories(store, blocks) if experiment.figure == "epochs" else ())]
    figures = dict(figures_of(store, experiment, blocks, parts, looked_at))
    store.out.mkdir(parents=True, exist_ok=True)
    written = [store.out / f"{name}{ending}" for name in figures for ending in (".png", ".svg")]
    for path in written:
        plots.save(figures[path.stem], path)
    if parts:
        written.append(store.out / f"{experiment.name}.csv")
        write_bytes(written[-1], comparison.table(parts).encode())
    written.append(store.out / f"{experiment.name}.md")
    write_bytes(
        written[-1],
        _page(planner, experiment, parts, looked_at, list(figures), command, _several_matchers(blocks)).encode(),
    )
    return written, failed


def _measure_all(store: Store, blocks: Sequence[Block], progress: Progress) -> list[str]:
    """Score finished runs that have no scores yet; ensembles first, because they score their members too.

    Gives what is wrong with those that cannot be.
    """
    failed: dict[str, str] = {}
    trials = {trial.key: trial for block in blocks for entry in block.entries for trial in entry.trials}
    for trial in sorted(trials.values(), key=lambda trial: -len(trial.jobs)):
        if store.scores(trial) is None and not missing(store, trial.jobs):
            progress.status(f"scoring {' and '.join(job.about for job in trial.jobs)}")
            try:
                store.measure(trial)
            except InputError as error:
                job = next((job for job in trial.jobs if job.key in Path(error.where).parts), trial.jobs[0])
                failed[job.key] = store.blame(job, error)
    return list(failed.values())


def _part(store: Store, block: Block) -> Part:
    lines = []
    for entry in block.entries:
        measured = {seed: store.scores(trial) for seed, trial in enumerate(entry.trials)}
        there = {seed: scores for seed, scores in measured.items() if scores is not None}
        ours = np.array(list(there.values())).reshape(-1, len(SCORES))
        papers = {name: entry.row.published(column, block.noise) for column, name in block.columns.items()}
        paper = {name: numbers for name, numbers in papers.items() if numbers is not None}
        lines.append(Line(entry.row.name, ours, tuple(there), entry.trained, len(entry.trials), paper))
    return Part(block.title, tuple(block.columns.values()), tuple(lines))


def _several_matchers(blocks: Sequence[Block]) -> bool:
    """Whether the rows use different matchers, apart from those fitted in closed form, which have no schedule."""
    trials = [trial for block in blocks for entry in block.entries for trial in entry.trials]
    trained = [[job.config for job in trial.jobs if not _fitted(job.config)] for trial in trials]
    return len({frozenset(config.matcher.name for config in configs) for configs in trained if configs}) > 1


def _fitted(config: Config) -> bool:
    return is_fitted(config.method, config.matcher.name)


def _page(
    planner: Planner,
    experiment: Experiment,
    parts: Sequence[Part],
    looked_at: Sequence[tuple[str, TrainingPairs]],
    figures: Sequence[str],
    command: str,
    several: bool,
) -> str:
    lines = [f"# {experiment.title}", "", f"    {command}", ""]
    if parts:
        seeds = "seed 0" if planner.seeds == 1 else f"mean ± standard deviation over seeds 0 to {planner.seeds - 1}"
        lines += [
            f"Profile `{planner.profile.name}`, {seeds} (of weights, batches and mismatches). Scores are of the test "
            "images, at the epoch that is best on dev. The paper's numbers are of its own data.",
            "",
        ]
    lines += [f"- {note}" for note in experiment.notes]
    if not planner.matcher:
        lines += [f"- {note}" for note in experiment.notes_of_matchers]
    if several and planner.profile.between_matchers:
        lines.append(f"- {planner.profile.between_matchers}")
    if parts and planner.matcher:
        kept = ["those of published models"] if any(row.model for row in experiment.rows) else []
        runs = {(planner.profile.recipe(name).method, matcher) for row in experiment.rows for name, matcher in row.runs}
        kept += ["those fitted in closed form"] if any(is_fitted(*run) for run in runs) else []
        others = f" but {' and '.join(kept)}" if kept else ""
        lines.append(f"- Every row{others} is trained on `{planner.matcher}` instead of on its own matchers.")
    lines += [f"- Left out: {line}." for line in planner.left_out(experiment)]
    lines += [
        f"- {part.title}: {line.name} has {len(line.ours)} of {line.planned} seeds."
        for part in parts
        for line in part.lines
        if len(line.ours) < line.planned
    ]
    lines += ["", *(f"![{experiment.title}]({name}.png)" for name in figures), ""]
    lines += [f"{comparison.markdown(part)}\n" for part in parts]
    lines += _told_apart(looked_at)
    return "\n".join(lines).rstrip() + "\n"


def _damaged_histories(store: Store, blocks: Sequence[Block]) -> list[str]:
    """Problems with finished runs whose records cannot be plotted."""
    failed: dict[str, str] = {}
    for job in (trial.jobs[0] for block in blocks for entry in block.entries for trial in entry.trials):
        if store.finished(job):
            try:
                done, planned = epochs_done(Run.open(store.run(job)), job.config)
                if done < planned:
                    raise InputError(f"metrics of {done} epochs, expected {planned}", where=store.run(job))
            except InputError as error:
                failed[job.key] = store.blame(job, error)
    return list(failed.values())


def _pairs(store: Store, planner: Planner, experiment: Experiment) -> tuple[list[tuple[str, TrainingPairs]], list[str]]:
    """The training pairs of the plotted runs by name, and the problems with runs that cannot be read."""
    found, failed = [], []
    for name, job in planner.distributions(experiment):
        try:
            if store.finished(job):
                found.append((name, store.pairs(job)))
        except InputError as error:
            failed.append(store.blame(job, error))
    return found, failed


def _told_apart(named: Sequence[tuple[str, TrainingPairs]]) -> list[str]:
    """A table of how well similarities and correspondences separate matched from mismatched pairs."""
    lines = []
    for name, (similarity, belief, truth) in named:
        found = [detection(values, truth, threshold=0.5) for values in (similarity, belief)]
        if found[0] and found[1]:
            matched, mismatched = (belief[truth.astype(bool) == kind] for kind in (True, False))
            shares = (matched > 0.5, mismatched > 0.5, mismatched > 0.9)
            numbers = [f"{one.auroc:.3f}" for one in found if one] + [f"{100 * share.mean():.1f} %" for share in shares]
            lines.append(f"| {' | '.join([name, *numbers])} |")
    head = "| | similarity AUROC | correspondence AUROC | matched: above 0.5 | mismatched: above 0.5 | above 0.9 |"
    return ["## Training pairs, seed 0", "", head, "|---|---|---|---|---|---|", *lines, ""] if lines else []
