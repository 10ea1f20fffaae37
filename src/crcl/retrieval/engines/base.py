"""What an engine can do, and the images and captions that it holds."""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from crcl.errors import InputError
from crcl.retrieval.index.folder import About, What

EXTRA = "pip install 'crcl[engines]'"
_NAMES = uuid.UUID("8f0c8d1e-6d0b-5e0a-9c65-0a1f8b0f4a11")  # of our ids, so that they are the same everywhere


@dataclass(frozen=True)
class Item:
    """An image, or a caption of an image."""

    key: str
    caption: str | None = None
    number: int = 0
    """The place of a caption in its data; captions of an image are shown in this order."""

    @property
    def id(self) -> str:
        """A UUID that is the same for the same image, or for the same caption of the same image."""
        text = self.key if self.caption is None else f"{self.key}\0{self.caption}"
        return str(uuid.uuid5(_NAMES, text.encode("utf-8", "surrogatepass").hex()))


class Engine(Protocol):
    """Images and captions with their vectors in an engine. All errors of the engine are `InputError`."""

    shown: str
    """The address, without credentials."""

    def about(self) -> About | None:
        """Facts of the vectors; None if there are none."""

    def create(self, about: About) -> None:
        """Make an empty place for vectors, or complete one of these facts; refuses a place that others use."""

    def drop(self) -> None:
        """Remove all that `create` made, and nothing else."""

    def known(self, what: What, ids: Sequence[str]) -> set[str]:
        """Those of the ids that the engine has."""

    def write(self, what: What, items: Sequence[Item], vectors: np.ndarray) -> None:
        """Write items with their vectors `(items, size)`; those that are there are replaced."""

    def finish(self) -> None:
        """Called when all is written: make search quick."""

    def count(self, what: What) -> int:
        """How many images or captions there are."""

    def nearest(self, what: What, vector: np.ndarray, k: int) -> list[tuple[Item, float]]:
        """The items with the largest inner products, best first."""

    def captions_of(self, keys: Sequence[str]) -> dict[str, list[str]]:
        """The captions of images, in order."""

    def vector_of(self, item: Item) -> np.ndarray | None:
        """The vector of an item `(size,)`; None if it is not there."""

    def close(self) -> None:
        """End the connection."""


def about_of(content: Any, shown: str) -> About:
    """The facts that an engine holds; raises an error if they are not ours."""
    if isinstance(content, dict):
        with suppress(TypeError):
            about = About(**content)
            if about.is_sound():
                return about
    raise InputError("holds vectors of another program or version", where=shown)


def plain(text: str) -> str:
    """A text that every engine can store: without NUL, and UTF-8."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
