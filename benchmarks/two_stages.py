"""Search in two stages: how many candidates a second run must rank again, and what that takes.

    python benchmarks/two_stages.py runs/vse runs/sgr
    python benchmarks/two_stages.py runs/vse runs/sgr --candidates 5 10 20 --json curve.json

Scores of the first run, of the second run on everything, and of both in two stages by the number of candidates. Every
line is computed for itself, encoding included, and its time is that of all cores (CPU seconds), which other work on the
machine hardly changes.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import crcl
from crcl import metrics
from crcl.data.split import Split
from crcl.retrieval.evaluation import mean_similarities
from crcl.retrieval.two_stages import mean_of_listed, rank_again
from crcl.runs.describe import conditions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="the run that finds candidates")
    parser.add_argument("second", type=Path, help="the run that ranks them again")
    parser.add_argument("--data", type=Path, help="the data, if it has moved")
    parser.add_argument("--split", default="test")
    parser.add_argument("--candidates", type=int, nargs="+", default=[5, 10, 20, 50, 100, 200])
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    given = parser.parse_args()
    models = [crcl.load(run, device="cpu") for run in (given.first, given.second)]
    pairs = crcl.read(given.data or models[0].config.data.path).split(given.split)
    for model in models:
        print(conditions(model.run, model.config))
    print(f"{given.split}: {pairs.images:,} images, {len(pairs):,} captions\n")
    rows = measure(*models, pairs, given.candidates)
    print(*table(rows), sep="\n")
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure(first: crcl.Model, second: crcl.Model, pairs: Split, counts: list[int]) -> list[dict[str, float | str]]:
    """Scores and times of each stage alone, and of both by the number of candidates."""
    coarse, quick = timed(lambda: mean_similarities([first.scorer], pairs))
    fine, whole = timed(lambda: mean_similarities([second.scorer], pairs))
    best = metrics.retrieval(fine, pairs.image_index).rsum
    alone = metrics.retrieval(coarse, pairs.image_index).rsum
    rows: list[dict[str, float | str]] = [
        {"what": "first stage", "rsum": alone, "share": 100 * alone / best, "seconds": quick},
    ]
    for count in counts:
        score = mean_of_listed([second.scorer], pairs)
        found, took = timed(lambda count=count, score=score: rank_again(coarse, pairs.image_index, count, score))
        rows.append(
            {
                "what": f"{count} candidates",
                "rsum": found.scores.rsum,
                "share": 100 * found.scores.rsum / best,
                "seconds": quick + took,
                "compared": found.compared,
                "i2t_found": found.i2t_found,
                "t2i_found": found.t2i_found,
            }
        )
    rows.append(
        {"what": "second stage on everything", "rsum": best, "share": 100.0, "seconds": whole, "compared": 100.0}
    )
    for row in rows:
        row["time"] = 100 * float(row["seconds"]) / whole
    return rows


def timed(work: Callable[[], np.ndarray]) -> tuple:
    """What a function gives, and the CPU seconds that it takes."""
    began = time.process_time()
    return work(), time.process_time() - began


def table(rows: list[dict[str, float | str]]) -> list[str]:
    """The rows as Markdown."""
    lines = [
        "| | rSum | of the second run's | CPU seconds | of its time | compared | found i2t / t2i |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = f"{row['i2t_found']:.1f} / {row['t2i_found']:.1f} %" if "i2t_found" in row else "–"
        compared = f"{row['compared']:.1f} %" if "compared" in row else "–"
        lines.append(
            f"| {row['what']} | {row['rsum']:.1f} | {row['share']:.1f} % | {row['seconds']:.1f} | {row['time']:.1f} % "
            f"| {compared} | {found} |"
        )
    return lines


if __name__ == "__main__":
    main()
