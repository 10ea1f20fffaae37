"""What 200 verdicts are worth: detection among the pairs without one, and the estimates by decoys, beside the truth.

    python benchmarks/verdicts.py DATA --work WORK --pairs 4000 --seeds 3

DATA is a precomp folder (measured: Flickr8k, of which the first pairs are taken, and the scenes of `crcl demo`). 40 %
of the pairs are mismatched, 5 % random decoys are added. Trained are relink's linear model alone and CRCL. Verdicts are
the truth: on the 200 pairs that the first run believes least (worst first), or on 100 that it flags and 100 that it
does not, drawn at random (sample), as on the page of `crcl serve`. Then the same training runs again with them. Runs go
to WORK and are resumed; a finished one is not trained again.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from few import WAYS, first
from sklearn.metrics import roc_auc_score

import crcl
from crcl.auditing.estimate import Estimate
from crcl.auditing.review.sample import Stratum, measure
from crcl.auditing.thresholds import read_correspondences
from crcl.data.split import Split
from crcl.runs.describe import stored_config
from crcl.runs.exchange.files import COLUMNS, write_verdicts
from crcl.runs.exchange.matching import Pairing
from crcl.runs.folder import Run
from crcl.terminal import Terminal
from crcl.training.inputs import audited_pairs

QUEUES = ("worst first", "sample")
HEADER = (
    "| trained | verdicts | wrong among them | AUROC of the others, before | after | rate, error before | after | "
    "precision, error before | after | by the sample | recall, error before | after | by the sample |"
)


class Errors(NamedTuple):
    """How far estimates are from the truth: estimate less truth."""

    rate: float
    precision: float
    recall: float


def main(words: Sequence[str] | None = None) -> None:
    options = parse(words)
    data = (
        options.data
        if options.pairs is None
        else first(options.data, options.work / f"first-{options.pairs}", options.pairs)
    )
    lines = [HEADER, "|" + "---|" * (HEADER.count("|") - 1)]
    for way in options.ways:
        for queue in QUEUES:
            found = [measured(options, data, way, queue, seed) for seed in range(options.seeds)]
            cells = [", ".join(one) for one in zip(*found, strict=True)]
            lines.append(f"| {way} | {queue} | {' | '.join(cells)} |")
    print("\n".join(lines))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a precomp folder")
    parser.add_argument(
        "--work", type=Path, default=Path("verdicts"), help="folder for the data that is made, and runs"
    )
    parser.add_argument("--pairs", type=int, help="how many training pairs to take; else all")
    parser.add_argument("--ways", nargs="+", default=["linear model alone", "CRCL [3, 3, 13]"], choices=list(WAYS))
    parser.add_argument("--verdicts", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--preset", default="flickr8k-cpu")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in crcl train")
    return parser.parse_args(words)


def measured(options: argparse.Namespace, data: Path, way: str, queue: str, seed: int) -> list[str]:
    """The cells of one seed."""
    base = trained(options, data, way, seed, "none")
    pairs = audited_pairs(base, stored_config(base))
    truth, before = pairs.truth, read_correspondences(base)
    assert truth is not None
    assert before.correspondence is not None
    chosen = queued(before.correspondence, before.estimate, queue, options.verdicts, seed)
    file = options.work / f"{base.path.name}-{queue.split()[0]}.jsonl"
    write_verdicts(file, spoken(pairs, truth, chosen), overwrite=True)
    run = trained(options, data, way, seed, queue.split()[0], verdicts=file)
    after = read_correspondences(run)
    assert after.correspondence is not None
    rest = np.setdiff1d(np.arange(len(pairs)), chosen)
    aurocs = [roc_auc_score(truth[rest], one[rest]) for one in (before.correspondence, after.correspondence)]
    errors = [off(one.estimate, one.correspondence, truth) for one in (before, after)]
    flagged = before.correspondence < (0.1 if before.estimate is None else before.estimate.best_f1())
    alone = by_sample(flagged, truth, chosen) if queue == "sample" else (np.nan, np.nan)
    numbers = [errors[0].rate, errors[1].rate, errors[0].precision, errors[1].precision, alone[0]]
    numbers += [errors[0].recall, errors[1].recall, alone[1]]
    cells = [f"{(~truth[chosen]).sum()}", *(f"{value:.3f}" for value in aurocs)]
    return [*cells, *("–" if np.isnan(value) else f"{100 * value:+.1f}" for value in numbers)]


def by_sample(flagged: np.ndarray, truth: np.ndarray, chosen: np.ndarray) -> tuple[float, float]:
    """How far precision and recall are from the truth that the sample alone measures, without any training."""
    strata = []
    for group in (flagged, ~flagged):
        right = int(truth[chosen][group[chosen]].sum())
        strata.append(Stratum(int(group.sum()), right=right, wrong=int(group[chosen].sum()) - right))
    found = measure(*strata)
    assert found.precision is not None
    assert found.recall is not None
    return float(found.precision - (~truth[flagged]).mean()), float(found.recall - flagged[~truth].mean())


def queued(beliefs: np.ndarray, estimate: Estimate | None, queue: str, count: int, seed: int) -> np.ndarray:
    """The pairs that are looked at."""
    if queue == "worst first":
        return np.argsort(beliefs, kind="stable")[:count]
    flagged = beliefs < (0.1 if estimate is None else estimate.best_f1())
    rng = np.random.default_rng([seed, 0x5A])
    return np.concatenate([rng.permutation(np.flatnonzero(group))[: count // 2] for group in (flagged, ~flagged)])


def spoken(pairs: Split, truth: np.ndarray, chosen: np.ndarray) -> list[dict[str, Any]]:
    """The truth of some pairs as verdicts."""
    known, lines = Pairing(pairs), []
    for number in chosen.tolist():
        row = known.rows[number]
        image, caption = known.shown(row)
        said = {"row": row, "image": image, "caption": caption, "verdict": "right" if truth[number] else "wrong"}
        lines.append(dict.fromkeys(COLUMNS) | said)
    return lines


def off(estimate: Estimate | None, beliefs: np.ndarray, truth: np.ndarray) -> Errors:
    """How far an estimate is from the truth, at its own threshold of the best F1."""
    if estimate is None:
        return Errors(np.nan, np.nan, np.nan)
    threshold = estimate.best_f1()
    told, flagged = estimate.at(threshold), beliefs < threshold
    precision, recall = (~truth[flagged]).mean(), flagged[~truth].mean()
    return Errors(estimate.rate - (~truth).mean(), told.precision - precision, told.recall - recall)


def trained(
    options: argparse.Namespace, data: Path, way: str, seed: int, name: str, *, verdicts: Path | None = None
) -> Run:
    return crcl.train(
        data,
        options.work / f"{data.stem}-{way.split()[0]}-{seed}-{name}",
        **WAYS[way],
        preset=options.preset,
        noise=options.rate,
        decoys=0.05,
        verdicts=verdicts,
        seed=seed,
        settings=["train.lr=0.001", *options.settings],
        resume=True,
        progress=Terminal(),
    )


if __name__ == "__main__":
    main()
