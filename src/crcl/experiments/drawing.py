"""Figures of the tables: scores against rates, parameters and epochs, and distributions of the training pairs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from crcl import plots, theory
from crcl.errors import InputError
from crcl.experiments.blocks import Block, Entry
from crcl.experiments.declared import Experiment
from crcl.experiments.store import Store, missing
from crcl.experiments.tables import Part
from crcl.runs.folder import Run

TrainingPairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Similarity, correspondence and truth of each training pair, (N,) each."""


def figures_of(
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
    """rSum against the rate of mismatches; the best method at the highest rate is highlighted."""
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
        title=f"{title}\n{blocks[0].place}",
    )


def _bars(store: Store, blocks: Sequence[Block], parts: Sequence[Part], title: str) -> Figure | None:
    """One bar per row, named with its rate if there are several; the best is highlighted."""
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
    about = blocks[0].title if len(blocks) == 1 else blocks[0].place
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
    """The last piece's records of each finished and measured seed whose records are complete."""
    found = []
    for trial in entry.trials:
        if store.scores(trial) is not None and not missing(store, trial.jobs):
            with suppress(InputError):  # what is wrong is reported with the table
                records = Run.open(store.run(trial.jobs[0])).metrics()
                found.append([record for record in records if record["piece"] == records[-1]["piece"]])
    longest = max(map(len, found), default=0)
    return [records for records in found if longest and len(records) == longest]


OF_ONE_RATE = ("sweeps", "epochs")
"""Figures with one plot per rate."""
DRAWN: dict[str, Callable[[Store, Sequence[Block], Sequence[Part], str], Figure | None]] = {
    "robustness": _robustness,
    "bars": _bars,
    "sweeps": _sweeps,
    "epochs": _epochs,
}


def _distributions(named: Sequence[tuple[str, TrainingPairs]], title: str) -> Figure:
    """One axis shared by all similarities, and one shared by all correspondences."""
    panels: list[tuple[str, np.ndarray]] = []
    truths, ranges = [], []
    lowest = min(float(similarity.min()) for _, (similarity, _, _) in named)
    highest = max(float(similarity.max()) for _, (similarity, _, _) in named)
    for name, (similarity, belief, truth) in named:
        panels += [(f"Similarities {name}", similarity), (f"Correspondences {name}", belief)]
        truths += [truth, truth]
        ranges += [(lowest, highest), (0.0, 1.0)]
    return plots.distributions(panels, truths, ranges=ranges, title=f"{title}\ntraining pairs, seed 0")


def _rsums(part: Part, name: str) -> np.ndarray:
    """rSum of a row for each measured seed. (seeds,)"""
    return next((line.ours[:, 6] for line in part.lines if line.name == name), np.empty(0))


def _mean_and_deviation(values: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over seeds; NaN without seeds, and for the deviation of a single seed."""
    mean = [[found.mean() if len(found) else np.nan for found in line] for line in values]
    deviation = [[found.std(ddof=1) if len(found) > 1 else np.nan for found in line] for line in values]
    return np.array(mean), np.array(deviation)
