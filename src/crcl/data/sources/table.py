"""A table of image names and captions (CSV, TSV, JSONL, Parquet) beside a features file and an ids file.

A file of caption vectors has one row per row of the table; with it, the features may do without an ids file and then
also have one row per row of the table.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pyarrow as pa

from crcl.data.sources.base import Given, Location, Names, Source, require_folder
from crcl.data.sources.memory import MemorySource
from crcl.data.sources.rows import read_rows
from crcl.data.sources.splits import splits_of
from crcl.data.sources.stored import Selection, Stored, default_features, open_stored, read_split
from crcl.data.split import Split

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def recognises(path: Path) -> bool:
    """Whether a path is a table, by its ending."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


@dataclass(frozen=True)
class TableSource:
    """A table with the features of its images."""

    location: Location
    images: Path | None
    """The folder of the images; None: the folder of the table."""
    rows: Callable[[], pa.Table]
    """Returns the parsed file; parses it on the first call."""
    is_table = True

    @classmethod
    def open(cls, location: Location, images: Path | None = None) -> "TableSource":
        """The table at a location, without reading it yet."""
        return cls(location, images, cache(partial(read_rows, Path(location.path), location.columns)))

    @property
    def name(self) -> str:
        """The path of the file."""
        return self.location.path

    @property
    def skip_empty(self) -> bool:
        """Whether rows that lack an image or a caption are left out, instead of raising an error."""
        return self.location.skip_empty

    @property
    def has_features(self) -> bool:
        """Whether a features file is given or beside the table."""
        found = default_features(Path(self.location.path))
        return self.location.features is not None or any(path.is_file() for path in found)

    @property
    def has_text_features(self) -> bool:
        """Whether a file of caption vectors is given."""
        return self.location.text_features is not None

    @property
    def image_folder(self) -> Path:
        """The given folder, by default that of the table."""
        return self.images or Path(self.location.path).parent

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
            Path(where.path), self.rows(), features=where.features, ids=where.ids, text_features=where.text_features
        )

    def with_features(self, features: Given, ids: Names, text_features: Given) -> Source:
        """The same rows with other features; given arrays, the result is a source in memory."""
        if any(given is not None and not isinstance(given, str | Path) for given in (features, ids, text_features)):
            where = self.location
            held = MemorySource(self.rows(), self.name, where.columns, where.skip_empty, images=self.image_folder)
            return held.with_features(
                where.features if features is None else features,
                where.ids if ids is None else ids,
                where.text_features if text_features is None else text_features,
            )
        location = replace(
            self.location,
            features=self.location.features if features is None else str(features),
            ids=self.location.ids if ids is None else str(ids),
            text_features=self.location.text_features if text_features is None else str(text_features),
        )
        return replace(self, location=location)

    def with_images(self, folder: Path) -> "TableSource":
        """The same data with this folder of image files."""
        require_folder(folder)
        return replace(self, images=folder)

    def without_empty(self) -> "TableSource":
        """The same table without rows that lack an image or a caption."""
        return replace(self, location=replace(self.location, skip_empty=True))
