"""What every layout of data gives: where the data lies, its splits, its rows."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from crcl.data.sources.rows import Columns
from crcl.data.split import Split
from crcl.errors import InputError

Given = str | Path | np.ndarray | None
"""Features or vectors as they may be given: a file, an array, or none."""
Names = str | Path | Sequence[str] | None
"""Names of images as they may be given: a file with one on each line, a list, or none."""


@dataclass(frozen=True)
class Location:
    """Where data lies: enough to open the same pairs again. A run's config keeps exactly these under `data.*`."""

    path: str
    """A file or a folder."""
    features: str | None = None
    """Features file of a table's images."""
    text_features: str | None = None
    """Vectors of a table's captions, one for each row."""
    ids: str | None = None
    """The image of each row of the features, one on each line."""
    image_column: str = "image"
    caption_column: str = "caption"
    skip_empty: bool = False
    """Leave out a table's rows without an image or a caption, instead of refusing them."""

    @property
    def columns(self) -> Columns:
        """The names of the columns that are read."""
        return Columns(self.image_column, self.caption_column)

    def absolute(self) -> "Location":
        """The same with whole paths, so that it holds from any folder."""
        return replace(
            self,
            path=str(Path(self.path).absolute()),
            features=_absolute(self.features),
            text_features=_absolute(self.text_features),
            ids=_absolute(self.ids),
        )

    def settings(self) -> dict[str, Any]:
        """The same as settings of a config, by their keys; only those that say something."""
        return {f"data.{key}": value for key, value in asdict(self).items() if value not in (None, False)}


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def refuse_features(location: Location, *given: object) -> None:
    """Refuse features for a folder that holds its own."""
    named = (location.features, location.ids, location.text_features, *given)
    if any(value is not None for value in named):
        raise InputError("features and ids are given for a table only; a folder holds its own", where=location.path)


def require_folder(folder: Path) -> None:
    """Refuse a folder of images that does not exist."""
    if not folder.is_dir():
        raise InputError("no such folder; it must hold the images", where=folder)


class Source(Protocol):
    """Data in one layout. A layout is one file in this package: such a class, and a line in the table of layouts.

    Reading is lazy, and what was parsed is kept: copies made by `with_features` and `without_empty` share it.
    """

    @property
    def name(self) -> str:
        """What messages call the data: mostly its path."""

    @property
    def location(self) -> Location | None:
        """Where the data lies; None while it lives in memory only."""

    @property
    def skip_empty(self) -> bool:
        """Whether rows without an image or a caption are left out, instead of refused."""

    @property
    def is_table(self) -> bool:
        """Whether pairs are rows with names of images, whose features are made or given apart from them."""

    @property
    def has_features(self) -> bool:
        """Whether there are features of the images."""

    @property
    def has_text_features(self) -> bool:
        """Whether each caption comes with a vector."""

    @property
    def image_folder(self) -> Path | None:
        """The folder that holds the image files, if it is known; no image is read from outside of it."""

    def splits(self) -> list[str]:
        """Names of the splits, in no particular order."""

    def read(self, split: str) -> Split:
        """The pairs of one split."""

    def rows(self) -> pa.Table | None:
        """Columns image, caption and (if there) split of all pairs; None where each split has files of its own."""

    def with_features(self, features: Given, ids: Names, text_features: Given) -> "Source":
        """The same data with these features; None keeps what there is."""

    def with_images(self, folder: Path) -> "Source":
        """The same data, whose image files are in this folder."""

    def without_empty(self) -> "Source":
        """The same data, with rows that lack an image or a caption left out."""


@dataclass(frozen=True)
class FolderSource:
    """Data in a folder that holds its own features: what such layouts have in common. They add `splits` and `read`."""

    location: Location
    image_folder: Path | None = None
    is_table = False
    has_features = True
    has_text_features = False
    skip_empty = False

    @classmethod
    def open(cls, location: Location, images: Path | None = None) -> Self:
        """The folder at a location; nothing is read yet."""
        refuse_features(location)
        return cls(location, images)

    @property
    def name(self) -> str:
        """The folder."""
        return self.location.path

    def rows(self) -> pa.Table | None:
        """None: each split has its own files."""
        return None

    def with_features(self, features: Given, ids: Names, text_features: Given) -> Self:
        """Refused: the folder has its own."""
        refuse_features(self.location, features, ids, text_features)
        return self

    def with_images(self, folder: Path) -> Self:
        """The same data, whose image files are in this folder."""
        require_folder(folder)
        return replace(self, image_folder=folder)

    def without_empty(self) -> Self:
        """The same: such folders have no empty rows."""
        return self
