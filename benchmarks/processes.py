"""Throughput of a training that 1, 2 and 4 processes share, and a model of the time of a step, fitted on it.

    python benchmarks/processes.py --out docs/results/processes.md

Drawn scenes, a matcher of whole vectors and one that compares regions with words. Each number of processes trains in
turn, several times over. Seconds of the processor are of the busiest process, without what it spends in exchanges; they
say how long a step takes where each process has a core of its own, which a machine with fewer or busy cores does not
show on its clock. Exchanges are timed alone, by all-reduce and all-gather of 1 KB to 16 MB: the quickest of many, since
any other includes waiting for a busy core.

    step(P) = own + shared / P + exchanges · latency · log2(P) + bytes moved · seconds per byte

`own` is what each of P processes does for itself, `shared` what they divide. An all-reduce moves 2 (P - 1) / P of its
bytes through each process, an all-gather (P - 1) / P.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from plan import moved

from crcl import config, distributed
from crcl.data import scenes
from crcl.features.grid import grid_features
from crcl.training import build, inputs

MATCHERS = {
    "vse": ["matcher.embedding=512"],
    "sgr": ["matcher.embedding=128", "matcher.similarity=64"],
}
"""The matchers that are trained, with their sizes."""
SIZES = [2**power for power in range(10, 25, 2)]
"""Bytes of the exchanges that are timed alone."""


def main() -> None:
    options = parse()
    if options.worker is not None:
        work(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "scenes"
        scenes.write(data, describe=grid_features, train=options.images, dev=4, test=2)
        found = [
            measured(options, processes, data) for _ in range(options.rounds) for processes in options.processes
        ]  # in turns: what else the machine does is the same for all
    report = render(options, found)
    print(report)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(report + "\n", encoding="utf-8")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--images", type=int, default=200, help="training images, with five captions each")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8, help="steps measured in each turn, after two others")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="", help="what to say of the machine")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def measured(options: argparse.Namespace, processes: int, data: Path) -> dict[str, Any]:
    """What so many processes measure."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    words = [__file__, "--worker", str(data), "--batch", str(options.batch), "--steps", str(options.steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    told = subprocess.run([*launcher, *words], env=environment, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(told.splitlines()[-1]))


def work(options: argparse.Namespace) -> None:
    """One of the processes that `torchrun` started: measures, and the first one prints what all found."""
    torch.set_num_threads(1)
    with distributed.processes():
        own = {name: steps(options, name) for name in MATCHERS}
        everyone = [json.loads(part) for part in distributed.collect(json.dumps(own).encode())]
        exchanged = exchanges() if distributed.together() > 1 else {}
        if distributed.is_first():
            found = {
                name: {
                    **everyone[0][name],  # all exchange the same
                    "clock": float(np.median(everyone[0][name]["clock"])),
                    "processor": max(float(np.median(each[name]["processor"])) for each in everyone),
                }
                for name in MATCHERS
            }
            print(json.dumps({"processes": distributed.together(), "steps": found, "exchanges": exchanged}))


def steps(options: argparse.Namespace, matcher: str) -> dict[str, Any]:
    """Seconds of steps by the clock, and of the processor outside of exchanges; what is exchanged in a step."""
    settings = [f"matcher.name={matcher}", *MATCHERS[matcher], f"train.batch_size={options.batch}"]
    given = config.load(
        preset="demo",
        base={"data.path": str(options.worker), "noise.rate": 0.4, "method": "crcl", "train.device": "cpu"},
        settings=[*settings, "ledger.freeze_epochs=1", "train.pieces=[9]"],
    )
    torch.manual_seed(0)
    method, batches = build.prepare(given, inputs.read_data(given))
    method.begin_piece(0)
    counted = Exchanges()
    clock, processor = [], []
    with counted:
        log = method.train_epoch(batches, build.schedule(given).clock(0, 0, 0))
        for number in range(options.steps + 2):
            counted.clear()
            started, used = time.perf_counter(), time.process_time()
            next(log)
            if number >= 2:
                clock.append(time.perf_counter() - started)
                processor.append(time.process_time() - used - counted.processor)
    told = {"exchanges": counted.count, "gathered": counted.gathered, "reduced": counted.reduced}
    return {"clock": clock, "processor": processor, **told}


class Exchanges:
    """Counts what is exchanged, and the seconds of the processor that this takes."""

    def __init__(self) -> None:
        self.exchange = distributed._exchange
        self.clear()

    def clear(self) -> None:
        self.count, self.gathered, self.reduced, self.processor = 0, 0, 0, 0.0

    def __enter__(self) -> None:
        distributed._exchange = self.run

    def __exit__(self, *error: object) -> None:
        distributed._exchange = self.exchange

    def run(self, collective: Callable[..., Any], *arguments: Any) -> None:
        used = time.process_time()
        self.exchange(collective, *arguments)
        self.processor += time.process_time() - used
        self.count += 1
        if collective is dist.all_gather:
            self.gathered += sum(tensor.nbytes for tensor in arguments[0])
        else:
            self.reduced += arguments[0].nbytes


def exchanges(repeats: int = 30) -> dict[str, list[float]]:
    """The shortest time of an all-reduce and of an all-gather of each size, of all processes together. [bytes, s]"""
    count, found = distributed.together(), {"reduced": [], "gathered": []}  # type: int, dict[str, list[float]]
    for size in SIZES:
        whole = torch.zeros(size // 4)
        parts = [torch.zeros(max(1, size // 4 // count)) for _ in range(count)]
        for name, exchange in (
            ("reduced", lambda whole=whole: dist.all_reduce(whole)),
            ("gathered", lambda parts=parts: dist.all_gather(parts, parts[0])),
        ):
            seconds = []
            for _ in range(repeats):
                dist.barrier()
                started = time.perf_counter()
                exchange()
                seconds.append(time.perf_counter() - started)
            found[name].append(min(seconds))
    return found


def fit_exchanges(found: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Latency (s) and seconds per byte of an exchange, and the median relative residual; by relative least squares."""
    best: dict[tuple[int, str, int], float] = {}
    for turn in found:
        for name, seconds in turn["exchanges"].items():
            for size, took in zip(SIZES, seconds, strict=True):
                key = turn["processes"], name, size
                best[key] = min(took, best.get(key, math.inf))
    rows = np.array([[math.log2(count), moved(count, **{name: size})] for count, name, size in best])
    took = np.array(list(best.values()))
    scale = rows.max(0)
    solved = np.linalg.lstsq(rows / scale / took[:, None], np.ones(len(took)), rcond=None)[0] / scale
    residual = float(np.median(np.abs(rows @ solved / took - 1)))
    return float(solved[0]), float(solved[1]), residual


def fit_compute(seconds: dict[int, float]) -> tuple[float, float]:
    """`own` and `shared` of the seconds of a step by the number of processes, by relative least squares."""
    counts, took = np.array(list(seconds)), np.array(list(seconds.values()))
    rows = np.stack([np.ones(len(counts)), 1 / counts], axis=1) / took[:, None]
    own, shared = np.linalg.lstsq(rows, np.ones(len(took)), rcond=None)[0]
    if own < 0:
        own, shared = 0.0, float((rows[:, 1].sum()) / (rows[:, 1] ** 2).sum())
    return float(own), float(shared)


def render(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    latency, per_byte, residual = fit_exchanges(found)
    told = (
        f"Drawn scenes, {options.images} images with five captions, CRCL, batches of {options.batch} pairs whatever "
        f"the number of processes, torch {torch.__version__}, gloo, one thread each; median of {options.steps} "
        f"steps of {options.rounds} turns. {options.note}"
    )
    command = f"python benchmarks/processes.py --images {options.images} --batch {options.batch} "
    command += f"--steps {options.steps} --rounds {options.rounds}"
    lines = ["# Throughput in several processes", "", f"    {command}", "", textwrap.fill(told, 120), ""]
    lines += [
        "| matcher | processes | processor, s a step | against one | model, s | residual | exchanges | MB gathered "
        "| MB reduced | exchanges by the model, s | whole step by the model, s | on the clock here, s |",
        "|---" * 12 + "|",
    ]
    for name in MATCHERS:
        turns = {
            count: [turn["steps"][name] for turn in found if turn["processes"] == count] for count in options.processes
        }
        used = {count: float(np.median([turn["processor"] for turn in each])) for count, each in turns.items()}
        own, shared = fit_compute(used)
        for count, each in turns.items():
            model, last = own + shared / count, each[-1]
            through = moved(count, reduced=last["reduced"], gathered=last["gathered"])
            between = last["exchanges"] * latency * math.log2(count) + through * per_byte if count > 1 else 0.0
            clock = float(np.median([turn["clock"] for turn in each]))
            first = used[options.processes[0]]
            cells = [
                f"`{name}`", f"{count}", f"{used[count]:.3f}", f"{first / used[count]:.2f}", f"{model:.3f}",
                f"{model / used[count] - 1:+.1%}", f"{last['exchanges']}", f"{last['gathered'] / 1e6:.2f}",
                f"{last['reduced'] / 1e6:.2f}", f"{between:.4f}", f"{model + between:.3f}", f"{clock:.3f}",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    fitted = (
        f"Exchanges alone: {1e6 * latency:.0f} µs · log2(P) and {1e-9 / per_byte:.2f} GB/s through each process; "
        f"median residual {residual:.0%} over {len(SIZES)} sizes, two kinds, and each number of processes."
    )
    return "\n".join([*lines, "", textwrap.fill(fitted, 120)])


if __name__ == "__main__":
    main()
