"""Do near decoys help a training, as pairs that it judges itself or as hard negatives that are known to be wrong?

    python benchmarks/hard.py DATA --work WORK --pairs 10000 --rates 0.2 0.4 --seeds 3

DATA is a precomp folder (measured: Flickr8k), of which the first so many training pairs are taken. At each rate that
share of the training captions is mismatched, a tenth of all with the caption of a similar image (`near`), the rest at
random. CRCL and relink train on them

- `random`: with random decoys;
- `kinds`: with near and swap decoys too;
- `hard`: with random decoys, and with as many near mismatches more as a tenth of the pairs, which verdicts call wrong.

Measured are the test rSum at the epoch with the best dev rSum, and how well the beliefs tell the mismatched pairs, all
and near ones, from those that match. Data, runs and results are written to WORK; a run that is there is not repeated.
"""

import argparse
import csv
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import downstream
import few
import mismatches
import numpy as np
from sklearn.metrics import roc_auc_score

import crcl
from crcl.data.decoys import KINDS, SIMILAR
from crcl.data.duplicates import folded
from crcl.data.nearby import nearest_images
from crcl.data.pairs import Pairs
from crcl.data.split import Split
from crcl.experiments.tables import spread
from crcl.terminal import Terminal

ARMS = ("random", "kinds", "hard")
NEAR = 0.1
"""Share of near mismatches in the data, and of hard negatives beside it."""
Row = dict[str, Any]


def main() -> None:
    options = parse()
    if options.pairs is not None:
        options.data = few.first(options.data, options.work / f"first-{options.pairs}", options.pairs)
    rows = [
        measured(options, *one) for one in product(options.rates, range(options.seeds), options.methods, options.arms)
    ]
    print(render(rows))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a precomp folder")
    parser.add_argument("--work", type=Path, default=Path("hard"), help="folder for data that is made, and runs")
    parser.add_argument("--pairs", type=int, help="how many training pairs to take; all, if not given")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.2, 0.4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["crcl", "relink"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--matcher", default="bow")
    parser.add_argument("--preset", default="flickr8k-cpu")
    parser.add_argument("--set", dest="settings", action="append", default=["train.lr=0.001"], help="as in crcl train")
    return parser.parse_args(words)


def measured(options: argparse.Namespace, rate: float, seed: int, method: str, arm: str) -> Row:
    """Test rSum and detection of one training; from its file if it is there."""
    name = f"{options.matcher}-{rate:g}-{seed}-{method}-{arm}"
    kept = options.work / f"{name}.json"
    if kept.is_file():
        return json.loads(kept.read_text("utf-8"))  # type: ignore[no-any-return]
    data = options.work / f"data-{rate:g}-{seed}"
    mismatches.write(options.data, data, {"random": rate - NEAR, "near": NEAR}, seed)
    kinds = np.load(data / "kinds.npy")
    pairs, verdicts = (with_negatives if arm == "hard" else as_they_are)(options, data, len(kinds), seed)
    run = crcl.train(
        pairs,
        options.work / "runs" / name,
        method=method,
        matcher=options.matcher,
        preset=options.preset,
        seed=seed,
        decoys=0.05,
        decoy_kinds=KINDS if arm == "kinds" else KINDS[:1],
        verdicts=verdicts,
        settings=options.settings,
        resume=True,
        progress=Terminal(),
    )
    beliefs = run.load_ledger()[: len(kinds)]
    fine = kinds == ""
    row = {"rate": rate, "seed": seed, "method": method, "arm": arm, "rsum": crcl.evaluate(run, split="test").rsum}
    row["all"] = roc_auc_score(~fine, -beliefs)
    row |= {
        kind: roc_auc_score(kinds[fine | (kinds == kind)] == kind, -beliefs[fine | (kinds == kind)])
        for kind in KINDS[:2]
    }
    kept.write_text(json.dumps(row), encoding="utf-8")
    return row


def as_they_are(options: argparse.Namespace, data: Path, pairs: int, seed: int) -> tuple[Pairs, None]:
    return downstream.table(options, data, data / "pairs.csv", np.arange(pairs)), None


def with_negatives(options: argparse.Namespace, data: Path, pairs: int, seed: int) -> tuple[Pairs, Path]:
    """The pairs followed by near mismatches, and verdicts that say of these that they are wrong."""
    table, verdicts = data / "with-negatives.csv", data / "negatives.jsonl"
    as_they_are(options, data, pairs, seed)
    train = crcl.read(data).split("train")
    with (data / "pairs.csv").open(newline="", encoding="utf-8") as file:
        head, *lines = csv.reader(file)
    more = [[f"train-{image}", train.captions[row], "train"] for image, row in near_pairs(train, seed)]
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *lines, *more])
    said = [
        {"row": len(lines) + number, "image": image, "caption": caption, "verdict": "wrong", "reviewer": "benchmark"}
        for number, (image, caption, _) in enumerate(more)
    ]
    verdicts.write_text("".join(f"{json.dumps(one)}\n" for one in said), encoding="utf-8")
    return crcl.read(table, features=options.work / "features.npy", ids=options.work / "ids.txt"), verdicts


def near_pairs(train: Split, seed: int) -> list[tuple[int, int]]:
    """Images with the caption of one of the most similar images, as pairs of an image and the row of a caption."""
    rng = np.random.default_rng([0x4A4D, seed])
    shown = rng.choice(train.images, round(NEAR * len(train)))
    similar = nearest_images(train, np.arange(train.images), np.arange(train.images), SIMILAR, rng)
    rows_of = [np.flatnonzero(train.image_index == image) for image in range(train.images)]
    found = []
    for image in shown.tolist():
        row = int(rng.choice(rows_of[rng.choice(similar[image])]))
        if folded(train.captions[row]) not in {folded(train.captions[own]) for own in rows_of[image]}:
            found.append((image, row))
    return found


def render(rows: Sequence[Row]) -> str:
    lines = [
        "| mismatched | method | trained with | rSum | AUROC, all | random | near |",
        "|---|---|---|---|---|---|---|",
    ]
    for rate, method, arm in dict.fromkeys((row["rate"], row["method"], row["arm"]) for row in rows):
        same = [row for row in rows if (row["rate"], row["method"], row["arm"]) == (rate, method, arm)]
        aurocs = [spread([row[kind] for row in same], 3) for kind in ("all", "random", "near")]
        lines.append(
            f"| {rate:.0%} | {method} | {arm} | {spread([row['rsum'] for row in same], 1)} | {' | '.join(aurocs)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
