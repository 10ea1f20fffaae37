"""The tables of `scores.py` as Markdown, and its picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from crcl.experiments.tables import spread
from crcl.plots.style import GREY, STYLE, line_style, new_figure, save

Row = dict[str, Any]


def render(rows: Sequence[Row]) -> str:
    """All tables."""
    plain = [row for row in rows if len(row["shares"]) == 1]
    mixed = [row for row in rows if len(row["shares"]) > 1]
    parts = []
    if plain:
        parts += [
            "AUROC of the mismatched pairs, by truth:",
            by_score(plain, lambda found: found["auroc"]),
            "Average precision of the mismatched pairs, by truth:",
            by_score(plain, lambda found: found["ap"]),
            "AUROC of decoys against pairs, as the audit sees it:",
            by_score(plain, lambda found: found["decoys"]),
            "Expected calibration error of p_wrong:",
            by_score(plain, lambda found: calibration_error(found.get("reliability"))),
            "The score that was taken, and what it told:",
            taken(plain),
            choice(plain),
            errors(plain),
        ]
    if mixed:
        parts += ["Near and swap mismatches:", kinds(mixed), recalls(mixed), choice(mixed)]
    return "\n\n".join([*parts, "Reliability of p_wrong, of the score that was taken:", reliability(rows)])


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|" + "---|" * len(head)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def by_score(rows: Sequence[Row], number: Callable[[Row], float | None]) -> str:
    """A line for each score, a column for each rate: mean and deviation over the seeds."""
    rates = list(dict.fromkeys(row["shares"]["random"] for row in rows))
    lines = []
    for name in names(rows):
        cells = []
        for rate in rates:
            same = [row["scores"][name] for row in rows if row["shares"]["random"] == rate and name in row["scores"]]
            cells.append(spread([value for value in map(number, same) if value is not None], 3))
        lines.append([f"`{name}`", *cells])
    return table(["score", *(f"{rate:.0%}" for rate in rates)], lines)


def names(rows: Sequence[Row]) -> list[str]:
    """All scores, the best by truth first."""
    found = dict.fromkeys(name for row in rows for name in row["scores"])
    mean = {name: np.mean([row["scores"][name]["auroc"] for row in rows if name in row["scores"]]) for name in found}
    return sorted(found, key=lambda name: -mean[name])


def taken(rows: Sequence[Row]) -> str:
    """A line for each audit."""
    lines = []
    for row in sorted(rows, key=lambda row: (row["shares"]["random"], row["seed"])):
        own = row["scores"][row["taken"]]
        told = ["–"] * 6
        if "rate" in own:
            told[0] = between(own["rate"], own["rate_interval"], 1)
            told[2] = f"{own['flagged']:,}"
            if own["precision"] is not None:
                told[3] = between(own["precision"], own["precision_interval"], 0)
                told[4] = f"{own['precision_true']:.0%}"
            told[5] = f"{own['recall_told']['random']:.0%} / {own['recall_true']['all']:.0%}"
        told[1] = f"{row['rate']:.1%}"
        lines.append([f"{row['shares']['random']:.0%}", str(row["seed"]), f"`{row['taken']}`", *told])
    head = ["injected", "seed", "score", "estimated rate", "true", "flagged", "estimated precision", "true"]
    return table([*head, "recall estimated / true"], lines)


def between(value: float, interval: Sequence[float], digits: int) -> str:
    low, high = (f"{bound:.{digits}%}" for bound in interval)
    return f"{value:.{digits}%} ({low} to {high})"


def choice(rows: Sequence[Row]) -> str:
    """Whether the score that was taken is the best by truth, and what it cost where it is not."""
    costs = [row["scores"][row["best"]]["auroc"] - row["scores"][row["taken"]]["auroc"] for row in rows]
    wrong = [cost for row, cost in zip(rows, costs, strict=True) if row["best"] != row["taken"]]
    said = f"The score that was taken was the best by truth in {len(rows) - len(wrong)} of {len(rows)} audits."
    if wrong:
        said += f" Elsewhere it cost {np.mean(wrong):.4f} of AUROC in the mean, {max(wrong):.4f} at most."
    return said


def errors(rows: Sequence[Row]) -> str:
    """How far off rate and precision are, of the score that was taken."""
    own = [(row, row["scores"][row["taken"]]) for row in rows]
    sure = [(row, score) for row, score in own if "rate" in score]
    rate = np.array([abs(score["rate"] - row["rate"]) for row, score in sure])
    held = sum(score["rate_interval"][0] <= row["rate"] <= score["rate_interval"][1] for row, score in sure)
    some = [score for _, score in sure if score["precision"] is not None]
    precision = np.array([abs(score["precision"] - score["precision_true"]) for score in some])
    within = sum(
        score["precision_interval"][0] <= score["precision_true"] <= score["precision_interval"][1] for score in some
    )
    if not len(precision):
        return "No audit had an estimate."
    return (
        f"The rate is off by {100 * rate.mean():.1f} points in the mean, {100 * rate.max():.1f} at most, and within "
        f"its interval in {held} of {len(sure)} audits; precision by {100 * precision.mean():.1f}, "
        f"{100 * precision.max():.1f} at most, and within its interval in {within} of {len(some)}."
    )


def kinds(rows: Sequence[Row]) -> str:
    """AUROC of each kind of mismatch against pairs that match."""
    there = list(rows[0]["shares"])
    lines = []
    for name in names(rows):
        own = [row["scores"][name]["auroc_of"] for row in rows if name in row["scores"]]
        lines.append([f"`{name}`", *(spread([found[kind] for found in own if kind in found], 3) for kind in there)])
    return table(["score", *(f"AUROC, {kind}" for kind in there)], lines)


def recalls(rows: Sequence[Row]) -> str:
    """What decoys of each kind tell of recall, and what is true, by the score that was taken."""
    further = [kind for kind in rows[0]["shares"] if kind != "random"]
    lines = []
    for row in rows:
        own = row["scores"][row["taken"]]
        if "rate" not in own:
            continue
        told, true = own["recall_told"], own["recall_true"]
        cells = [f"{own['rate']:.1%} / {row['rate']:.1%}", f"{told['random']:.0%} / {true['random']:.0%}"]
        for kind in further:
            known = [told[kind]] if kind in told else []
            cells.append(" / ".join([*(f"{share:.0%}" for share in known), f"{true.get(kind, np.nan):.0%}"]))
        lines.append([str(row["seed"]), f"`{row['taken']}`", *cells, f"{true['all']:.0%}"])
    heads = ["rate: told / true", "recall, random: told / true"]
    heads += [f"{kind}: told / true" for kind in further]
    return table(["seed", "score", *heads, "all: true"], lines)


def calibration_error(bins: Sequence[Sequence[float]] | None) -> float | None:
    """The expected calibration error: how far p_wrong is from the true share, over bins by their pairs."""
    if bins is None:
        return None
    count, told, true = np.array(bins).T
    return float((count * abs(told - true)).sum() / count.sum())


def pooled(rows: Sequence[Row]) -> np.ndarray:
    """The bins of several audits together, by the score that each took. (bins, 3)"""
    found = [
        np.array(row["scores"][row["taken"]]["reliability"]) for row in rows if "rate" in row["scores"][row["taken"]]
    ]
    if not found:
        return np.zeros((0, 3))
    count = sum(bins[:, 0] for bins in found)
    means = [sum(bins[:, 0] * bins[:, column] for bins in found) / np.maximum(count, 1) for column in (1, 2)]
    return np.stack([count, *means], axis=1)


def reliability(rows: Sequence[Row]) -> str:
    """The pooled bins, of audits with random mismatches alone."""
    bins = pooled([row for row in rows if len(row["shares"]) == 1])
    lines = [
        [f"{number / len(bins):.0%} to {(number + 1) / len(bins):.0%}", f"{count:,.0f}", f"{told:.1%}", f"{true:.1%}"]
        for number, (count, told, true) in enumerate(bins)
        if count
    ]
    return table(["p_wrong", "pairs", "mean p_wrong", "truly wrong"], lines)


@matplotlib.rc_context(STYLE)
def picture(rows: Sequence[Row], path: Path) -> None:
    """The share of truly wrong pairs against p_wrong, a line for each rate."""
    figure = new_figure(5.0, 4.2)
    axes = figure.add_subplot()
    axes.plot([0, 100], [0, 100], color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="perfect")
    plain = [row for row in rows if len(row["shares"]) == 1]
    for number, rate in enumerate(dict.fromkeys(row["shares"]["random"] for row in plain)):
        bins = pooled([row for row in plain if row["shares"]["random"] == rate])
        shown = bins[bins[:, 0] >= 20] if len(bins) else bins
        style = line_style(number) | {"linewidth": 1.4, "markersize": 6}
        axes.plot(100 * shown[:, 1], 100 * shown[:, 2], label=f"{rate:.0%} mismatched", **style)
    axes.set_xlabel("p_wrong (%), mean of the bin")
    axes.set_ylabel("truly wrong (%)")
    axes.set_xlim(-2, 102)
    axes.set_ylim(-2, 102)
    axes.legend(fontsize=8, loc="upper left")
    save(figure, path)
