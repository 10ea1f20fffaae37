"""The table of docs/results/matchers.md from what `crcl reproduce` trained, and the processor's time of an epoch.

    crcl reproduce benchmarks/matchers.toml --data small --seeds 1 --set train.lr=0.001 --set matcher.embedding=128
    python benchmarks/matchers.py reproduce
    python benchmarks/matchers.py reproduce --epochs

rSum is of the test split, AUROC of the beliefs against the injected mismatches, both of finished runs; several seeds
are mean ± standard deviation. `--epochs` trains two epochs more of each kind in a scratch folder, on one core, and
gives the processor's seconds of the second, so that other work on the machine matters little.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from detection import runs_in

import crcl
from crcl.config import Config
from crcl.experiments.tables import spread
from crcl.metrics import detection
from crcl.progress import Clock, Progress, StepLog
from crcl.retrieval.opening import open_scorer
from crcl.training import inputs, session

Kind = tuple[str, str]
"""Matcher and method."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of `crcl reproduce`")
    parser.add_argument("--epochs", action="store_true", help="also the processor's time of an epoch")
    options = parser.parse_args()
    print("\n".join(table(list(runs_in(options.folder)), timed=options.epochs)))


def table(folders: Sequence[Path], *, timed: bool = False) -> list[str]:
    """Lines of a Markdown table: a row for each matcher and method, of all rates and seeds."""
    found: dict[Kind, dict[float, list[tuple[float, float | None]]]] = {}
    first: dict[Kind, Config] = {}
    for folder in folders:
        config, scores = measured(folder)
        kind = config.matcher.name, config.method
        found.setdefault(kind, {}).setdefault(config.noise.rate, []).append(scores)
        first.setdefault(kind, config)
    rates = sorted({rate for by_rate in found.values() for rate in by_rate})
    columns = [f"rSum, {100 * rate:g} %" if rate else "rSum, none" for rate in rates]
    columns += [f"AUROC, {100 * rate:g} %" for rate in rates if rate]
    lines = [f"| matcher | method | {' | '.join(columns)} |" + " s per epoch |" * timed]
    lines.append("|" + "---|" * (len(columns) + 2 + timed))
    for kind in sorted(found):
        by_rate = found[kind]
        cells = [_cell([rsum for rsum, _ in by_rate.get(rate, [])], 1) for rate in rates]
        cells += [_cell([auroc for _, auroc in by_rate.get(rate, [])], 3) for rate in rates if rate]
        took = [f"{seconds(first[kind]):.1f}"] if timed else []
        lines.append(f"| `{kind[0]}` | {' | '.join([kind[1], *cells, *took])} |")
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
