"""The table of docs/results/matchers.md from what `crcl reproduce` trained, and the processor's time of an epoch.

    crcl reproduce benchmarks/matchers.toml --data small --seeds 1 --set train.lr=0.001 --set matcher.embedding=128
    python benchmarks/matchers.py reproduce
    python benchmarks/smaller.py data/flickr8k few --train 300 --dev 100 --grid 3
    python benchmarks/matchers.py few --seconds triplet

rSum is of the test split, AUROC of the beliefs against the injected mismatches, both of finished runs; several seeds
are mean ± standard deviation. With `--seconds` every matcher is trained for two epochs on a folder of data, on one
core, as in the table, and the processor's time of the second counts, so that other work on the machine matters little.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from detection import runs_in

import crcl
from crcl import experiments
from crcl.config import Config
from crcl.experiments.planning import Planner
from crcl.experiments.tables import spread
from crcl.matchers import MATCHERS
from crcl.metrics import detection
from crcl.progress import Clock, Progress, StepLog
from crcl.retrieval.opening import open_scorer
from crcl.training import inputs, session

SETTINGS = ("train.lr=0.001", "matcher.embedding=128")
"""What the command above sets for every run."""
Kind = tuple[str, str]
"""Matcher and method."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of `crcl reproduce`; with --seconds, of data")
    parser.add_argument("--seconds", metavar="METHOD", help="the processor's seconds of training 1,000 pairs by it")
    options = parser.parse_args()
    lines = table(list(runs_in(options.folder))) if options.seconds is None else costs(options.folder, options.seconds)
    for line in lines:
        print(line, flush=True)


def costs(data: Path, method: str) -> Iterator[str]:
    """Lines of a Markdown table: the processor's seconds of training 1,000 pairs, for each matcher."""
    planner = Planner(experiments.profile("cpu"), data, seeds=1, settings=SETTINGS, rates=(0.4,))
    block = planner.blocks(experiments.experiment(str(Path(__file__).with_suffix(".toml"))))[0]
    yield from ("| matcher | s per 1,000 pairs |", "|---|---|")
    for entry in block.entries:
        config = entry.trials[0].jobs[0].config
        if config.method == method and not MATCHERS[config.matcher.name].closed_form:
            pairs = len(inputs.open_pairs(config).split("train"))
            yield f"| `{config.matcher.name}` | {1000 * seconds(config) / pairs:.2f} |"


def table(folders: Sequence[Path]) -> list[str]:
    """Lines of a Markdown table: a row for each matcher and method, of all rates and seeds."""
    found: dict[Kind, dict[float, list[tuple[float, float | None]]]] = {}
    for folder in folders:
        config, scores = measured(folder)
        kind = config.matcher.name, config.method
        found.setdefault(kind, {}).setdefault(config.noise.rate, []).append(scores)
    rates = sorted({rate for by_rate in found.values() for rate in by_rate})
    columns = [f"rSum, {100 * rate:g} %" if rate else "rSum, none" for rate in rates]
    columns += [f"AUROC, {100 * rate:g} %" for rate in rates if rate]
    lines = [f"| matcher | method | {' | '.join(columns)} |"]
    lines.append("|" + "---|" * (len(columns) + 2))
    for kind in sorted(found):
        by_rate = found[kind]
        cells = [_cell([rsum for rsum, _ in by_rate.get(rate, [])], 1) for rate in rates]
        cells += [_cell([auroc for _, auroc in by_rate.get(rate, [])], 3) for rate in rates if rate]
        lines.append(f"| `{kind[0]}` | {' | '.join([kind[1], *cells])} |")
    return lines


def measured(folder: Path) -> tuple[Config, tuple[float, float | None]]:
    """The settings of a run, its test rSum, and the AUROC of its beliefs where there were mismatches."""
    run, config, _ = open_scorer(folder)
    audited = inputs.audited_pairs(run, config, inputs.open_pairs(config))
    found = None if audited.truth is None else detection(run.load_ledger(), audited.truth, threshold=0.5)
    return config, (crcl.evaluate(run.path).rsum, None if found is None else found.auroc)


def seconds(config: Config) -> float:
    """Processor's seconds of the steps of an epoch, on one core, without its evaluation on dev."""
    torch.set_num_threads(1)
    short = config.train.model_copy(update={"pieces": (2,), "lr_update": 2})
    clock = _SecondEpoch()
    with tempfile.TemporaryDirectory() as folder:
        session.train(config.model_copy(update={"train": short}), Path(folder) / "run", progress=clock)
    return clock.seconds


class _SecondEpoch(Progress):
    """Measures the last epoch; the first one warms up."""

    started = seconds = 0.0

    def epoch_started(self, clock: Clock, steps: int) -> None:
        self.started = time.process_time()

    def step_done(self, clock: Clock, log: StepLog) -> None:
        self.seconds = time.process_time() - self.started


def _cell(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return spread(known, digits) if known else "–"


if __name__ == "__main__":
    main()
