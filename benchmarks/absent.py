"""Captions whose true image is not in the data: how CRCL and relink train and detect when nothing can be relinked.

    python benchmarks/absent.py DATA --work WORK --rates 0.4 0.8 --seeds 3

DATA is a precomp folder (measured: Flickr8k). Half of the training images are kept, chosen by the seed. At each rate
that share of the captions of kept images is replaced by captions of the other half, so that the image of a mismatched
caption is nowhere. The data goes to WORK/data-SEED-RATE, with `truth.npy`, which no training sees; runs go to WORK and
are resumed, and a finished one is not trained again. Dev and test stay as they are.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

import crcl
from crcl.data.pairs import Pairs
from crcl.experiments.tables import spread
from crcl.metrics import detection
from crcl.runs.folder import Run
from crcl.terminal import Terminal

METHODS = ("crcl", "relink")


def main() -> None:
    options = parse()
    rows = []
    for rate, method in product(options.rates, options.methods):
        found = [measured(options, method, rate, seed) for seed in range(options.seeds)]
        rows.append((method, rate, *zip(*found, strict=True)))
    print(render(rows))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a precomp folder")
    parser.add_argument("--work", type=Path, default=Path("absent"), help="folder for the data that is made, and runs")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.4, 0.8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--matcher", default="bow")
    parser.add_argument("--preset", default="flickr8k-cpu")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="as in crcl train, besides lr 0.001"
    )
    return parser.parse_args(words)


def measured(options: argparse.Namespace, method: str, rate: float, seed: int) -> tuple[float, float, float]:
    """Test rSum, AUROC and average precision of one training."""
    data = options.work / f"data-{seed}-{rate:g}"
    if not (data / "truth.npy").exists():
        write(options.data, data, rate, seed)
    run = trained(options, method, data, seed)
    found = detection(run.load_ledger(), np.load(data / "truth.npy"), threshold=0.5)
    if found is None:
        raise SystemExit(f"{data}: no caption is mismatched, or all are; there is nothing to detect")
    return crcl.evaluate(run, split="test").rsum, found.auroc, found.average_precision


def trained(options: argparse.Namespace, method: str, data: Path, seed: int) -> Run:
    return crcl.train(
        data,
        options.work / f"{data.name}-{method}-{options.matcher}",
        method=method,
        matcher=options.matcher,
        preset=options.preset,
        seed=seed,
        settings=["train.lr=0.001", *options.settings],
        resume=True,
        progress=Terminal(),
    )


def write(source: Path, folder: Path, rate: float, seed: int) -> None:
    """Write the data with captions of absent images, a precomp folder; `truth.npy` is written last."""
    pairs = Pairs.of(source)
    train = pairs.split("train")
    rng = np.random.default_rng(seed)
    images = rng.permutation(train.images)
    kept = np.sort(images[: train.images // 2])
    rows = np.flatnonzero(np.isin(train.image_index, kept))
    absent = rng.permutation(np.flatnonzero(~np.isin(train.image_index, kept)))
    truth = np.ones(len(rows), dtype=bool)
    truth[rng.permutation(len(rows))[: min(int(rate * len(rows)), len(absent))]] = False
    shown = rows.copy()
    shown[~truth] = absent[: (~truth).sum()]
    counts = np.bincount(train.image_index[rows], minlength=train.images)[kept]
    if len(set(counts)) > 1:
        raise SystemExit(f"{source}: images with different numbers of captions; this benchmark needs the same for all")
    folder.mkdir(parents=True, exist_ok=True)
    for split, ending in product(("dev", "test"), ("_ims.npy", "_caps.txt", "_ids.txt")):
        link = folder / f"{split}{ending}"
        link.unlink(missing_ok=True)
        link.symlink_to((source / link.name).absolute())
    np.save(folder / "train_ims.npy", train.gather(kept))
    order = np.argsort(train.image_index[rows], kind="stable")
    lines = {"caps": [train.captions[row] for row in shown[order]], "ids": [train.image_ids[image] for image in kept]}
    for name, content in lines.items():
        (folder / f"train_{name}.txt").write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    np.save(folder / "truth.npy", truth[order])


def render(rows: Sequence[tuple[str, float, Sequence[float], Sequence[float], Sequence[float]]]) -> str:
    lines = ["| mismatched | method | rSum | AUROC | AP | seeds |", "|---|---|---|---|---|---|"]
    for method, rate, rsums, aurocs, precisions in sorted(rows, key=lambda row: row[1]):
        numbers = [spread(rsums, 1), spread(aurocs, 3), spread(precisions, 3)]
        lines.append(f"| {100 * rate:g} % | {method} | {' | '.join(numbers)} | {len(rsums)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
