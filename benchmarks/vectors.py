"""CRCL and relink on vectors of two models: mean region features of photos, and vectors of sentences.

    python benchmarks/vectors.py DATA --model MODEL --work FOLDER --rates 0.4 0.8 --seeds 3

DATA is a precomp folder (measured: Flickr8k), MODEL a sentence encoder: its folder, or its name on the hub. FOLDER gets
a table of all captions with their split, the mean of the regions of each image, and the vectors of the captions. At
each rate that share of the training captions is mismatched one by one. Runs are resumed, and a finished one is not
trained again. Relink trains the epochs of the preset's last piece, CRCL those of all pieces.
"""

import argparse
import csv
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

TRAINED = (("crcl", "dual"), ("relink", "dual"), ("relink", "linear-vectors"))
SPLITS = ("train", "dev", "test")


def main() -> None:
    options = parse()
    data = options.work / "data"
    if not (data / "text_features.npy").is_file():
        write(options.data, data, options.model)
    rows = []
    for rate, (method, matcher) in product(options.rates, TRAINED):
        found = [measured(options, data, method, matcher, rate, seed) for seed in range(options.seeds)]
        rows.append((f"{method}, `{matcher}`", rate, *zip(*found, strict=True)))
    print(render(rows))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a precomp folder")
    parser.add_argument("--model", required=True, help="a sentence encoder: the folder of a saved one, or a hub name")
    parser.add_argument("--work", type=Path, default=Path("vectors"), help="folder for the data that is made, and runs")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.4, 0.8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--preset", default="embeddings")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in crcl train")
    return parser.parse_args(words)


def write(source: Path, folder: Path, model: str) -> None:
    """Write the table, the mean features and the vectors of the captions, these last."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = Pairs.of(source)
    means, names = [], []
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("image", "caption", "split"))
        for split in SPLITS:
            part = pairs.split(split)
            means += [part.gather(np.array([image])).mean(1) for image in range(part.images)]
            names += [f"{split}-{image}" for image in range(part.images)]
            for image, caption in zip(part.image_index.tolist(), part.captions, strict=True):
                table.writerow((f"{split}-{image}", caption, split))
    np.save(folder / "features.npy", np.concatenate(means))
    (folder / "ids.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    crcl.extract_text_features(folder / "pairs.csv", folder, model=model, progress=Terminal())


def measured(
    options: argparse.Namespace, data: Path, method: str, matcher: str, rate: float, seed: int
) -> tuple[float, float, float]:
    """Test rSum, AUROC and average precision of one training."""
    features, ids, texts = (data / name for name in ("features.npy", "ids.txt", "text_features.npy"))
    pairs = crcl.read(data / "pairs.csv", features=features, ids=ids, text_features=texts)
    run: Run = crcl.train(
        pairs,
        options.work / f"{method}-{matcher}-{rate:g}-{seed}",
        method=method,
        matcher=matcher,
        preset=options.preset,
        noise=rate,
        seed=seed,
        settings=[f"noise.seed={seed}", *options.settings],
        resume=True,
        progress=Terminal(),
    )
    shown = run.noise()
    if shown is None:
        raise SystemExit(f"{run.path}: no caption is mismatched; there is nothing to detect")
    found = detection(run.load_ledger(), shown == pairs.split("train").image_index, threshold=0.5)
    if found is None:
        raise SystemExit(f"{run.path}: no caption is mismatched, or all are; there is nothing to detect")
    return crcl.evaluate(run, split="test").rsum, found.auroc, found.average_precision


def render(rows: Sequence[tuple[str, float, Sequence[float], Sequence[float], Sequence[float]]]) -> str:
    lines = ["| mismatched | trained | rSum | AUROC | AP | seeds |", "|---|---|---|---|---|---|"]
    for name, rate, rsums, aurocs, precisions in sorted(rows, key=lambda row: row[1]):
        numbers = [spread(rsums, 1), spread(aurocs, 3), spread(precisions, 3)]
        lines.append(f"| {100 * rate:g} % | {name} | {' | '.join(numbers)} | {len(rsums)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
