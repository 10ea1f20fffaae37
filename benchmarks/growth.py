"""How the cost of training, audits and search grows with the number of pairs.

    python benchmarks/growth.py WORK --pairs 1000 10000 100000 1000000 --out docs/results/growth.md

The pairs are those of `million.py`: made-up vectors of 512 float16 numbers a side, a fifth of them mismatched. Each
command is a process of its own, whose peak memory is told; mapped pages of files, which the system takes back where it
needs them, do not count. Seconds are those of the processor, with one thread. What was measured is kept in WORK and not
measured again, so that the largest number can follow later; --out takes all that is there, and draws it beside the
page, in images/growth.png.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import textwrap
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import million
import numpy as np
import torch
from matplotlib.figure import Figure

from crcl import plots
from crcl.plots import style

QUERIES = 50
TASKS = {
    "train": "training, an epoch of CRCL with `dual`",
    "quick": "quick audit (`--quick`)",
    "full": "audit",
    "search": "search, one query (ms)",
}
"""What is measured, and its name in the table."""


def main() -> None:
    options = parse()
    for pairs in options.pairs:
        for task in options.tasks:
            measure(options.work, task, pairs, size=options.size)
    found = sorted((json.loads(path.read_text("utf-8")) for path in options.work.glob("*.json")), key=by_size)
    page = render(found, options)
    print(page)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(page + "\n", encoding="utf-8")
        images = options.out.parent.parent / "images"
        images.mkdir(exist_ok=True)
        plots.save(draw(found), images / "growth.png")


def parse(words: list[str] | None = None) -> Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--note", default="", help="what to say of the machine")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    return parser.parse_args(words)


def by_size(row: dict[str, Any]) -> int:
    return int(row["pairs"])


def measure(work: Path, task: str, pairs: int, *, size: int) -> None:
    """Measure a task for so many pairs, if that is not done yet."""
    kept, folder = work / f"{task}-{pairs}.json", work / str(pairs)
    if kept.is_file():
        return
    data = folder / "embeddings"
    if not (data / "truth.npy").is_file():
        million.make(data, Namespace(seed=0, pairs=pairs, size=size, rate=0.2))
    shutil.rmtree(folder / task, ignore_errors=True)
    does: dict[str, Callable[[], dict[str, float]]] = {
        "train": lambda: train(data, folder / task, pairs),
        "quick": lambda: command("audit", data, "--folder", folder / task, "-o", folder / "q.parquet", "--quick"),
        "full": lambda: command("audit", data, "--folder", folder / task, "-o", folder / "f.parquet"),
        "search": lambda: search(pairs, size),
    }
    found = {"task": task, "pairs": pairs, **does[task]()}
    work.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found), encoding="utf-8")
    print(found, flush=True)


def command(*words: object) -> dict[str, float]:
    """Seconds of the processor and GiB of memory of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for busy cores would count, too
    own, _ = million.watched([sys.executable, "-m", "crcl", *map(str, words)])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "memory": own}


def train(data: Path, run: Path, pairs: int) -> dict[str, float]:
    """One epoch, without what a training and one of more epochs have in common: reading, judging, saving."""
    settings = ["--preset", "embeddings", "--set", "ledger.freeze_epochs=1", "--set", "ledger.probability=train"]
    more = max(1, 50_000 // pairs)
    few, many = (
        command("train", data, "-o", run / str(epochs), *settings, "--set", f"train.pieces=[{epochs}]")
        for epochs in (2, 2 + more)
    )
    return {"seconds": (many["seconds"] - few["seconds"]) / more, "memory": many["memory"]}


def search(pairs: int, size: int) -> dict[str, float]:
    """Milliseconds of the processor that an exact search of one query takes, in one thread, and GiB of the vectors."""
    program = (
        "import sys, time; import numpy as np, torch; from crcl.retrieval.index.exact import nearest\n"
        "torch.set_num_threads(1); rng = np.random.default_rng(0); rows, size, asked = map(int, sys.argv[1:])\n"
        "stored = np.empty((rows, size), np.float16)\n"
        "for at in range(0, rows, 10000):\n"
        "    stored[at:at + 10000] = rng.standard_normal(stored[at:at + 10000].shape, np.float32)\n"
        "queries = rng.standard_normal((asked, size), np.float32); nearest(stored, queries[:1], 10)\n"
        "used = time.process_time()\n"
        "for query in queries: nearest(stored, query[None], 10)\n"
        "print(1000 * (time.process_time() - used) / asked)"
    )
    words = [sys.executable, "-c", program, str(pairs), str(size), str(QUERIES)]
    return {"seconds": float(subprocess.check_output(words, text=True)), "memory": 2 * pairs * size / 2**30}


def exponents(rows: list[dict[str, Any]]) -> list[float]:
    """The power of the number of pairs by which the cost grows from each row to the next."""
    grown = [np.log([later[key] / row[key] for key in ("seconds", "pairs")]) for row, later in zip(rows, rows[1:])]  # noqa: RUF007, B905
    return [float(cost / pairs) for cost, pairs in grown]


def render(found: list[dict[str, Any]], options: Namespace) -> str:
    sizes = sorted({row["pairs"] for row in found})
    lines = ["| | " + " | ".join(f"{pairs:,}" for pairs in sizes) + " | growth |", "|---" * (len(sizes) + 2) + "|"]
    for task, name in TASKS.items():
        rows = [row for row in found if row["task"] == task]
        if not rows:
            continue
        by_pairs = {row["pairs"]: row for row in rows}
        cells = [
            f"{by_pairs[pairs]['seconds']:,.3g} ({by_pairs[pairs]['memory']:.2g})" if pairs in by_pairs else "–"
            for pairs in sizes
        ]
        grown = ", ".join(f"{power:.2f}" for power in exponents(rows))
        lines.append(f"| {name} | {' | '.join(cells)} | {grown} |")
    told = (
        "Seconds of the processor, with one thread; in brackets the peak memory in GiB without mapped pages. "
        "Growth: the power of the number of pairs by which the cost grows from one column to the next; 1 is in "
        f"proportion. Two vectors of {options.size} numbers a pair, seed 0, torch {torch.__version__}. {options.note}"
    )
    command = f"python benchmarks/growth.py WORK --pairs {' '.join(map(str, sizes))}"
    picture = "![Seconds of the processor against the number of pairs](../images/growth.png)"
    head = ["# How cost grows", "", f"    {command}", "", picture, "", *lines, ""]
    return "\n".join([*head, textwrap.fill(told, 120)])


def draw(found: list[dict[str, Any]]) -> Figure:
    """Seconds against pairs, both logarithmic; search in milliseconds."""
    import matplotlib

    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        for (task, name), colour, marker in zip(TASKS.items(), style.LINES, style.MARKERS, strict=False):
            rows = [row for row in found if row["task"] == task]
            label = name.replace("`", "")
            pairs, seconds = [row["pairs"] for row in rows], [row["seconds"] for row in rows]
            axes.plot(pairs, seconds, color=colour, marker=marker, label=label)
        axes.set(xscale="log", yscale="log", xlabel="pairs", ylabel="seconds of the processor")
        axes.set_title("Cost against the number of pairs")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend()
        return figure


if __name__ == "__main__":
    main()
