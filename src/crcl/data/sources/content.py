"""Data as rows: most layouts read rows of image and caption, and the place of their images, and share the rest."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pyarrow as pa

from crcl.data.pictures.base import Pictures
from crcl.data.rows.splits import splits_of
from crcl.data.rows.stored import Selection, Stored, default_features, open_stored, read_split
from crcl.data.sources.base import Given, Location, Names, Source
from crcl.data.sources.memory import MemorySource
from crcl.data.split import Split


@dataclass(frozen=True)
class Content:
    """What a layout finds at a location."""

    rows: pa.Table
    """Columns image, caption and optionally split, as trimmed strings without nulls. Pairs of one image share its name;
    the number of a row is its identity, so a layout finds the same rows in the same order each time."""
    pictures: Pictures | None = None
    """Where the images lie, by the names in the rows; None if there are none."""
    notes: tuple[str, ...] = ()
    """What was left out and how much of it, in sentences for the user."""


Read = Callable[[Location], Content]
"""Reads the content at a location; raises `InputError` if that is not possible."""


@dataclass(frozen=True)
class RowsSource:
    """Rows with images, whose features are stored in files of their own."""

    location: Location
    images: Pictures | None
    """Where the images lie, if that was given."""
    content: Callable[[], Content]
    """Returns the content; reads it on the first call."""
    beside: bool = False
    """Whether features are looked for beside the data."""
    is_table = True

    @classmethod
    def opening(cls, read: Read, *, beside: bool = False) -> Callable[[Location, Pictures | None], "RowsSource"]:
        """A function that opens the data at a location, without reading it yet."""

        def open_it(location: Location, images: Pictures | None = None) -> RowsSource:
            return cls(location, images, cache(partial(read, location)), beside)

        return open_it

    @property
    def name(self) -> str:
        """The path of the data."""
        return self.location.path

    @property
    def skip_empty(self) -> bool:
        """Whether rows that lack an image or a caption are left out."""
        return self.location.skip_empty

    @property
    def has_features(self) -> bool:
        """Whether a features file is given or beside the data."""
        found = default_features(Path(self.location.path)) if self.beside else ()
        return self.location.features is not None or any(path.is_file() for path in found)

    @property
    def has_text_features(self) -> bool:
        """Whether a file of caption vectors is given."""
        return self.location.text_features is not None

    @property
    def pictures(self) -> Pictures | None:
        """Where the images lie: as given, or else where the data has them."""
        return self.content().pictures if self.images is None else self.images

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, in sentences."""
        return self.content().notes

    def rows(self) -> pa.Table:
        """Columns image, caption and optionally split."""
        return self.content().rows

    def splits(self) -> list[str]:
        """The values of the column `split`, or train and dev without that column."""
        return splits_of(self.rows())

    def read(self, split: str) -> Split:
        """The pairs of one split."""
        where = self.location
        selection = Selection(self.name, self.rows(), where.columns, where.skip_empty)
        return read_split(selection, split, self._stored)

    def _stored(self) -> Stored:
        where = self.location
        return open_stored(
            Path(where.path),
            self.rows(),
            features=where.features,
            ids=where.ids,
            text_features=where.text_features,
            pictures=lambda: self.pictures,
        )

    def with_features(self, features: Given, ids: Names, text_features: Given) -> Source:
        """The same rows with other features; given arrays, the result is a source in memory."""
        where = self.location
        if any(given is not None and not isinstance(given, str | Path) for given in (features, ids, text_features)):
            held = MemorySource(self.rows(), self.name, where.columns, where.skip_empty, images=self.pictures)
            return held.with_features(
                where.features if features is None else features,
                where.ids if ids is None else ids,
                where.text_features if text_features is None else text_features,
            )
        location = replace(
            where,
            features=where.features if features is None else str(features),
            ids=where.ids if ids is None else str(ids),
            text_features=where.text_features if text_features is None else str(text_features),
        )
        return replace(self, location=location)

    def with_images(self, pictures: Pictures) -> "RowsSource":
        """The same data with images that lie there."""
        return replace(self, images=pictures)

    def without_empty(self) -> "RowsSource":
        """The same data without rows that lack an image or a caption."""
        return replace(self, location=replace(self.location, skip_empty=True))
