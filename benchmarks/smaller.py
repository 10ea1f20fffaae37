"""A smaller copy of a precomp folder: fewer images, and grids of regions averaged to coarser ones.

    python benchmarks/smaller.py DATA OUT --train 3000 --dev 500 --grid 3

DATA is a precomp folder whose features are square grids (Flickr8k: 6 x 6). The first images of train and dev are kept
with all their captions, of test all unless --test is given; every square block of cells becomes its mean. So local
matchers, whose work grows with the number of regions, can be compared in an hour.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

BLOCK = 200  # images at a time


def main() -> None:
    options = parse()
    for split, images in (("train", options.train), ("dev", options.dev), ("test", options.test)):
        shrink(options.data, options.out, split, images, options.grid)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, help="images to keep; all, if not given")
    parser.add_argument("--dev", type=int, help="images to keep; all, if not given")
    parser.add_argument("--test", type=int, help="images to keep; all, if not given")
    parser.add_argument("--grid", type=int, default=3, help="rows, and columns, of the coarser grid")
    return parser.parse_args(words)


def shrink(data: Path, out: Path, split: str, images: int | None, grid: int) -> None:
    """Write the files of one split: the first images with their captions, on a coarser grid."""
    features = np.load(data / f"{split}_ims.npy", mmap_mode="r")
    names, captions = (
        (data / f"{split}_{what}.txt").read_text("utf-8").splitlines(keepends=True) for what in ("ids", "caps")
    )
    kept, each = images or len(features), len(captions) // len(features)
    out.mkdir(parents=True, exist_ok=True)
    parts = [coarser(features[start : min(start + BLOCK, kept)], grid) for start in range(0, kept, BLOCK)]
    np.save(out / f"{split}_ims.npy", np.concatenate(parts))
    (out / f"{split}_ids.txt").write_text("".join(names[:kept]), "utf-8")
    (out / f"{split}_caps.txt").write_text("".join(captions[: kept * each]), "utf-8")


def coarser(cells: np.ndarray, grid: int) -> np.ndarray:
    """Means of square blocks of a square grid, in reading order. (M, side * side, F) -> (M, grid * grid, F)"""
    count, regions, size = cells.shape
    side = math.isqrt(regions)
    if side * side != regions or side % grid:
        raise SystemExit(f"{regions} regions are no square grid that has {grid} x {grid} blocks")
    block = side // grid
    return cells.reshape(count, grid, block, grid, block, size).mean((2, 4)).reshape(count, grid * grid, size)


if __name__ == "__main__":
    main()
