"""The origin of features (`about.json`), and making the same features of new images and sentences."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crcl.data.images import as_rgb, decode
from crcl.data.pictures.files import Files
from crcl.errors import InputError
from crcl.features.encoder import Encoder
from crcl.features.extractor import ABOUT, LIBRARIES, Extractor, read_record
from crcl.features.grid import PixelGrid

LARGEST_GRID = 32
"""Regions along one side of an image."""
_KEPT = ("extractor", "settings", "versions", "dtype", "long_captions", "reads", "captions", "long", "cut")


def read_about(features: str | Path | None, text_features: str | Path | None = None) -> dict[str, Any]:
    """How features were made, from `about.json` beside a features file or in a data folder; empty if that is unknown.

    How vectors of captions were made is there as `text`.
    """
    found = _made(_record(features))
    if text_features is not None and (text := _made(_record(text_features).get("text"))):
        found["text"] = text
    return found


def _record(features: str | Path | None) -> dict[str, Any]:
    if features is None:
        return {}
    path = Path(features)
    return read_record(path / ABOUT if path.is_dir() else path.with_name(ABOUT))


def _made(about: Any) -> dict[str, Any]:
    usable = isinstance(about, dict) and isinstance(about.get("settings"), dict)
    return {key: about[key] for key in _KEPT if key in about} if usable else {}


def known_grid(made: dict[str, Any], *, regions: int) -> int:
    """Rows, and columns, of the grid that the regions of an image form; 0 if they form none, as far as is known.

    Args:
        made: How the features were made.
        regions: Regions of an image.
    """
    settings = made.get("settings")
    grid = settings.get("grid") if isinstance(settings, dict) else None
    return grid if type(grid) is int and grid > 0 and grid * grid == regions else 0


def open_extractor(made: dict[str, Any], *, device: str = "cpu", where: str | Path = "") -> Extractor:
    """The extractor that made the features of a run, for new images; raises an error if it has changed since.

    Nothing is fetched over the network: a model from the hub must be in its local cache.

    Args:
        made: The content of `about.json`, as stored by the run.
        device: Device that a vision model runs on.
        where: The run, for messages.
    """
    settings = made.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    kind, grid, name = settings.get("extractor"), settings.get("grid"), str(made.get("extractor", ""))
    if grid is not None and not (type(grid) is int and 1 <= grid <= LARGEST_GRID):
        raise InputError(f"a grid of {str(grid)[:60]} regions, expected 1 to {LARGEST_GRID}", where=where)
    found: Extractor
    if kind == "pixel grid":
        found = PixelGrid(grid=grid or 6)
    elif isinstance(kind, str) and kind in LIBRARIES:
        from crcl.features.vision import Pixels, VisionModel  # loads torch

        # a run may come from a stranger: its model is read from disk or from the hub's cache, never fetched
        if kind == "pixels":
            found = Pixels(name, download=False)
        else:
            found = VisionModel(name, grid=grid or 6, whole=not grid, device=device, download=False)
    else:
        raise InputError(
            "was trained on given features of unknown origin, so it cannot make features of photos",
            where=where,
            hint="pass arrays of features, made in the same way, instead of photos",
        )
    if found.settings != settings:
        raise InputError(f"{name} has changed since it made the features of this run", where=where)
    return found


def open_encoder(made: dict[str, Any], *, device: str = "cpu", where: str | Path = "") -> Encoder:
    """The encoder that made the text vectors of a run, for new sentences; raises an error if it has changed since.

    Nothing is fetched over the network: a model from the hub must be in its local cache.

    Args:
        made: What is known of the text vectors, as stored by the run.
        device: Device that the model runs on.
        where: The run, for messages.
    """
    settings, name = made.get("settings"), str(made.get("extractor", ""))
    if not isinstance(settings, dict) or settings.get("encoder") != "language model":
        raise InputError(
            "was trained on given vectors of captions of unknown origin, so it cannot read sentences",
            where=where,
            hint="pass an array of vectors, made in the same way, instead of sentences",
        )
    from crcl.features.language import LanguageModel  # loads torch

    found = LanguageModel(name, device=device, download=False)
    if found.settings != settings:
        raise InputError(f"{name} has changed since it made the text vectors of this run", where=where)
    return found


def image_features(
    extractor: Extractor, images: Sequence[Any], *, dtype: str = "float32", batch_size: int = 32
) -> NDArray[np.float32]:
    """Features of image files or PIL images, rounded to `dtype` like those on disk. (images, R, F)"""
    parts = []
    for start in range(0, len(images), batch_size):
        batch = [extractor.prepare(open_image(image)) for image in images[start : start + batch_size]]
        part = extractor.compute(batch).astype(dtype).astype(np.float32)
        parts.append(part if part.ndim == 3 else part[:, None, :])
    return np.concatenate(parts)


def open_image(image: Any) -> Image.Image:
    """A PIL image, or the decoded image of a file, in RGB."""
    if isinstance(image, Image.Image):
        return as_rgb(image)
    if not isinstance(image, str | Path):
        raise InputError(f"{type(image).__name__}: expected a path or a PIL image")
    try:
        return decode(Files(None).read(str(image)))
    except ValueError as reason:
        raise InputError(str(reason), where=image) from reason
