"""Audits of few pairs: what each way of training detects there, and how right the estimates by decoys are.

    python benchmarks/few.py DATA --work WORK --pairs 2000 4000 8000 --seeds 2

DATA is a precomp folder (measured: Flickr8k), of which the first pairs are taken, or a table with features (measured:
clip arts), of which all are. 40 % are mismatched, 5 % decoys are added. Trained are relink's linear model alone, relink
with a network, and CRCL in pieces of 3, 3 and 13 epochs. Runs go to WORK and are resumed; a finished one is not trained
again. For each: AUROC of the injected mismatches, the rate that the decoys estimate with its interval, and in how many
of a hundred cases a decoy is believed less than an injected mismatch (50: they are alike).
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

import crcl
from crcl.auditing.thresholds import read_correspondences
from crcl.data.pairs import Pairs
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.terminal import Terminal
from crcl.training.inputs import audited_pairs

WAYS = {
    "linear model alone": {"method": "relink", "matcher": "linear"},
    "relink with a network": {"method": "relink", "matcher": "bow"},
    "CRCL [3, 3, 13]": {"method": "crcl", "matcher": "bow"},
}


def main() -> None:
    options = parse()
    lines = ["| data | trained | AUROC | estimated rate | decoys below mismatches |", "|---|---|---|---|---|"]
    for pairs, way in product(options.pairs or [None], options.ways):
        found = [measured(options, pairs, way, seed) for seed in range(options.seeds)]
        name = options.data.stem if pairs is None else f"{pairs:,} pairs"
        lines.append(f"| {name} | {way} | " + " | ".join(", ".join(cells) for cells in zip(*found, strict=True)) + " |")
    print("\n".join(lines))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a precomp folder, or a table with its features beside it")
    parser.add_argument("--work", type=Path, default=Path("few"), help="folder for the data that is made, and runs")
    parser.add_argument("--pairs", nargs="*", type=int, help="how many pairs of a precomp folder to take; else all")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help=f"some of: {', '.join(WAYS)}")
    parser.add_argument("--rate", type=float, default=0.4)
    parser.add_argument("--decoys", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--preset", default="flickr8k-cpu")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="as in crcl train, besides lr 0.001"
    )
    return parser.parse_args(words)


def measured(options: argparse.Namespace, pairs: int | None, way: str, seed: int) -> tuple[str, str, str]:
    """AUROC, the estimated rate with its interval, and how decoys compare with injected mismatches, as texts."""
    data = options.data if pairs is None else first(options.data, options.work / f"first-{pairs}", pairs)
    run = trained(options, data, way, seed)
    truth = audited_pairs(run, stored_config(run)).truth
    beliefs, decoys = run.load_ledger(), run.load_decoy_ledger()
    injected = beliefs[~truth]
    alike = roc_auc_score(np.r_[np.ones(len(injected)), np.zeros(len(decoys))], np.r_[injected, decoys])
    estimate = read_correspondences(run).estimate
    rate = "none" if estimate is None else f"{estimate.rate:.1%} ({estimate.low:.1%} to {estimate.high:.1%})"
    return f"{roc_auc_score(truth, beliefs):.3f}", rate, f"{100 * alike:.0f}"


def trained(options: argparse.Namespace, data: Path, way: str, seed: int) -> Run:
    return crcl.train(
        data,
        options.work / f"{data.stem}-{way.split()[0]}-{WAYS[way]['matcher']}-{options.decoys:g}-{seed}",
        **WAYS[way],
        preset=options.preset,
        noise=options.rate,
        decoys=options.decoys,
        seed=seed,
        settings=["train.lr=0.001", *options.settings],
        resume=True,
        progress=Terminal(),
    )


def first(source: Path, folder: Path, pairs: int) -> Path:
    """A precomp folder with the first training pairs; dev and test stay as they are."""
    train = Pairs.of(source).split("train")
    images = int(train.image_index[pairs - 1]) + 1
    rows = np.flatnonzero(train.image_index < images)
    folder.mkdir(parents=True, exist_ok=True)
    for split, ending in product(("dev", "test"), ("_ims.npy", "_caps.txt", "_ids.txt")):
        link = folder / f"{split}{ending}"
        link.unlink(missing_ok=True)
        link.symlink_to((source / link.name).absolute())
    np.save(folder / "train_ims.npy", train.gather(np.arange(images)))
    lines = {"caps": [train.captions[row] for row in rows], "ids": train.image_ids[:images]}
    for name, content in lines.items():
        (folder / f"train_{name}.txt").write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    return folder


if __name__ == "__main__":
    main()
