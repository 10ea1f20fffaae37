"""What turns images into features: the pixel grid and vision models are extractors."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LIBRARIES = {"vision model": "transformers", "pixels": "transformers"}
"""The library that an extractor of a kind needs."""


class Extractor(Protocol):
    """What turns pixels into features."""

    @property
    def title(self) -> str:
        """What it is called."""

    @property
    def settings(self) -> dict[str, Any]:
        """All that the features depend on besides the image."""

    def prepare(self, image: Image.Image) -> NDArray[np.float32]:
        """What is kept of one image until its batch is full."""

    def compute(self, prepared: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Features of a batch, (K, R, F) or (K, F)."""


def describe_extractor(extractor: Extractor) -> dict[str, Any]:
    """What made features: the extractor and its model, its settings, the versions of the libraries."""
    kind = extractor.settings["extractor"]
    libraries = ["pillow", *([LIBRARIES[kind]] if kind in LIBRARIES else [])]
    return {
        "extractor": extractor.title,
        "settings": extractor.settings,
        "versions": {name: version(name) for name in libraries},
    }
