"""The interface of extractors, which turn images into features: the pixel grid and vision models."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

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
