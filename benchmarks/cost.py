"""Seconds of an epoch of each method, relative to plain training with InfoNCE.

    python benchmarks/cost.py --out docs/results/cost.md

On the built-in scenes with 40 % of the training pairs mismatched. All methods go through their epochs side by side:
each epoch of one is followed by the same epoch of the next, and is compared with plain training's of the same turn.
The first `--warmup` epochs are the warm-up of the methods that have one; then comes a first half and a second half, in
which NCR and BiCro learn from noisy pairs too. Validation and saving are left out. About 3 minutes on two cores.
"""

import argparse
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import torch

from crcl import config
from crcl.data import scenes
from crcl.features.grid import grid_features
from crcl.matchers import MATCHERS
from crcl.methods import METHODS
from crcl.training import build, inputs

PLAIN = "infonce"


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "scenes"
        scenes.write(data, describe=grid_features, train=options.images, dev=options.images // 10, test=2)
        report = "\n".join([*opening(options), *(render(matcher, data, options) for matcher in options.matchers)])
    print(report)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(report.rstrip() + "\n", encoding="utf-8")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matchers", nargs="+", default=["bow", "vse"], choices=MATCHERS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="beside plain training; all")
    parser.add_argument("--images", type=int, default=200, help="training images, with five captions each")
    parser.add_argument("--embedding", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=4, help="epochs of warm-up")
    parser.add_argument("--half", type=int, default=3, help="epochs of each half after it")
    parser.add_argument("--note", default="", help="what to say of the machine")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    return parser.parse_args(words)


def opening(options: argparse.Namespace) -> list[str]:
    given = [f"--images {options.images}", f"--embedding {options.embedding}", f"--warmup {options.warmup}"]
    words = ["python benchmarks/cost.py", f"--matchers {' '.join(options.matchers)}", *given, f"--half {options.half}"]
    if options.methods:
        words.insert(2, f"--methods {' '.join(options.methods)}")
    conditions = (
        f"Seconds of a training epoch relative to plain training with `{PLAIN}` in the same turn, median over turns: "
        f"{options.warmup} of warm-up, then {options.half} of each half. The mean is of both halves. 'Learnt from' "
        "counts the pairs in the training steps of an epoch after the warm-up, of both networks together, relative to "
        f"all pairs there are. Drawn scenes, {options.images} images with five captions, 40 % of the pairs mismatched, "
        f"batches of 128, embedding {options.embedding}; torch {torch.__version__}, threads: "
        f"{torch.get_num_threads()}. {options.note}"
    )
    return ["# Cost of an epoch", "", f"    {' '.join(words)}", "", textwrap.fill(conditions, 120), ""]


def render(matcher: str, data: Path, options: argparse.Namespace) -> str:
    seconds, pairs = measure(matcher, data, options)
    ends = np.cumsum([options.warmup, options.half])
    lines = [
        f"## `{matcher}`",
        "",
        f"A plain epoch took {np.median(seconds[PLAIN]):.2f} s.",
        "",
        "| method | networks | mean after warm-up | warm-up | first half | second half | learnt from |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, found in seconds.items():
        warmup, first, second = (float(np.median(part)) for part in np.split(found / seconds[PLAIN], ends))
        learnt_from = float(pairs[method][options.warmup :].mean())
        cells = " | ".join(f"{value:.1f}" for value in ((first + second) / 2, warmup, first, second, learnt_from))
        lines.append(f"| {method} | {METHODS[method].networks} | {cells} |")
    return "\n".join([*lines, ""])


def measure(
    matcher: str, data: Path, options: argparse.Namespace
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Seconds of each epoch of each method, in turns, and how often it learnt from a pair on average."""
    epochs = options.warmup + 2 * options.half
    chosen = {method: configure(method, matcher, data, options) for method in methods_for(matcher, options.methods)}
    trainings = {name: build.prepare(one, inputs.read_data(one)) for name, one in chosen.items()}
    for method, _ in trainings.values():
        torch.manual_seed(0)
        method.begin_piece(0)
    seconds, pairs = ({name: np.zeros(epochs) for name in trainings} for _ in range(2))
    for epoch in range(epochs):
        for name, (method, batches) in trainings.items():
            started = time.perf_counter()
            logs = list(method.train_epoch(batches, build.schedule(chosen[name]).clock(0, epoch, 0)))
            seconds[name][epoch] = time.perf_counter() - started
            pairs[name][epoch] = sum(log.pairs for log in logs if log.phase == "train") / len(batches.pairs)
    return seconds, pairs


def methods_for(matcher: str, asked: list[str] | None = None) -> list[str]:
    """All methods that go with a matcher, or those of them that were asked for; plain training first."""
    there = [
        name
        for name, record in METHODS.items()
        if matcher in record.matchers and (asked is None or name in (PLAIN, *asked))
    ]
    return sorted(there, key=lambda name: name != PLAIN)


def configure(method: str, matcher: str, data: Path, options: argparse.Namespace) -> config.Config:
    base = {
        "method": method,
        "matcher.name": matcher,
        "matcher.embedding": options.embedding,
        "data.path": str(data),
        "noise.rate": 0.4,
        "ledger.freeze_epochs": options.warmup,
        "train.pieces": [options.warmup + 2 * options.half],
    }
    warmups = {f"{section}.warmup": options.warmup for section in ("decl", "division", "mscn")}
    return config.load(preset="demo", base=base | warmups)


if __name__ == "__main__":
    main()
