"""How far an audit's estimates are from the truth: rate of mismatches, precision and recall, under injected noise.

    python benchmarks/estimates.py DATA --rates 0 0.1 0.2 0.4 0.6 --seeds 3 --out docs/results/estimates.md

DATA is a precomp folder (measured: Flickr8k and the drawn scenes). CRCL trains with decoys at the given share; the
estimate sees beliefs only, and is then compared with what was injected. Beside the beliefs two scores of the same pairs
on the same features detect the mismatches: the similarity of a matcher trained plainly (InfoNCE, best epoch on dev),
and that of linear CCA. Runs are kept in --runs and resumed; a finished one is not trained again.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np
import torch
from cca import cca_similarities
from sklearn.metrics import average_precision_score, roc_auc_score

from crcl import config
from crcl.auditing import estimate as decoys
from crcl.data import decoys as drawn_decoys
from crcl.retrieval.opening import open_scorer
from crcl.terminal import Terminal
from crcl.training import inputs, session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--preset", default="flickr8k-cpu")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in crcl train")
    parser.add_argument("--decoys", type=float, default=drawn_decoys.SHARE)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.1, 0.2, 0.4, 0.6])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--baselines", action="store_true", help="also detect by InfoNCE's similarity and by CCA")
    parser.add_argument("--runs", type=Path, default=Path("runs/estimates"))
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(options, rate, seed) for rate, seed in product(options.rates, range(options.seeds))]
    report = "\n".join(render(rows, options))
    print(report)
    if options.out is not None:
        options.out.write_text(report + "\n", encoding="utf-8")


def train(options: argparse.Namespace, method: str, rate: float, seed: int) -> tuple[Path, config.Config]:
    chosen = config.load(
        preset=options.preset,
        base={
            "method": method,
            "data.path": str(options.data),
            "data.decoys": options.decoys if method == "crcl" else 0.0,
            "noise.rate": rate,
            "noise.seed": seed,
            "train.seed": seed,
        },
        settings=options.settings,
    )
    folder = options.runs / f"{chosen.matcher.name}-{rate:g}-{method}-{seed}"
    session.train(chosen, folder, resume=True, progress=Terminal())
    return folder, chosen


def measure(options: argparse.Namespace, rate: float, seed: int) -> dict[str, float]:
    """One run with its estimates and the truth."""
    folder, chosen = train(options, "crcl", rate, seed)
    run, _, _ = open_scorer(folder)
    pairs = inputs.audited_pairs(run, chosen)
    beliefs = run.load_ledger()
    found = decoys.estimate(beliefs, run.load_decoy_ledger())
    flagged = found.at(found.best_f1())
    below = beliefs < flagged.threshold
    wrong = np.zeros(len(pairs), dtype=bool) if pairs.truth is None else ~pairs.truth
    values = {
        "injected": rate,
        "seed": seed,
        "true_rate": wrong.mean(),
        "low": found.low,
        "high": found.high,
        "rate": found.rate,
        **asdict(flagged),
        "true_precision": wrong[below].mean() if below.any() else np.nan,
        "true_recall": below[wrong].mean() if wrong.any() else np.nan,
    }
    if wrong.any():
        values |= scores("crcl", beliefs, wrong)
        if options.baselines:
            plain, _ = train(options, "infonce", rate, seed)
            values |= scores("infonce", open_scorer(plain)[2].pair_similarities(pairs), wrong)
            values |= scores("cca", cca_similarities(pairs), wrong)
    return values


def scores(name: str, score: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    return {f"{name} AUROC": roc_auc_score(wrong, -score), f"{name} AP": average_precision_score(wrong, -score)}


def render(rows: Sequence[dict[str, float]], options: argparse.Namespace) -> list[str]:
    lines = [
        f"Preset `{options.preset}`" + (f", `{' '.join(options.settings)}`" if options.settings else "") + ", "
        f"{options.decoys:.0%} decoys; seeds 0 to {options.seeds - 1} (weights, batches, decoys, mismatches). "
        "Threshold: the one with the best estimated F1. In brackets: the interval of 95 %.",
        "",
        "| injected | seed | estimated rate | true rate | threshold | flagged | estimated precision | true | "
        "estimated recall | true |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        lines.append(
            f"| {row['injected']:.0%} | {row['seed']:.0f} | "
            f"{row['rate']:.1%} ({row['low']:.1%} to {row['high']:.1%}) | {row['true_rate']:.1%} | "
            f"{row['threshold']:g} | {row['count']:,} | {row['precision']:.0%} | {row['true_precision']:.0%} | "
            f"{row['recall']:.0%} | {row['true_recall']:.0%} |".replace("nan%", "–")
        )
    noisy = [row for row in rows if row["true_rate"] > 0]
    if noisy:
        of_rate = np.array([abs(row["rate"] - row["true_rate"]) for row in noisy])
        of_precision = np.array([abs(row["precision"] - row["true_precision"]) for row in noisy])
        held = sum(row["low"] <= row["true_rate"] <= row["high"] for row in noisy)
        lines += [
            "",
            f"With mismatches: the rate is off by {100 * of_rate.mean():.1f} points in the mean, "
            f"{100 * of_rate.max():.1f} at most; precision by {100 * of_precision.mean():.1f}, "
            f"{100 * of_precision.max():.1f} at most; the interval holds the true rate in {held} of {len(noisy)} runs.",
            "",
            *detected(noisy),
        ]
    return lines


def detected(rows: Sequence[dict[str, float]]) -> list[str]:
    """Detection of the mismatched pairs, mean ± standard deviation over the seeds."""
    names = [name for name in ("crcl", "infonce", "cca") if f"{name} AUROC" in rows[0]]
    lines = ["| injected | " + " | ".join(f"{name} AUROC | {name} AP" for name in names) + " |"]
    lines.append("|---" * (1 + 2 * len(names)) + "|")
    for rate in dict.fromkeys(row["injected"] for row in rows):
        same = [row for row in rows if row["injected"] == rate]
        cells = []
        for name, kind in product(names, ("AUROC", "AP")):
            values = np.array([row[f"{name} {kind}"] for row in same])
            cells.append(f"{values.mean():.3f} ± {values.std(ddof=1) if len(values) > 1 else 0:.3f}")
        lines.append(f"| {rate:.0%} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
