"""What shuffling in blocks costs: a training with blocks of several sizes, against one that shuffles all pairs.

    python benchmarks/shuffle.py FLICKR8K --work WORK

The data is a precomp folder. It is trained on in the order that it has, and sorted by topic: its images are divided
into clusters by their features, and lie cluster by cluster, so that a block holds images of one topic alone. Runs are
written to WORK, and a finished one is not trained again.
"""

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import roc_auc_score

import crcl
from crcl.data.pairs import Pairs
from crcl.experiments.tables import spread

TOPICS = 50
BLOCKS = ((16, 64), (16, 16), (64, 4), (256, 1))
"""Images of a block, and blocks that are mixed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("shuffle"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--blocks", nargs="*", default=[f"{block}x{mixed}" for block, mixed in BLOCKS])
    parser.add_argument("--orders", nargs="*", default=["as is", "by topic"])
    parser.add_argument("--set", dest="settings", action="append", default=["train.pieces=[6]"])
    given = parser.parse_args()
    by_topic = sort(given.data, given.work / "sorted")
    lines = ["| images of a block | blocks mixed | images mixed | order | dev rSum | AUROC |", "|---" * 6 + "|"]
    for blocks, (order, data) in product(["0x1", *given.blocks], {"as is": given.data, "by topic": by_topic}.items()):
        block, mixed = map(int, blocks.split("x"))
        if order not in (given.orders if block else ["as is"]):  # of a whole shuffle the order does not matter
            continue
        rows = [trained(given, data, order, block, mixed, seed) for seed in range(given.seeds)]
        scores = " | ".join((spread([row["rsum"] for row in rows], 1), spread([row["auroc"] for row in rows], 3)))
        told = f"{block} | {mixed} | {block * mixed:,}" if block else "all | – | all"
        lines.append(f"| {told} | {order if block else 'any'} | {scores} |")
    print("\n".join(lines))


def sort(data: Path, folder: Path) -> Path:
    """The same data with its training images sorted by topic."""
    if (folder / "train_ids.txt").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    train = Pairs.of(data).split("train")
    means = np.concatenate([train.gather(np.array([image])).mean(1) for image in range(train.images)])
    topic = KMeans(TOPICS, n_init=1, random_state=0).fit_predict(means)
    images = np.argsort(topic, kind="stable")
    np.save(folder / "train_ims.npy", np.load(data / "train_ims.npy", mmap_mode="r")[images])
    shown = [[] for _ in images]  # type: list[list[str]]
    for caption, image in zip(train.captions, train.image_index.tolist(), strict=True):
        shown[image].append(caption)
    captions = [caption for image in images.tolist() for caption in shown[image]]
    (folder / "train_caps.txt").write_text("\n".join(captions) + "\n", "utf-8")
    for name in ("dev_ims.npy", "dev_caps.txt"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to((data / name).absolute())
    (folder / "train_ids.txt").write_text("".join(f"{train.image_ids[image]}\n" for image in images), "utf-8")
    return folder


def trained(given: argparse.Namespace, data: Path, order: str, block: int, mixed: int, seed: int) -> dict[str, Any]:
    """The best dev rSum of one training, and how well its beliefs tell mismatches; from its file if it is there."""
    name = f"{order.replace(' ', '-')}-{block}x{mixed}-{seed}"
    kept = given.work / f"{name}.json"
    if kept.is_file():
        return dict(json.loads(kept.read_text("utf-8")))
    how = [f"train.shuffle_block={block}", f"train.shuffle_mixed={mixed}"]
    run = crcl.train(
        data,
        given.work / name,
        preset="flickr8k-cpu",
        matcher="bow",
        noise=given.noise,
        seed=seed,
        settings=[*given.settings, "ledger.freeze_epochs=2", *how],
        overwrite=True,
    )
    clean = Pairs.of(data).split("train").image_index
    truth = clean == np.asarray(run.noise())
    row = {
        "rsum": max(epoch["dev"]["rsum"] for epoch in run.metrics()),
        "auroc": float(roc_auc_score(truth, run.load_ledger())),
    }
    kept.write_text(json.dumps(row), "utf-8")
    return row


if __name__ == "__main__":
    main()
