"""The interface of extractors, which turn images into features: the pixel grid and vision models."""

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ABOUT = "about.json"
LIBRARIES = {"vision model": "transformers", "pixels": "transformers"}
"""The library that each kind of extractor needs, besides Pillow."""


class Extractor(Protocol):
    """Turns images into features."""

    @property
    def title(self) -> str:
        """The name of the extractor or its model."""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything besides the image that the features depend on."""

    def prepare(self, image: Image.Image) -> NDArray[np.float32]:
        """Preprocess one image."""

    def compute(self, prepared: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Features of a batch of preprocessed images, (K, R, F) or (K, F)."""


def describe_extractor(extractor: Extractor) -> dict[str, Any]:
    """Name, settings and library versions of an extractor, for `about.json`."""
    kind = extractor.settings["extractor"]
    libraries = ["pillow", *([LIBRARIES[kind]] if kind in LIBRARIES else [])]
    return {
        "extractor": extractor.title,
        "settings": extractor.settings,
        "versions": {name: version(name) for name in libraries},
    }


def preparer(extractor: Extractor) -> Callable[[Image.Image], NDArray[np.float32]] | None:
    """The extractor's `prepare` as a function that a worker process can have; None if it is for this process only.

    An extractor offers it as `preparer()`, and must be able to do without.
    """
    offered = getattr(extractor, "preparer", None)
    return None if offered is None else offered()


def read_record(path: Path) -> dict[str, Any]:
    """The content of an `about.json`; empty if it is missing or something else."""
    try:
        about = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}
