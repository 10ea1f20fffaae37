"""The built-in demo data: drawn scenes of coloured shapes, with captions from a small grammar."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crcl.data.scenes.captions import write_captions
from crcl.data.scenes.drawing import draw
from crcl.data.scenes.world import random_scene
from crcl.errors import InputError
from crcl.storage import replacing_folder, write_json

MOST_IMAGES = 100_000
"""Upper limit, so that the generator does not run out of different scenes."""


def write(
    folder: str | Path,
    *,
    describe: Callable[[Image.Image], NDArray[Any]],
    about: dict[str, Any] | None = None,
    train: int = 2000,
    dev: int = 200,
    test: int = 200,
    captions: int = 5,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a data set of drawn scenes to a new folder in the field's precomp layout, with PNG files in `images/`.

    Args:
        folder: The folder, which must not exist or be empty; it is created atomically.
        describe: Turns an image into its features (R, F).
        about: How `describe` makes features, for `about.json`.
        train: Number of images in the train split.
        dev: Number of images in the dev split.
        test: Number of images in the test split.
        captions: Captions per image.
        seed: Seed of scenes, drawings and captions.
        progress: Called after each image with the number drawn and the total.
    """
    folder = Path(folder).absolute()
    splits = {"train": train, "dev": dev, "test": test}
    total = sum(splits.values())
    if min(splits.values()) < 1 or total > MOST_IMAGES:
        raise InputError(f"each split needs at least 1 image, and all together at most {MOST_IMAGES}, not {splits}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("exists already", where=folder, hint="name a new folder or remove it")
    try:
        with replacing_folder(folder, busy="another process is writing this folder") as fresh:
            (fresh / "images").mkdir()
            if about is not None:
                write_json(fresh / "about.json", about)
            _write_splits(fresh, splits, describe=describe, captions=captions, seed=seed, progress=progress)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", where=folder) from error


def _write_splits(
    folder: Path,
    splits: dict[str, int],
    *,
    describe: Callable[[Image.Image], NDArray[Any]],
    captions: int,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    rng = np.random.default_rng(seed)
    seen: set[tuple[object, ...]] = set()
    for split, count in splits.items():
        features: list[NDArray[np.float32]] = []
        texts: list[str] = []
        names: list[str] = []
        while len(names) < count:
            scene = random_scene(rng)
            if scene.description in seen:
                continue
            seen.add(scene.description)
            names.append(f"{len(seen) - 1:06d}.png")
            image = draw(scene, rng)
            # grain does not compress: a higher level only costs time
            image.save(folder / "images" / names[-1], compress_level=1)
            features.append(np.asarray(describe(image), dtype=np.float32))
            texts += write_captions(scene, rng, count=captions)
            if progress is not None:
                progress(len(seen), sum(splits.values()))
        np.save(folder / f"{split}_ims.npy", np.stack(features))
        for name, lines in (("caps", texts), ("ids", names)):
            (folder / f"{split}_{name}.txt").write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n"
            )
