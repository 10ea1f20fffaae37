"""Ours beside the paper's: Markdown and CSV, mean and spread over the seeds, a test between the two best."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from crcl.experiments import SCORES, Numbers

NOTHING = "–"


@dataclass(frozen=True)
class Line:
    """The scores of one method: ours for each seed, and the paper's."""

    name: str
    ours: np.ndarray
    """(seeds, scores); no rows if nothing was trained"""
    seeds: tuple[int, ...] = ()
    """The seed of each row of `ours`."""
    trained: str = ""
    """Methods and matchers in words, or the reason why nothing was trained."""
    planned: int = 0
    """The number of planned seeds."""
    paper: dict[str, Numbers] = field(default_factory=dict)
    """The paper's numbers by data set."""


@dataclass(frozen=True)
class Part:
    """The lines of one table: all methods on the same data with the same mismatches."""

    title: str
    columns: tuple[str, ...]
    """Data sets for which the paper has numbers."""
    lines: tuple[Line, ...]


def spread(values: Sequence[float] | np.ndarray, digits: int) -> str:
    """Mean ± standard deviation; only the value if there is one."""
    if not len(values):
        return NOTHING
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def markdown(part: Part) -> str:
    """The table, and the result of a test between the two best."""
    heads = ["method", "trained", "i2t R@1/5/10", "t2i R@1/5/10", "rSum"]
    heads += [f"paper, {column}: {head}" for column in part.columns for head in ("i2t", "t2i", "rSum")]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for line in part.lines:
        cells = [line.name, line.trained, *_ours(line)]
        for column in part.columns:
            numbers = line.paper.get(column)
            cells += [NOTHING] * 3 if numbers is None else [*_recalls(np.array(numbers)), f"{numbers[6]:.1f}"]
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join([f"## {part.title}", "", *lines, "", best_two(part)])


def best_two(part: Part) -> str:
    """The two best by mean rSum, and a paired t-test over the seeds that both have."""
    ranked = sorted((line for line in part.lines if len(line.ours)), key=lambda line: -line.ours[:, 6].mean())
    if len(ranked) < 2:
        return "Fewer than two rows were measured: nothing to compare."
    best, second = ranked[:2]
    text = f"The two best: {best.name} and {second.name}"
    shared = sorted(set(best.seeds) & set(second.seeds))
    if len(shared) < 2:
        return f"{text}; no test, which needs two seeds or more of both."
    values = [[line.ours[line.seeds.index(seed), 6] for seed in shared] for line in (best, second)]
    difference = np.subtract(values[0], values[1])
    text += f", {spread(difference, 1)} apart over {len(shared)} seeds"
    if not difference.std() > 0:
        return f"{text}; no test, as the difference is the same with every seed."
    from scipy import stats  # slow to import

    return f"{text}; paired t-test p = {stats.ttest_rel(*values).pvalue:.3g}."


def table(parts: Sequence[Part]) -> str:
    """CSV with one line per part, method and score."""
    columns = list(dict.fromkeys(column for part in parts for column in part.columns))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["part", "method", "trained", "score", "mean", "deviation", "seeds", *(f"paper {name}" for name in columns)]
    )
    for part in parts:
        for line in part.lines:
            for number, score in enumerate(SCORES):
                ours = line.ours[:, number]
                mean = f"{ours.mean():.4f}" if len(ours) else ""
                deviation = f"{ours.std(ddof=1):.4f}" if len(ours) > 1 else ""
                papers = [line.paper[name][number] if name in line.paper else "" for name in columns]
                writer.writerow([part.title, line.name, line.trained, score, mean, deviation, len(ours), *papers])
    return out.getvalue()


def _ours(line: Line) -> list[str]:
    if not len(line.ours):
        return [NOTHING] * 3
    return [*_recalls(line.ours.mean(0)), spread(line.ours[:, 6], 1)]


def _recalls(numbers: np.ndarray) -> list[str]:
    return ["/".join(f"{value:.1f}" for value in part) for part in (numbers[:3], numbers[3:6])]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
