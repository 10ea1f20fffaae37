"""Write a table of drawn scenes with captions, some of them wrong, to try an audit on.

    python examples/wrong_pairs.py scenes --images 1000 --wrong 0.2
    crcl audit scenes/pairs.csv --images scenes/drawn/images

Writes scenes/pairs.csv (image, caption) and scenes/answers.csv, which says for each row whether it is right.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from crcl.data import scenes
from crcl.data.noise import mismatch
from crcl.features.grid import grid_features


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--wrong", type=float, default=0.2, help="share of the captions that get another image")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    drawn = options.folder / "drawn"
    scenes.write(drawn, describe=grid_features, train=options.images, dev=1, test=1, seed=options.seed)
    names = (drawn / "train_ids.txt").read_text("utf-8").splitlines()
    captions = (drawn / "train_caps.txt").read_text("utf-8").splitlines()
    image_of = np.repeat(np.arange(len(names)), len(captions) // len(names))
    shown = mismatch(image_of, options.wrong, options.seed, level="caption", images=len(names))

    with (
        (options.folder / "pairs.csv").open("w", newline="", encoding="utf-8") as pairs,
        (options.folder / "answers.csv").open("w", newline="", encoding="utf-8") as answers,
    ):
        table, truth = csv.writer(pairs), csv.writer(answers)
        table.writerow(("image", "caption"))
        truth.writerow(("row", "right"))
        for row, caption in enumerate(captions):
            table.writerow((names[shown[row]], caption))
            truth.writerow((row, bool(shown[row] == image_of[row])))
    print(f"{len(captions):,} pairs, {(shown != image_of).mean():.1%} of them wrong, in {options.folder / 'pairs.csv'}")


if __name__ == "__main__":
    main()
