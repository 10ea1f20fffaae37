"""Copies of data with mismatched training captions, whose truth is known: for benchmarks, which import this.

A copy is a precomp folder, or a table with features and vectors of captions beside it, as `vectors.py` writes one.
Dev and test stay as they are. `kinds.npy` says of each training pair what was done to it, and no audit sees it:
empty (it matches), `random` (a caption of another image), `near` (its caption was exchanged for that of an image among
the ten most like its own) or `swap` (one word was exchanged for another).
"""

import csv
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np

import crcl
from crcl.data.decoys import READ, SIMILAR
from crcl.data.duplicates import folded
from crcl.data.nearby import nearest_images
from crcl.data.noise import mismatch
from crcl.data.pairs import Pairs
from crcl.data.split import Split
from crcl.data.text.swaps import count_listed, swap
from crcl.terminal import Terminal

TABLE = "pairs.csv"
VECTORS = ("features.npy", "ids.txt", "text_features.npy")


def opened(folder: Path) -> Pairs:
    """The pairs of a precomp folder, or of a table with features and vectors of captions beside it."""
    if not (folder / TABLE).is_file():
        return crcl.read(folder)
    features, ids, texts = (folder / name for name in VECTORS)
    return crcl.read(folder / TABLE, features=features, ids=ids, text_features=texts)


def write(source: Path, folder: Path, shares: Mapping[str, float], seed: int, *, model: str | None = None) -> None:
    """Write a copy with mismatches, unless it is there.

    Args:
        source: A precomp folder, or one with a table and vectors.
        folder: The copy; `kinds.npy` is written last.
        shares: The share of the training pairs to mismatch, by kind.
        seed: Seed of the draw.
        model: The sentence encoder that made the vectors of captions, if there are any.
    """
    if (folder / "kinds.npy").is_file():
        return
    train = opened(source).split("train")
    captions, kinds = mismatched(train, shares, seed)
    folder.mkdir(parents=True, exist_ok=True)
    if model is None:
        names = [f"{split}{end}" for split, end in product(("dev", "test"), ("_ims.npy", "_caps.txt", "_ids.txt"))]
        _link(source, folder, [*names, "train_ims.npy", "train_ids.txt"])
        (folder / "train_caps.txt").write_text("".join(f"{caption}\n" for caption in captions), encoding="utf-8")
    else:
        _link(source, folder, VECTORS[:2])
        with (source / TABLE).open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        with (folder / TABLE).open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(head)
            own = iter(captions)
            table.writerows((image, next(own) if split == "train" else text, split) for image, text, split in rows)
        crcl.extract_text_features(
            folder / TABLE, folder, model=model, cache=source / "cache", overwrite=True, progress=Terminal()
        )
    np.save(folder / "kinds.npy", kinds)


def _link(source: Path, folder: Path, names: "list[str] | tuple[str, ...]") -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to((source / name).absolute())


def mismatched(train: Split, shares: Mapping[str, float], seed: int) -> tuple[list[str], np.ndarray]:
    """The captions with mismatches, and what was done to each pair; as many as there can be of `near` and `swap`."""
    captions, kinds = list(train.captions), np.full(len(train), "", dtype="<U6")
    rng = np.random.default_rng([0x5C0, seed])
    _exchange_near(train, captions, kinds, round(shares.get("near", 0) * len(train)), rng)
    _swap_words(train, captions, kinds, round(shares.get("swap", 0) * len(train)), rng)
    left = np.flatnonzero(kinds == "")
    moved = mismatch(np.arange(len(left)), min(shares.get("random", 0) * len(train) / len(left), 1.0), seed)
    texts = [captions[row] for row in left]
    for place, row in enumerate(left):
        captions[row] = texts[moved[place]]
    other = train.image_index[left[moved]] != train.image_index[left]  # a caption of the same image matches
    kinds[left[other]] = "random"
    return captions, kinds


def _exchange_near(train: Split, captions: list[str], kinds: np.ndarray, count: int, rng: np.random.Generator) -> None:
    if not count:
        return
    similar = nearest_images(train, np.arange(train.images), np.arange(train.images), SIMILAR, rng)
    rows_of = [[] for _ in range(train.images)]
    for row, image in enumerate(train.image_index.tolist()):
        rows_of[image].append(row)
    done = 0
    for row in rng.permutation(len(train)).tolist():
        if done >= count:
            return
        free = [
            other
            for image in rng.permutation(similar[train.image_index[row]]).tolist()
            for other in (rows_of[image] if image >= 0 else ())
            if kinds[other] == "" and folded(captions[other]) != folded(captions[row])
        ]
        if kinds[row] == "" and free:
            captions[row], captions[free[0]] = captions[free[0]], captions[row]
            kinds[[row, free[0]]] = "near"
            done += 2


def _swap_words(train: Split, captions: list[str], kinds: np.ndarray, count: int, rng: np.random.Generator) -> None:
    counts = count_listed(train.captions)
    for row in rng.permutation(np.flatnonzero(kinds == "")).tolist():
        if not count:
            return
        text = swap(captions[row], counts, rng, avoid={folded(captions[row])}, longest=READ)
        if text is not None:
            captions[row], kinds[row] = text, "swap"
            count -= 1
