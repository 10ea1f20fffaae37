"""What each score of a quick audit detects, how right what decoys tell is, and whether the best score is taken.

    python benchmarks/scores.py DATA --work WORK --rates 0.1 0.2 0.4 0.6 0.8 --seeds 3
    python benchmarks/scores.py DATA --work WORK --model MODEL --picture docs/images/reliability.png

DATA is a precomp folder (measured: Flickr8k and the drawn scenes). With MODEL, a sentence encoder, the regions of each
image are averaged and captions become vectors. At each rate that share of the training captions is mismatched at
random; one more audit has near and swap mismatches too (`--mixed`), and decoys of all kinds. The mismatches are in the
data that is audited, and the truth lies beside it for this benchmark alone. Data, audits and results are written to
WORK. An audit whose result is in WORK is not repeated.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mismatches
import numpy as np
import score_tables
import vectors
from sklearn.metrics import average_precision_score, roc_auc_score

import crcl
from crcl.auditing.estimate import Estimate
from crcl.auditing.scores.of_run import stored_scores
from crcl.auditing.scores.rating import BY_NAME_ONLY
from crcl.auditing.thresholds import Correspondences, read_correspondences
from crcl.data.decoys import KINDS
from crcl.runs.folder import Run
from crcl.terminal import Terminal

BINS = 10
"""Of a reliability table, equally wide."""
Row = dict[str, Any]


def main() -> None:
    options = parse()
    rows = []
    for seed in range(options.seeds):
        plain: list[dict[str, float]] = [{"random": rate} for rate in options.rates]
        mixed = [dict(zip(KINDS, options.mixed, strict=True))] if any(options.mixed) else []
        rows += [measured(options, shares, seed) for shares in plain + mixed]
    print(score_tables.render(rows))
    if options.picture is not None:
        score_tables.picture(rows, options.picture)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a precomp folder")
    parser.add_argument("--work", type=Path, default=Path("scores"), help="folder for data that is made, and audits")
    parser.add_argument("--model", help="a sentence encoder: the folder of a saved one, or a hub name")
    parser.add_argument("--rates", nargs="*", type=float, default=[0.1, 0.2, 0.4, 0.6, 0.8])
    parser.add_argument("--mixed", nargs=3, type=float, default=[0.2, 0.1, 0.1], help="random, near, swap; 0s: none")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--decoys", type=float, help="share of the pairs; as audits do, if not given")
    parser.add_argument("--picture", type=Path, help="a PNG to draw the reliability of p_wrong to")
    return parser.parse_args(words)


def measured(options: argparse.Namespace, shares: dict[str, float], seed: int) -> Row:
    """The numbers of one audit, from its file if it is there."""
    name = "-".join(f"{kind}{share:g}" for kind, share in shares.items() if share) + f"-{seed}"
    kept = options.work / f"{name}.json"
    if kept.is_file():
        return json.loads(kept.read_text("utf-8"))  # type: ignore[no-any-return]
    source = options.data
    if options.model is not None:
        source = options.work / "vectors"
        if not (source / mismatches.VECTORS[-1]).is_file():
            vectors.write(options.data, source, options.model)
    data = options.work / f"data-{name}"
    mismatches.write(source, data, shares, seed, model=options.model)
    audit = crcl.audit(
        mismatches.opened(data),
        options.work / name,
        quick=True,
        suggest=0,
        decoys=options.decoys,
        decoy_kinds=list(KINDS)[: len(shares)],
        seed=seed,
        progress=Terminal(),
    )
    row = {"shares": shares, "seed": seed, **judged(audit.run, np.load(data / "kinds.npy"))}
    kept.write_text(json.dumps(row), encoding="utf-8")
    return row


def judged(run: Run, kinds: np.ndarray) -> Row:
    """The numbers of each score, and which was taken.

    Args:
        run: The run of an audit.
        kinds: (N,) what was done to each pair; empty where it matches.
    """
    scores = stored_scores(run)
    ratings = scores.ratings()
    found = {
        name: {"decoys": ratings[name].auroc, "error": ratings[name].error}
        | score_numbers(read_correspondences(run, name), kinds)
        for name in scores.names
    }
    free = [name for name in found if name not in BY_NAME_ONLY]
    best = max(free, key=lambda name: found[name]["auroc"])
    taken = scores.choose(None, ratings)
    return {"rate": float((kinds != "").mean()), "taken": taken, "best": best, "scores": found}


def score_numbers(found: Correspondences, kinds: np.ndarray) -> Row:
    """Detection, and what an audit by one score tells beside what is true."""
    pairs, wrong, estimated = found.correspondence, kinds != "", found.estimate
    row: Row = {
        "auroc": roc_auc_score(wrong, -pairs),
        "ap": average_precision_score(wrong, -pairs),
        "auroc_of": {
            kind: roc_auc_score(kinds[~wrong | (kinds == kind)] == kind, -pairs[~wrong | (kinds == kind)])
            for kind in np.unique(kinds[wrong])
        },
    }
    if estimated is None:
        return row
    threshold = estimated.best_f1()
    flagged = pairs < threshold
    true = {kind: float(flagged[kinds == kind].mean()) for kind in np.unique(kinds[wrong])}
    return row | {
        "rate": estimated.rate,
        "rate_interval": [estimated.low, estimated.high],
        **flagged_numbers(estimated, threshold, wrong),
        "recall_told": found.recall(threshold),
        "recall_true": true | {"all": float(flagged[wrong].mean())},
        "reliability": reliability(found.p_wrong(), wrong),
    }


def flagged_numbers(estimated: Estimate, threshold: float, wrong: np.ndarray) -> Row:
    """Precision at a threshold, estimated with its interval and true, and the interval of recall."""
    flagged = estimated.correspondence < threshold
    interval = estimated.precision_interval(threshold)
    return {
        "flagged": int(flagged.sum()),
        "precision": estimated.at(threshold).precision if flagged.any() else None,
        "precision_interval": interval,
        "precision_true": float(wrong[flagged].mean()) if flagged.any() else None,
        "recall_interval": estimated.recall_interval(threshold),
    }


def reliability(p_wrong: np.ndarray, wrong: np.ndarray) -> list[list[float]]:
    """For equally wide bins of p_wrong: pairs, mean p_wrong, and the share of them that is wrong."""
    place = np.minimum((p_wrong * BINS).astype(int), BINS - 1)
    return [
        [int(own.sum()), float(p_wrong[own].mean()), float(wrong[own].mean())] if own.any() else [0, 0.0, 0.0]
        for own in (place == number for number in range(BINS))
    ]


if __name__ == "__main__":
    main()
