"""How similar changed copies of images are, and how similar different images are: where `data.near_copies` comes from.

python benchmarks/copies.py PHOTOS          # a folder of photos, by the pixel grid
python benchmarks/copies.py --drawn 3000    # drawn scenes, by the pixel grid
python benchmarks/copies.py --data FOLDER   # features in the field's layout: different images only
"""

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from crcl.data.duplicates import NEAR, Likeness, nearest
from crcl.data.images import decode
from crcl.data.pairs import Pairs
from crcl.data.pictures.files import image_files
from crcl.data.scenes.drawing import draw
from crcl.data.scenes.world import random_scene
from crcl.data.split import Split
from crcl.features.grid import grid_features

CHANGED = 300  # images that are changed


def compressed(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=50)
    return decode(buffer.getvalue())


def smaller(image: Image.Image) -> Image.Image:
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)


def cut(share: float) -> Callable[[Image.Image], Image.Image]:
    def changed(image: Image.Image) -> Image.Image:
        wide, high = int(share * image.width), int(share * image.height)
        return image.crop((wide, high, image.width - wide, image.height - high))

    return changed


CHANGES = {"JPEG, quality 50": compressed, "half the size": smaller, "cut by 2 %": cut(0.02), "cut by 5 %": cut(0.05)}


def as_pairs(features: np.ndarray) -> Split:
    names = [str(number) for number in range(len(features))]
    return Split(names, np.arange(len(features)), features, names)


def of_images(images: list[Image.Image]) -> list[str]:
    """Lines about the most similar different images, and about changed copies."""
    lines = of_pairs(pairs := as_pairs(np.stack([grid_features(image) for image in images])))
    likeness = Likeness(pairs)
    some = images[:CHANGED]
    for name, change in CHANGES.items():
        both = as_pairs(np.concatenate([pairs.features[: len(some)], [grid_features(change(image)) for image in some]]))
        likeness.pairs = both  # the mean image stays that of the unchanged ones
        found = likeness.similarity(np.arange(len(some)), np.arange(len(some), 2 * len(some)))
        lines.append(
            f"{name}: least {found.min():.3f}, median {np.median(found):.3f}, {(found >= NEAR).mean():.0%} above {NEAR}"
        )
    return lines


def of_pairs(pairs: Split) -> list[str]:
    """A line about the most similar images."""
    near, similarity = nearest(pairs, np.arange(pairs.images), least=0.0)
    order = np.argsort(-np.nan_to_num(similarity, nan=-1))
    best = [f"{pairs.image_ids[one]} and {pairs.image_ids[near[one]]} {similarity[one]:.4f}" for one in order[:4]]
    above = int((similarity >= NEAR).sum())
    return [f"{pairs.images:,} images; {above} have another above {NEAR}; most similar: {', '.join(best)}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path, nargs="?")
    parser.add_argument("--drawn", type=int)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    if given.data is not None:
        lines = of_pairs(Pairs.of(given.data).split("train"))
    elif given.drawn is not None:
        rng = np.random.default_rng(0)
        scenes = [random_scene(rng) for _ in range(given.drawn)]
        lines = of_images([draw(scene, rng) for scene in scenes])
    elif given.photos is not None:
        lines = of_images([decode((given.photos / name).read_bytes()) for name in image_files(given.photos)])
    else:
        parser.error("name a folder of photos, --drawn or --data")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
