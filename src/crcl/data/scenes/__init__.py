"""The built-in demo data: drawn scenes of coloured shapes, with captions from a small grammar."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crcl.data.scenes.captions import tell
from crcl.data.scenes.drawing import draw
from crcl.data.scenes.world import random_scene
from crcl.errors import InputError
from crcl.storage import replacing_folder, write_json

MOST_IMAGES = 100_000
"""More are refused: the scenes would run out."""


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
    """Draw all scenes into a new folder, in the field's precomp layout, with the images as PNG files beside it.

    `describe` turns an image into its features (R, F), and `about` says how, for `about.json`. The folder appears when
    all of it is there.
    """
    folder = Path(folder).absolute()
    splits = {"train": train, "dev": dev, "test": test}
    total = sum(splits.values())
    if min(splits.values()) < 1 or total > MOST_IMAGES:
        raise InputError(f"scenes need 1 or more images in each split and {MOST_IMAGES} at most in all, not {splits}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("there is something already", where=folder, hint="name a new folder or remove it")
    try:
        with replacing_folder(folder, busy="another process writes there") as fresh:
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
        told: list[str] = []
        names: list[str] = []
        while len(names) < count:
            scene = random_scene(rng)
            if scene.description in seen:
                continue
            seen.add(scene.description)
            names.append(f"{len(seen) - 1:06d}.png")
            image = draw(scene, rng)
            # the grain leaves little to compress: a higher level costs time and saves nothing
            image.save(folder / "images" / names[-1], compress_level=1)
            features.append(np.asarray(describe(image), dtype=np.float32))
            told += tell(scene, rng, count=captions)
            if progress is not None:
                progress(len(seen), sum(splits.values()))
        np.save(folder / f"{split}_ims.npy", np.stack(features))
        for name, lines in (("caps", told), ("ids", names)):
            (folder / f"{split}_{name}.txt").write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n"
            )
