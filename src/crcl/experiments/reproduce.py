"""The paper's tables and figures from runs: what is written of them, ours beside the paper's."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from crcl import plots, theory
from crcl.errors import InputError
from crcl.experiments import SCORES, Experiment
from crcl.experiments import tables as comparison
from crcl.experiments.jobs import Store, missing
from crcl.experiments.planning import Block, Entry, Job, Planner
from crcl.experiments.tables import Line, Part
from crcl.metrics import detection
from crcl.progress import Progress
from crcl.runs.describe import epochs_done
from crcl.runs.folder import Run
from crcl.storage import write_bytes

TrainingPairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Similarity, belief and truth of each, (N,)."""


def jobs_of(planner: Planner, experiments: Sequence[Experiment]) -> list[Job]:
    """Every training that the experiments need, once; the first seed of all rows comes first."""
    found: dict[str, Job] = {}
    for experiment in experiments:
        for block in planner.blocks(experiment):
            found |= {job.key: job for entry in block.entries for trial in entry.trials for job in trial.jobs}
        found |= {job.key: job for _, job in planner.distributions(experiment)}
    return sorted(found.values(), key=lambda job: job.seed)


def gather(
    store: Store, planner: Planner, experiment: Experiment, *, command: str, progress: Progress
) -> tuple[list[Path], list[str]]:
    """Measure what is trained and write the table and figures of an experiment.

    Gives what was written, and what is wrong with runs that cannot be read: their cells are empty.
    """
    blocks = planner.blocks(experiment)
    failed = _measure_all(store, blocks, progress)
    parts = [_part(store, block) for block in blocks]
    looked_at, unreadable = _pairs(store, planner, experiment)
    failed += [*unreadable, *(_damaged_histories(store, blocks) if experiment.figure == "epochs" else ())]
    figures = dict(_figures(store, experiment, blocks, parts, looked_at))
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
    """Score what is trained and not scored yet; ensembles first, since they score their members too.

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
                job = next((job for job in trial.jobs if str(store.run(job)) in str(error)), trial.jobs[0])
                failed[job.key] = store.blame(job, str(error))
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
    """Whether some rows are on other matchers than others."""
    trials = [trial for block in blocks for entry in block.entries for trial in entry.trials]
    return len({frozenset(job.config.matcher.name for job in trial.jobs) for trial in trials}) > 1


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
        others = " but those of published models" if any(row.model for row in experiment.rows) else ""
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


def _figures(
    store: Store,
    experiment: Experiment,
    blocks: Sequence[Block],
    parts: Sequence[Part],
    looked_at: Sequence[tuple[str, TrainingPairs]],
) -> Iterator[tuple[str, Figure]]:
    """The figures of an experiment with their names."""
    name, title = experiment.name, experiment.title
    if experiment.bound is not None:
        yield name, _bound(int(experiment.bound["n"]), experiment.bound["noise"])
    each = [(block.label, block.noise if experiment.figure in OF_ONE_RATE else None) for block in blocks]
    for number, one in enumerate(dict.fromkeys(each)):
        mine = [place for place, other in enumerate(each) if other == one]
        named = name if len(set(each)) == 1 else f"{name}-{number + 1}"
        shown = [blocks[place] for place in mine], [parts[place] for place in mine]
        figure = DRAWN[experiment.figure](store, *shown, title)
        if figure is not None:
            yield named, figure
    if looked_at:
        yield f"{name}-pairs", _distributions(looked_at, title)


def _bound(n: int, noise: float) -> Figure:
    q = np.linspace(0, 1, 101)
    lower = [theory.lower_bound(float(value), noise, n) for value in q]
    upper = [theory.noisy_upper_bound(float(value), noise, n) for value in q]
    return plots.bound(q, lower, upper, title=f"C and C' against q, N = {n}, noise rate {noise:g}")


def _robustness(store: Store, blocks: Sequence[Block], parts: Sequence[Part], title: str) -> Figure | None:
    """rSum against the rate of mismatches; the method that is best at the highest rate is set off."""
    names = list(dict.fromkeys(line.name for part in parts for line in part.lines if len(line.ours)))
    if not names:
        return None
    found = [[_rsums(part, name) for part in parts] for name in names]
    mean, deviation = _mean_and_deviation(found)
    order = np.argsort(-np.nan_to_num(mean[:, -1], nan=-1), kind="stable")
    return plots.robustness(
        [block.noise for block in blocks],
        [names[place] for place in order],
        mean[order],
        spread=deviation[order] if np.isfinite(deviation).any() else None,
        title=f"{title}\n{blocks[0].label}",
    )


def _bars(store: Store, blocks: Sequence[Block], parts: Sequence[Part], title: str) -> Figure | None:
    """One bar for each row, with its rate where there are several; the best is set off."""
    named = [
        (line.name if len(blocks) == 1 else f"{line.name}, {100 * block.noise:g} % mismatched", line.ours[:, 6])
        for block, part in zip(blocks, parts, strict=True)
        for line in part.lines
        if len(line.ours)
    ]
    if not named:
        return None
    named.sort(key=lambda one: one[1].mean())
    mean, deviation = _mean_and_deviation([[rsums for _, rsums in named]])
    shown = deviation[0].tolist() if np.isfinite(deviation).any() else None
    about = blocks[0].title if len(blocks) == 1 else blocks[0].label
    return plots.comparison([name for name, _ in named], mean[0].tolist(), spread=shown, title=f"{title}\n{about}")


def _sweeps(store: Store, blocks: Sequence[Block], parts: Sequence[Part], title: str) -> Figure | None:
    """rSum against each parameter."""
    names, places, means, deviations = [], [], [], []
    rows = [entry.row for entry in blocks[0].entries]
    for parameter in dict.fromkeys(row.sweep[0] for row in rows if row.sweep):
        swept = [row for row in rows if row.sweep and row.sweep[0] == parameter]
        mean, deviation = _mean_and_deviation([[_rsums(parts[0], row.name) for row in swept]])
        names.append(parameter)
        places.append([row.sweep[1] for row in swept if row.sweep])
        means.append(mean[0])
        deviations.append(deviation[0])
    if not np.isfinite(np.concatenate(means)).any():
        return None
    spreads = deviations if np.isfinite(np.concatenate(deviations)).any() else None
    return plots.sweeps(names, places, means, spreads=spreads, title=f"{title}\n{blocks[0].title}")


def _epochs(store: Store, blocks: Sequence[Block], parts: Sequence[Part], title: str) -> Figure | None:
    """R@1 on dev over the epochs of the last piece, mean over the seeds."""
    shown = [(entry, _histories(store, entry)) for entry in blocks[0].entries]
    shown = [(entry, histories) for entry, histories in shown if histories]
    if not shown:
        return None
    values = {
        name: [
            np.mean([[record["dev"][way]["r1"] for record in one] for one in histories], 0) for _, histories in shown
        ]
        for name, way in (("image to text", "i2t"), ("text to image", "t2i"))
    }
    return plots.epochs([entry.row.name for entry, _ in shown], values, title=f"{title}\n{blocks[0].title}")


def _histories(store: Store, entry: Entry) -> list[list[dict[str, Any]]]:
    """The records of the last piece, of every seed that is done and measured, and whose records are all there."""
    found = []
    for trial in entry.trials:
        if store.scores(trial) is not None and not missing(store, trial.jobs):
            with suppress(InputError):  # `_damaged_histories` tells
                records = Run.open(store.run(trial.jobs[0])).metrics()
                found.append([record for record in records if record["piece"] == records[-1]["piece"]])
    longest = max(map(len, found), default=0)
    return [records for records in found if longest and len(records) == longest]


def _damaged_histories(store: Store, blocks: Sequence[Block]) -> list[str]:
    """What is wrong with runs that are done, and whose records cannot be drawn."""
    failed: dict[str, str] = {}
    for job in (trial.jobs[0] for block in blocks for entry in block.entries for trial in entry.trials):
        if store.finished(job):
            try:
                done, planned = epochs_done(Run.open(store.run(job)), job.config)
                if done < planned:
                    raise InputError(f"{store.run(job)}: metrics of {done} epochs, expected {planned}")
            except InputError as error:
                failed[job.key] = store.blame(job, str(error))
    return list(failed.values())


OF_ONE_RATE = ("sweeps", "epochs")
"""Figures that are drawn for each rate apart."""
DRAWN: dict[str, Callable[[Store, Sequence[Block], Sequence[Part], str], Figure | None]] = {
    "robustness": _robustness,
    "bars": _bars,
    "sweeps": _sweeps,
    "epochs": _epochs,
}


def _pairs(store: Store, planner: Planner, experiment: Experiment) -> tuple[list[tuple[str, TrainingPairs]], list[str]]:
    """The training pairs of runs that are looked at, by name, and what is wrong with those that cannot be read."""
    found, failed = [], []
    for name, job in planner.distributions(experiment):
        try:
            if store.finished(job):
                found.append((name, store.pairs(job)))
        except InputError as error:
            failed.append(store.blame(job, str(error)))
    return found, failed


def _distributions(named: Sequence[tuple[str, TrainingPairs]], title: str) -> Figure:
    """Similarities have one axis, and so have correspondences."""
    panels: list[tuple[str, np.ndarray]] = []
    truths, ranges = [], []
    lowest = min(float(similarity.min()) for _, (similarity, _, _) in named)
    highest = max(float(similarity.max()) for _, (similarity, _, _) in named)
    for name, (similarity, belief, truth) in named:
        panels += [(f"Similarities {name}", similarity), (f"Correspondences {name}", belief)]
        truths += [truth, truth]
        ranges += [(lowest, highest), (0.0, 1.0)]
    return plots.distributions(panels, truths, ranges=ranges, title=f"{title}\ntraining pairs, seed 0")


def _told_apart(named: Sequence[tuple[str, TrainingPairs]]) -> list[str]:
    """How well similarities and correspondences of the distributions tell matched pairs from mismatched ones."""
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


def _rsums(part: Part, name: str) -> np.ndarray:
    """rSum of a row with each seed; none where it was not measured. (seeds,)"""
    return next((line.ours[:, 6] for line in part.lines if line.name == name), np.empty(0))


def _mean_and_deviation(values: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Over the seeds; NaN where there are none, and for the deviation of one."""
    mean = [[found.mean() if len(found) else np.nan for found in line] for line in values]
    deviation = [[found.std(ddof=1) if len(found) > 1 else np.nan for found in line] for line in values]
    return np.array(mean), np.array(deviation)
