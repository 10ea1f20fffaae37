"""Every method under the same injected mismatches: retrieval, detection, agreement with people.

    python benchmarks/robustness.py DATA --crowd human_crowd.txt --rates 0.4 --seeds 3 --out docs/results/robustness.md
    python benchmarks/robustness.py DATA --matcher bow --rates 0.2 0.4 0.6 0.8 --for ncr division.warmup=3 \\
        --for mscn mscn.warmup=3 mscn.meta_lr=0.001 --figure robustness.png

DATA is a precomp folder (measured: Flickr8k). Every method gets the same mismatches at the same seed, the same matcher
and the same schedule (methods other than CRCL: its last piece), but for what --for says of a method; the report names
all settings. Runs are kept in --runs and resumed; a finished one is not trained again. `--jobs 2` trains two at a time.
`--gather` trains nothing and reports what there is so far. A training that fails leaves a gap in the report, which
names it, and the exit code is 1. Seconds are those of a run's median epoch times its epochs: a pause does not count.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from crcl import config, metrics, plots
from crcl.data.split import Split
from crcl.errors import InputError, TrainingError
from crcl.experiments.tables import NOTHING, spread
from crcl.methods import METHODS
from crcl.metrics import detection
from crcl.retrieval.evaluation import mean_similarities
from crcl.retrieval.opening import open_scorer
from crcl.runs.folder import Run
from crcl.storage import write_json
from crcl.terminal import Terminal
from crcl.training import build, inputs, session


def main() -> None:
    options = parse()
    jobs = plan(options)
    with ProcessPoolExecutor(options.jobs, initializer=torch.set_num_threads, initargs=(options.threads,)) as pool:
        results = list(pool.map(measure, jobs))
    report = render(results, options)
    print(report)
    if options.figure is not None:
        options.figure.parent.mkdir(parents=True, exist_ok=True)
        plots.save(draw(results, options), options.figure)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(report + "\n", encoding="utf-8")
    if not options.gather and any("failed" in row for row in results):
        sys.exit(1)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; what a training would refuse is refused here, before hours of others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--preset", default="flickr8k-cpu")
    parser.add_argument("--matcher", default="vse")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in crcl train")
    parser.add_argument(
        "--for",
        dest="own",
        nargs="+",
        action="append",
        default=[],
        metavar=("METHOD", "KEY=VALUE"),
        help="settings of one method, after those of --set",
    )
    parser.add_argument("--methods", nargs="+", help="default: all that go with the matcher")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--crowd", type=Path, help="people's judgements of test pairs (Flickr8k's human_crowd.txt)")
    parser.add_argument("--runs", type=Path, default=Path("runs/robustness"))
    parser.add_argument("--gather", action="store_true", help="train nothing; report the runs that are finished")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each training")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    parser.add_argument("--figure", type=Path, help="PNG file to draw rSum against the rate of mismatches to")
    options = parser.parse_args(words)
    options.methods = options.methods or [
        name for name, record in METHODS.items() if options.matcher in record.matchers
    ]
    for name, *settings in options.own:
        if name not in options.methods:
            parser.error(f"--for {name}: not one of the methods to measure, {', '.join(options.methods)}")
        if not settings:
            parser.error(f"--for {name}: no setting; give some as KEY=VALUE")
    try:
        for job in plan(options):
            configure(job)
    except InputError as error:
        parser.error(str(error))
    return options


def plan(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One job for each run; all methods of a rate and seed stand together."""
    return [
        {"method": method, "rate": rate, "seed": seed, **vars(options)}
        for rate, seed, method in product(options.rates, range(options.seeds), options.methods)
    ]


def configure(job: dict[str, Any]) -> config.Config:
    return config.load(
        preset=job["preset"],
        base={
            "method": job["method"],
            "matcher.name": job["matcher"],
            "data.path": str(job["data"]),
            "noise.rate": job["rate"],
            "noise.seed": job["seed"],
            "train.seed": job["seed"],
        },
        settings=[*job["settings"], *own_settings(job["own"], job["method"])],
    )


def own_settings(own: list[list[str]], method: str) -> list[str]:
    """What --for says of a method."""
    return [setting for name, *settings in own if name == method for setting in settings]


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Train one run, or go on with it, and measure it on the test split; what failed says why instead."""
    about = {"method": job["method"], "rate": job["rate"], "seed": job["seed"]}
    try:
        return about | measured(job)
    except (InputError, TrainingError) as error:
        return {**about, "failed": str(error)}


def measured(job: dict[str, Any]) -> dict[str, Any]:
    chosen = configure(job)
    folder = job["runs"] / f"{job['matcher']}-{job['rate']:g}-{job['method']}-{job['seed']}"
    values: dict[str, Any] = {}
    if (folder / "result.json").is_file():
        session.refuse_changes(Run.open(folder), chosen)
        with suppress(ValueError):  # half a file is none
            values = json.loads((folder / "result.json").read_text("utf-8"))
    if not values and job["gather"]:
        return {"failed": "not trained yet"}
    if not values or (job["crowd"] is not None and "people" not in values):
        run = session.train(chosen, folder, resume=True, progress=Terminal())
        values = score(run, chosen, job["crowd"])
        write_json(folder / "result.json", values)
    return {**values, "seconds": seconds(folder)}


def seconds(folder: Path) -> float:
    """Of a training that may have been paused."""
    timing = [json.loads(line)["seconds"] for line in (folder / "timing.jsonl").read_text("utf-8").splitlines()]
    return float(np.median(timing) * len(timing))


def terminal(chosen: config.Config) -> Terminal:
    return Terminal(build.schedule(chosen), networks=chosen.record.networks)


def score(run: Run, chosen: config.Config, crowd: Path | None) -> dict[str, Any]:
    _, _, scorer = open_scorer(run.path)
    test = inputs.open_pairs(chosen).split("test")
    sims = mean_similarities([scorer], test)
    retrieval = metrics.retrieval(sims, test.image_index)
    audited = inputs.audited_pairs(run, chosen)
    values: dict[str, Any] = {"rsum": retrieval.rsum, **asdict(retrieval)}
    if audited.truth is not None:
        by_belief = detection(run.load_ledger(), audited.truth, threshold=0.5)
        by_similarity = detection(scorer.pair_similarities(audited), audited.truth, threshold=0.5)
        values |= {"belief": asdict(by_belief), "similarity": asdict(by_similarity)}
    if crowd is not None:
        values["people"] = agreement(sims, test, crowd)
    return values


def agreement(sims: np.ndarray, test: Split, crowd: Path) -> float:
    """AUROC of the similarities against people's judgements; pairs of an image with its own captions are left out."""
    image_row = {name: row for row, name in enumerate(test.image_ids)}
    captions_of: dict[int, list[int]] = {}
    for caption, image in enumerate(test.image_index.tolist()):
        captions_of.setdefault(image, []).append(caption)
    scores, matches = [], []
    for line in crowd.read_text("utf-8").splitlines():
        image, caption, share, *_ = line.split("\t")
        owner, _, number = caption.rpartition("#")
        if image == owner or image not in image_row or owner not in image_row:
            continue
        scores.append(sims[image_row[image], captions_of[image_row[owner]][int(number)]])
        matches.append(float(share) > 0.5)
    return float(roc_auc_score(matches, scores))


def render(results: list[dict[str, Any]], options: argparse.Namespace) -> str:
    lines = [
        f"    {command(options)}",
        "",
        f"Matcher `{options.matcher}`, preset `{options.preset}`"
        + (f", `{' '.join(options.settings)}`" if options.settings else "")
        + f", {options.seeds} seed{'s' if options.seeds > 1 else ''} (0 to {options.seeds - 1}: weights, batches and "
        "mismatches). Mean ± standard deviation over the seeds. Test scores at the epoch that is best on dev; "
        "detection of the mismatched training pairs by the run's beliefs, and by the best matcher's similarity.",
        "",
    ]
    own = {method: own_settings(options.own, method) for method in options.methods}
    if told := [f"{method} `{' '.join(settings)}`" for method, settings in own.items() if settings]:
        lines += [f"Settings of single methods: {'; '.join(told)}.", ""]
    columns = (
        "rSum | i2t R@1/5/10 | t2i R@1/5/10 | beliefs AUROC | beliefs AP | similarity AUROC | people AUROC | seconds"
    )
    finished = [row for row in results if "failed" not in row]
    for rate in options.rates:
        lines += [f"### {rate:.0%} of the captions", "", f"| method | {columns} |", "|---|" + "---|" * 8]
        for method in options.methods:
            rows = [row for row in finished if row["rate"] == rate and row["method"] == method]
            lines.append(f"| {method} | " + " | ".join(cells(rows)) + " |")
        lines.append("")
    for row in results:
        if "failed" in row:
            lines.append(f"Missing: {row['method']} at {row['rate']:.0%}, seed {row['seed']}: {row['failed'][:200]}")
    return "\n".join(lines).rstrip()


def command(options: argparse.Namespace) -> str:
    """The command that made a report, without the paths of the machine that it was made on."""
    words = ["python benchmarks/robustness.py DATA", f"--preset {options.preset}", f"--matcher {options.matcher}"]
    words += [f"--set {setting}" for setting in options.settings]
    words += [f"--for {' '.join(own)}" for own in options.own]
    words += [f"--methods {' '.join(options.methods)}", f"--rates {' '.join(f'{rate:g}' for rate in options.rates)}"]
    words += [f"--seeds {options.seeds}"] + ([f"--crowd {options.crowd.name}"] if options.crowd else [])
    return " ".join(words)


def draw(results: list[dict[str, Any]], options: argparse.Namespace) -> Figure:
    """rSum against the rate of mismatches: mean over the seeds that are there, deviation where these are several."""
    rates = sorted(set(options.rates))
    mean, deviation = np.full((2, len(options.methods), len(rates)), np.nan)
    for row, column in np.ndindex(mean.shape):
        about = options.methods[row], rates[column]
        found = [one["rsum"] for one in results if "rsum" in one and (one["method"], one["rate"]) == about]
        if found:
            mean[row, column] = np.mean(found)
        if len(found) > 1:
            deviation[row, column] = np.std(found, ddof=1)
    return plots.robustness(
        rates,
        options.methods,
        mean,
        spread=deviation if options.seeds > 1 else None,
        title=f"Retrieval under mismatches, {options.matcher}",
    )


def cells(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return [NOTHING] * 8
    recalls = [
        "/".join(f"{np.mean([row[direction][k] for row in rows]):.1f}" for k in ("r1", "r5", "r10"))
        for direction in ("i2t", "t2i")
    ]
    return [
        spread([row["rsum"] for row in rows], 1),
        *recalls,
        spread([row["belief"]["auroc"] for row in rows if "belief" in row], 3),
        spread([row["belief"]["average_precision"] for row in rows if "belief" in row], 3),
        spread([row["similarity"]["auroc"] for row in rows if "similarity" in row], 3),
        spread([row["people"] for row in rows if "people" in row], 3),
        f"{np.mean([row['seconds'] for row in rows]):.0f}",
    ]


if __name__ == "__main__":
    main()
