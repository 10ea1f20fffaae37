"""A million pairs of embeddings, a fifth of them mismatched: the audit from end to end, in seconds and memory.

    python benchmarks/million.py FOLDER [--pairs 1000000] [--size 512] [--rate 0.2]
    python benchmarks/million.py FOLDER --quick              # scores without training
    python benchmarks/million.py FOLDER --set method=crcl    # with another method
    python benchmarks/million.py FOLDER --sums               # relink's sums over images, against exact ones

The vectors are made up: both sides of a pair see one hidden vector through a random map each, with noise of their own;
so their plain cosine says nothing, as if they came from two models. FOLDER gets them as clip-retrieval writes them, and
the audit. Then `crcl audit` runs as a process of its own, whose peak memory is told. Seconds of processors are those
of all threads: on a busy machine they say more than seconds on the clock.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from sklearn.metrics import average_precision_score, roc_auc_score

from crcl.data.pairs import Pairs
from crcl.methods.relink import sampled
from crcl.methods.relink.fold import Fold
from crcl.methods.relink.inputs import CaptionVectors, ImageVectors
from crcl.methods.relink.linear import LinearModel, all_shown, divide
from crcl.runs.folder import Run

SHARD = 100_000
HIDDEN = 64
CHECKED = 2000
"""Captions whose sums are compared with exact ones."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in crcl audit")
    parser.add_argument("--quick", action="store_true", help="as in crcl audit")
    parser.add_argument("--sums", action="store_true", help="measure relink's sums instead of an audit")
    options = parser.parse_args()
    data = options.folder / "embeddings"
    if not (data / "truth.npy").is_file():
        make(data, options)
    if options.sums:
        print(sums(data))
        return
    words = [word for setting in options.settings for word in ("--set", setting)]
    words += ["--quick"] if options.quick else []
    started = time.monotonic()
    own, resident = watched(
        [
            *(sys.executable, "-m", "crcl", "audit", str(data), "--folder", str(options.folder / "audit")),
            *("-o", str(options.folder / "audit.parquet"), "--seed", str(options.seed), *words),
        ]
    )
    seconds = time.monotonic() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = pyarrow.parquet.read_table(options.folder / "audit.parquet", columns=["row", "correspondence"])
    wrong = ~np.load(data / "truth.npy")[found["row"].to_numpy()]
    beliefs = found["correspondence"].to_numpy()
    sizes = Run.open(options.folder / "audit" / ("quick" if options.quick else "run")).sizes
    print(
        f"{options.pairs:,} pairs of {options.size} numbers a side, {options.rate:.0%} mismatched, "
        f"{sizes['pairs']:,} judged: {seconds:.0f} s ({used.ru_utime + used.ru_stime:.0f} s of processors), "
        f"peak memory {own:.2f} GiB ({resident:.2f} with mapped pages), "
        f"AUROC {roc_auc_score(wrong, -beliefs):.3f}, AP {average_precision_score(wrong, -beliefs):.3f}, "
        f"mean belief in mismatched pairs {beliefs[wrong].mean():.3f}, in the others {beliefs[~wrong].mean():.3f}"
    )


def sums(data: Path) -> str:
    """What the index finds, and how far sums over images are from exact ones, for captions of a fold that are in doubt.

    The model is fitted on all shown pairs, as in the first round; both sums have the same offsets.
    """
    pairs = Pairs.of(data).split("train")
    shown = divide(pairs.image_index, np.empty(0, np.int64), folds=4, seed=0)
    model = LinearModel(ImageVectors(pairs, None), CaptionVectors(pairs), shown, most=sampled.FITTED)
    judges, whole = model.fit_both(all_shown(len(pairs)))
    fold, candidates = Fold(model, judges[0], 0, seed=0), sampled.Candidates(model, whole)
    chosen = sampled.choose(fold, candidates)
    offsets = fold.all_offsets(chosen.temperature)
    captions = np.random.default_rng(1).permutation(fold.fitted)[:CHECKED]
    captions = captions[fold.judge(captions, chosen.temperature, offsets).doubtful]
    best = candidates.find(fold, captions, cells=chosen.cells)
    ratios = fold.judge(captions, chosen.temperature, offsets, best).ratios.shown
    exact = []
    for caption in captions.tolist():
        logits = fold.images @ (fold.texts[caption] / chosen.temperature) - offsets
        exact.append(float(logits[fold.shown[caption]] + np.log(len(logits)) - logits.logsumexp(0)))
    error = np.abs(np.expm1(np.array(exact) - ratios))  # of the sum, relative
    return (
        f"temperature {chosen.temperature}, {chosen.cells} of {candidates.index.cells} cells searched, "
        f"recall {chosen.recall:.3f}; {len(captions)} of {CHECKED} captions in doubt, "
        f"error of their sums: median {np.median(error):.3f}, "
        f"nine of ten below {np.quantile(error, 0.9):.3f}, largest {error.max():.3f}"
    )


def watched(words: list[str]) -> tuple[float, float]:
    """Run a process to its end; the most memory of its own that it had, and with mapped pages of files, in GiB.

    Mapped pages are the system's to take back: it keeps as many as there is room for.
    """
    process, own, resident = subprocess.Popen(words), 0, 0
    while process.poll() is None:
        lines = Path(f"/proc/{process.pid}/status").read_text("ascii").splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if "kB" in rest}
        own = max(own, kib.get("RssAnon", 0) + kib.get("RssShmem", 0))
        resident = max(resident, kib.get("VmHWM", 0))
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(process.returncode)
    return own / 2**20, resident / 2**20


def make(data: Path, options: argparse.Namespace) -> None:
    """Shards of vectors and captions, and which pairs really match."""
    rng = np.random.default_rng(options.seed)
    for name in ("img_emb", "text_emb", "metadata"):
        (data / name).mkdir(parents=True, exist_ok=True)
    maps = rng.normal(size=(2, HIDDEN, options.size)).astype(np.float32)
    mismatched = np.sort(rng.permutation(options.pairs)[: round(options.rate * options.pairs)])
    seen = np.arange(options.pairs)
    seen[mismatched] = rng.permutation(mismatched)
    hidden = rng.normal(size=(options.pairs, HIDDEN)).astype(np.float32)
    for number, start in enumerate(range(0, options.pairs, SHARD)):
        rows = np.arange(start, min(start + SHARD, options.pairs))
        for folder, shown, side in (("img_emb", hidden[seen[rows]], 0), ("text_emb", hidden[rows], 1)):
            vectors = shown @ maps[side] + 2 * rng.normal(size=(len(rows), options.size)).astype(np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            np.save(data / folder / f"{folder}_{number:04}.npy", vectors.astype(np.float16))
        table = pa.table(
            {"image_path": [f"{row:08}.jpg" for row in rows], "caption": [f"caption {row}" for row in rows]}
        )
        pyarrow.parquet.write_table(table, data / "metadata" / f"metadata_{number:04}.parquet")
    np.save(data / "truth.npy", seen == np.arange(options.pairs))


if __name__ == "__main__":
    main()
