"""How features were made, and the same again for new images: `about.json` beside a features file, kept by a run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crcl.data.images import Wanted, as_rgb, decode, read_file
from crcl.errors import InputError
from crcl.features.extractor import LIBRARIES, Extractor
from crcl.features.grid import PixelGrid

ABOUT = "about.json"


def read_about(features: str | Path | None) -> dict[str, Any]:
    """What `about.json` beside a features file, or in a folder of data, says; empty where it says nothing usable."""
    if features is None:
        return {}
    path = Path(features)
    path = path / ABOUT if path.is_dir() else path.with_name(ABOUT)
    try:
        about = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    usable = isinstance(about, dict) and isinstance(about.get("settings"), dict)
    return {key: about[key] for key in ("extractor", "settings", "versions", "dtype") if key in about} if usable else {}


def open_extractor(made: dict[str, Any], *, device: str = "cpu", where: str | Path = "") -> Extractor:
    """The extractor that made the features of a run, for new images; refuses one that has changed since.

    Args:
        made: What `about.json` said when the features were made.
        device: Where a vision model runs.
        where: The run, for messages.
    """
    settings = made.get("settings") or {}
    kind, name = settings.get("extractor"), str(made.get("extractor", ""))
    found: Extractor
    if kind == "pixel grid":
        found = PixelGrid(grid=settings.get("grid", 6))
    elif kind in LIBRARIES:
        from crcl.features.vision import Pixels, VisionModel  # loads torch

        grid = settings.get("grid")
        found = Pixels(name) if kind == "pixels" else VisionModel(name, grid=grid or 6, whole=not grid, device=device)
    else:
        raise InputError(
            "was trained on features that were given, so nobody knows how to make them of a photo",
            where=where,
            hint="pass arrays of features, made as those were, instead of photos",
        )
    if found.settings != settings:
        raise InputError(f"{name} is not the model that made the features of this run any more", where=where)
    return found


def image_features(
    extractor: Extractor, images: Sequence[Any], *, dtype: str = "float32", batch_size: int = 32
) -> NDArray[np.float32]:
    """Features of image files or PIL images, rounded as those of the training were on disk. (images, R, F)"""
    parts = []
    for start in range(0, len(images), batch_size):
        batch = [extractor.prepare(open_image(image)) for image in images[start : start + batch_size]]
        part = extractor.compute(batch).astype(dtype).astype(np.float32)
        parts.append(part if part.ndim == 3 else part[:, None, :])
    return np.concatenate(parts)


def open_image(image: Any) -> Image.Image:
    """A PIL image as it is, or a decoded image file, in RGB."""
    if isinstance(image, Image.Image):
        return as_rgb(image)
    if not isinstance(image, str | Path):
        raise InputError(f"{type(image).__name__}: expected a path or a PIL image")
    try:
        return decode(read_file(Wanted(str(image), None)))
    except ValueError as reason:
        raise InputError(str(reason), where=image) from reason
