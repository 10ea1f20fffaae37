"""Does cleaning pay? Plain training on data as it is, cleaned by each score, and on the pairs that truly match.

    python benchmarks/downstream.py DATA --work WORK --rates 0.2 0.4 0.6 --seeds 3

DATA is a precomp folder (measured: Flickr8k). At each rate that share of the training captions is mismatched, and a
quick audit judges the pairs by its scores. Of each score, as many pairs are kept as truly match, the most believed, so
that all ways train on the same number of pairs: what differs is which. `crcl` cleans by the beliefs that a whole
training by CRCL ends with (named in `--ways` it is trained too); `random` keeps random pairs. On what is kept a
matcher is trained by InfoNCE for 13 epochs; its test rSum is that of the epoch with the best dev rSum. Data and runs
are written to WORK, and a run that is finished there is not trained again.
"""

import argparse
import csv
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import mismatches
import numpy as np

import crcl
from crcl.auditing.scores.of_run import stored_scores
from crcl.data.pairs import Pairs
from crcl.experiments.tables import spread
from crcl.terminal import Terminal

SPLITS = ("train", "dev", "test")
WAYS = ("as it is", "clean", "random", "linear", "combined", "contrast", "neighbours", "cosine", "similarity")
"""What is trained on; `crcl` and `consistency` besides, where they are named."""
Row = dict[str, Any]


def main() -> None:
    options = parse()
    rows = []
    for rate, seed, way in product(options.rates, range(options.seeds), options.ways):
        rows.append(measured(options, rate, seed, way))
    print(render(rows, options.ways))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a precomp folder")
    parser.add_argument("--work", type=Path, default=Path("downstream"), help="folder for data that is made, and runs")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.2, 0.4, 0.6])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help=f"some of {', '.join(WAYS)}, consistency, crcl")
    parser.add_argument("--matcher", default="bow")
    parser.add_argument("--preset", default="flickr8k-cpu")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="as in crcl train, besides lr 0.001 for bow"
    )
    return parser.parse_args(words)


def measured(options: argparse.Namespace, rate: float, seed: int, way: str) -> Row:
    """Test rSum of one training, and what it was trained on; from its file if it is there."""
    name = f"{options.matcher}-{rate:g}-{seed}-{way.replace(' ', '-')}"
    kept = options.work / f"{name}.json"
    if kept.is_file():
        return json.loads(kept.read_text("utf-8"))  # type: ignore[no-any-return]
    data = options.work / f"data-{rate:g}-{seed}"
    mismatches.write(options.data, data, {"random": rate}, seed)
    truth = np.load(data / "kinds.npy") == ""
    rows = chosen(options, data, truth, seed, way)
    run = trained(options, table(options, data, options.work / f"{name}.csv", rows), name, "infonce", seed)
    row = {
        "rate": rate,
        "seed": seed,
        "way": way,
        "pairs": len(rows),
        "wrong": float((~truth[rows]).mean()),
        "rsum": crcl.evaluate(run, split="test").rsum,
    }
    kept.write_text(json.dumps(row), encoding="utf-8")
    return row


def chosen(options: argparse.Namespace, data: Path, truth: np.ndarray, seed: int, way: str) -> np.ndarray:
    """The rows of the pairs to train on, ascending."""
    if way == "as it is":
        return np.arange(len(truth))
    if way == "clean":
        return np.flatnonzero(truth)
    if way == "random":  # not by the numbers that drew the mismatches
        return np.sort(np.random.default_rng([0xD0, seed]).permutation(len(truth))[: truth.sum()])
    score = beliefs(options, data, seed, way)
    return np.sort(np.argsort(-score, kind="stable")[: truth.sum()])


def beliefs(options: argparse.Namespace, data: Path, seed: int, way: str) -> np.ndarray:
    """A score of the pairs, low for suspects. (pairs,)"""
    if way == "crcl":
        return trained(options, crcl.read(data), f"{options.matcher}-{data.name}-crcl", "crcl", seed).load_ledger()
    folder = options.work / f"audit-{data.name}"
    if not (folder / "scores.npz").is_file():
        audit = crcl.audit(data, folder, quick=True, suggest=0, seed=seed, progress=Terminal())
        found = stored_scores(audit.run)
        np.savez(folder / "scores.npz", **{name: found.of(name)[: found.pairs] for name in found.names})
    with np.load(folder / "scores.npz") as scores:
        if way not in scores:
            raise SystemExit(f"{way}: no score of this audit, which has {', '.join(scores)}")
        return np.nan_to_num(scores[way], nan=float(np.nanmedian(scores[way])))


def trained(options: argparse.Namespace, pairs: Pairs, name: str, method: str, seed: int) -> Any:
    return crcl.train(
        pairs,
        options.work / "runs" / name,
        method=method,
        matcher=options.matcher,
        preset=options.preset,
        seed=seed,
        settings=[
            *(["train.lr=0.001"] if options.matcher == "bow" else []),
            *(["train.pieces=[13]"] if method == "infonce" else []),
            *options.settings,
        ],
        resume=True,
        progress=Terminal(),
    )


def table(options: argparse.Namespace, data: Path, path: Path, rows: np.ndarray) -> Pairs:
    """A table of some training pairs, and of all of dev and test, with the features of all images."""
    features, ids = (options.work / name for name in ("features.npy", "ids.txt"))
    splits = {split: crcl.read(data).split(split) for split in SPLITS}
    if not ids.is_file():
        np.save(features, np.concatenate([part.gather(np.arange(part.images)) for part in splits.values()]))
        names = [f"{split}-{image}\n" for split, part in splits.items() for image in range(part.images)]
        ids.write_text("".join(names), encoding="utf-8")
    with path.open("w", newline="", encoding="utf-8") as file:
        written = csv.writer(file)
        written.writerow(("image", "caption", "split"))
        for split, part in splits.items():
            for row in rows if split == "train" else range(len(part)):
                written.writerow((f"{split}-{part.image_index[row]}", part.captions[row], split))
    return crcl.read(path, features=features, ids=ids)


def render(rows: Sequence[Row], ways: Sequence[str]) -> str:
    """A line for each way: rSum, and how many of the pairs that it trains on are wrong."""
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    lines = ["| trained on | " + " | ".join(f"{rate:.0%}: rSum | wrong" for rate in rates) + " |"]
    lines.append("|---" * (1 + 2 * len(rates)) + "|")
    for way in ways:
        cells = []
        for rate in rates:
            same = [row for row in rows if (row["rate"], row["way"]) == (rate, way)]
            cells += [spread([row["rsum"] for row in same], 1), f"{np.mean([row['wrong'] for row in same]):.1%}"]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
