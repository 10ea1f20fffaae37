"""How well finished runs retrieve, find their mismatched pairs, and agree with people.

    crcl reproduce benchmarks/methods.toml --data DATA --matcher bow --set train.lr=0.001 --out reproduce
    python benchmarks/detection.py reproduce --crowd human_crowd.txt

Takes the folder that `crcl reproduce` wrote to, or single run folders. rSum is that of the test split. Detection of
the mismatched training pairs is by a run's beliefs and by the similarity of its best matcher. `--crowd` are people's
judgements of test pairs (Flickr8k's human_crowd.txt); without it that column is empty. Runs that differ in their
seeds alone are one row, mean ± standard deviation. Runs without injected mismatches have no detection scores. Seconds
are those of all epochs, with what a method does before and after them; an epoch after the first counts at most ten
times the median, so that a long pause does not count.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from crcl.config import Config, differences, to_dict
from crcl.data.split import Split
from crcl.experiments.tables import spread
from crcl.metrics import detection, retrieval
from crcl.retrieval.opening import open_scorer
from crcl.runs.describe import describe_noise
from crcl.runs.folder import Run
from crcl.training import inputs

COLUMNS = ("rSum", "beliefs AUROC", "beliefs AP", "similarity AUROC", "people AUROC", "seconds")
DECIMALS = {"rSum": 1, "seconds": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of `crcl reproduce`, or run folders")
    parser.add_argument("--crowd", type=Path, help="people's judgements of test pairs")
    options = parser.parse_args()
    print(render([path for folder in options.folders for path in runs_in(folder)], options.crowd))


def runs_in(folder: Path) -> Iterator[Path]:
    """The folder itself if it is a run, else the finished runs that `crcl reproduce` keeps in it."""
    if (folder / "config.json").is_file():
        yield folder
    else:
        yield from (marker.parent for marker in sorted(folder.glob("runs/*/finished")))


def render(paths: Sequence[Path], crowd: Path | None) -> str:
    """A Markdown table with a row for all seeds of one training."""
    rows: dict[str, list[dict[str, float]]] = {}
    configs: dict[str, Config] = {}
    names: dict[str, str] = {}
    for path in paths:
        run, config, values = measured(path, crowd)
        key = json.dumps(_without_seeds(config))
        rows.setdefault(key, []).append(values)
        configs.setdefault(key, config)
        names.setdefault(key, run.path.name)
    labels = {key: f"{_label(config, list(configs.values()))}, {names[key]}" for key, config in configs.items()}
    lines = [f"| run | {' | '.join(COLUMNS)} | seeds |", "|---|" + "---|" * (len(COLUMNS) + 1)]
    for key in sorted(rows, key=lambda key: labels[key]):
        found = rows[key]
        cells = [spread([one[name] for one in found if name in one], DECIMALS.get(name, 3)) for name in COLUMNS]
        lines.append(f"| {labels[key]} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(lines)


def measured(path: Path, crowd: Path | None) -> tuple[Run, Config, dict[str, float]]:
    run, config, scorer = open_scorer(path)
    pairs = inputs.open_pairs(config)
    audited = inputs.audited_pairs(run, config, pairs)
    test = pairs.split("test")
    sims = scorer.similarities(test)
    values: dict[str, float] = {"rSum": retrieval(sims, test.image_index).rsum, "seconds": seconds(path)}
    if audited.truth is not None:
        by_belief = detection(run.load_ledger(), audited.truth, threshold=0.5)
        by_similarity = detection(scorer.pair_similarities(audited), audited.truth, threshold=0.5)
        if by_belief is not None and by_similarity is not None:
            values |= {"beliefs AUROC": by_belief.auroc, "beliefs AP": by_belief.average_precision}
            values["similarity AUROC"] = by_similarity.auroc
    if crowd is not None:
        values["people AUROC"] = agreement(sims, test, crowd)
    return run, config, values


def seconds(folder: Path) -> float:
    """Seconds of training; methods that judge all pairs after some epochs have epochs of very different lengths."""
    timing = [json.loads(line)["seconds"] for line in (folder / "timing.jsonl").read_text("utf-8").splitlines()]
    return float(timing[0] + np.minimum(timing[1:], 10 * np.median(timing)).sum())


def agreement(sims: np.ndarray, test: Split, crowd: Path) -> float:
    """AUROC of the similarities against people's judgements; pairs of an image with its own captions are left out."""
    image_row = {name: row for row, name in enumerate(test.image_ids)}
    captions_of: dict[int, list[int]] = {}
    for caption, image in enumerate(test.image_index.tolist()):
        captions_of.setdefault(image, []).append(caption)
    scores, matches = [], []
    for line in crowd.read_text("utf-8").splitlines():
        image, caption, share, *_ = line.split("\t")
        owner, _, number = caption.rpartition("#")
        if image == owner or image not in image_row or owner not in image_row:
            continue
        scores.append(sims[image_row[image], captions_of[image_row[owner]][int(number)]])
        matches.append(float(share) > 0.5)
    return float(roc_auc_score(matches, scores))


def _label(config: Config, all_configs: Sequence[Config]) -> str:
    """What is trained and how; settings in which runs differ that are told the same are named."""
    sections = {*config.record.sections, "matcher", "train"}
    keys = {
        key
        for other in all_configs
        if _told(other) == _told(config)
        for key in differences(other, config)
        if key.partition(".")[0] in sections and key != "train.seed"
    }
    return ", ".join([_told(config), *(f"{key}={config.get(key)}" for key in sorted(keys))])


def _told(config: Config) -> str:
    noise = (
        f"{describe_noise(config).partition(', seed')[0]} mismatched"
        if config.noise.rate or config.noise.file
        else "no mismatches"
    )
    return f"{config.method} on {config.matcher.name}, {noise}, pieces {list(config.schedule_pieces())}"


def _without_seeds(config: Config) -> dict[str, object]:
    plain = to_dict(config)
    plain["train"] = plain["train"] | {"seed": 0}
    plain["noise"] = plain["noise"] | {"seed": 0}
    return plain


if __name__ == "__main__":
    main()
