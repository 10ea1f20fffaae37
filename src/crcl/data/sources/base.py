"""The interface of a data source: location, splits, rows, features."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from crcl.data.cleaning.judged import Judged
from crcl.data.pictures.base import Pictures
from crcl.data.rows.tables import Columns
from crcl.data.split import Split
from crcl.errors import InputError

Given = str | Path | np.ndarray | None
"""Features or vectors that a user passes: a file, an array, or none."""
Names = str | Path | Sequence[str] | None
"""Image ids that a user passes: a file with one per line, a list, or none."""


@dataclass(frozen=True)
class Location:
    """Where data is stored: all that is needed to open the same pairs again. A run's config has these as `data.*`."""

    path: str
    """A file or a folder."""
    features: str | None = None
    """Features file of a table's images."""
    text_features: str | None = None
    """File with the vectors of a table's captions, one per row."""
    ids: str | None = None
    """File with the image id of each row of the features, one per line."""
    image_column: str = "image"
    caption_column: str = "caption"
    skip_empty: bool = False
    """Leave out rows of a table that lack an image or a caption, instead of raising an error."""
    layout: str | None = None
    """Name of the layout; None: recognised by looking."""

    @property
    def columns(self) -> Columns:
        """The names of the columns to read."""
        return Columns(self.image_column, self.caption_column)

    def absolute(self) -> "Location":
        """The same location with absolute paths."""
        return replace(
            self,
            path=str(Path(self.path).absolute()),
            features=_absolute(self.features),
            text_features=_absolute(self.text_features),
            ids=_absolute(self.ids),
        )

    def settings(self) -> dict[str, Any]:
        """The location as config settings by key, without those that are unset."""
        return {f"data.{key}": value for key, value in asdict(self).items() if value not in (None, False)}


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def refuse_features(location: Location, *given: object) -> None:
    """Raise an error if features are given for a folder that contains its own."""
    named = (location.features, location.ids, location.text_features, *given)
    if any(value is not None for value in named):
        raise InputError(
            "this folder has its own features and ids", where=location.path, hint="pass these with a table only"
        )


class Source(Protocol):
    """Data in one layout. A layout is one module of this package with a `Layout`, and one entry in `LAYOUTS`.

    Reading is lazy and cached; copies made by `with_features` and `without_empty` share the cache.
    """

    @property
    def name(self) -> str:
        """The name of the data in messages, mostly its path."""

    @property
    def location(self) -> Location | None:
        """Where the data is stored; None for data in memory."""

    @property
    def skip_empty(self) -> bool:
        """Whether rows that lack an image or a caption are left out, instead of raising an error."""

    @property
    def is_table(self) -> bool:
        """Whether pairs are rows with image names, whose features are stored separately."""

    @property
    def has_features(self) -> bool:
        """Whether the images have features."""

    @property
    def has_text_features(self) -> bool:
        """Whether each caption has a vector."""

    @property
    def pictures(self) -> Pictures | None:
        """Where the images lie; None if that is unknown. No image outside of it is read."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out of the data when it was read and how much of it, in sentences for the user."""

    def splits(self) -> list[str]:
        """Names of the splits, in no particular order."""

    def read(self, split: str) -> Split:
        """The pairs of one split."""

    def rows(self) -> pa.Table | None:
        """Columns image, caption and optionally split of all pairs; None if each split has its own files."""

    def with_features(self, features: Given, ids: Names, text_features: Given) -> "Source":
        """The same data with other features; None keeps the present ones."""

    def with_images(self, pictures: Pictures) -> "Source":
        """The same data with images that lie there."""

    def without_empty(self) -> "Source":
        """The same data without rows that lack an image or a caption."""


@dataclass(frozen=True)
class Layout:
    """One way in which pairs lie on disk: how it is recognised, read, and written again without the suspects."""

    title: str
    """What it is, in words for `--help` and messages."""
    recognises: Callable[[Path], bool]
    """Whether a path has this layout, by a quick look."""
    open: Callable[[Location, Pictures | None], Source]
    """Opens the data at a location, with images that lie elsewhere if so given; reads nothing yet."""
    clean: Callable[[Location, Judged, Path], int] | None = None
    """Writes the data again, to a new file or folder; returns the number of rows it has. None: it cannot be written."""
    as_folder: bool | None = None
    """Whether the cleaned data is a folder; None: as the data is."""
    options: frozenset[str] = frozenset()
    """Options of cleaning that it has: `images`, image files come with it; `rewrite`, it is written anew if asked."""


@dataclass(frozen=True)
class FolderSource:
    """Base class of layouts whose folder contains features; subclasses add `splits` and `read`."""

    location: Location
    pictures: Pictures | None = None
    is_table = False
    has_features = True
    has_text_features = False
    skip_empty = False
    notes = ()

    @classmethod
    def open(cls, location: Location, images: Pictures | None = None) -> Self:
        """The folder at a location, without reading it yet."""
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
        """The same data; raises an error if anything is given, since the folder has its own features."""
        refuse_features(self.location, features, ids, text_features)
        return self

    def with_images(self, pictures: Pictures) -> Self:
        """The same data with images that lie there."""
        return replace(self, pictures=pictures)

    def without_empty(self) -> Self:
        """The same data: such folders have no empty rows."""
        return self
