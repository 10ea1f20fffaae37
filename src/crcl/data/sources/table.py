"""A table of image names and captions (CSV, TSV, JSONL, Parquet) next to a features file with an ids file.

Where the captions come with vectors, a file of them has one row for each row of the table. Features without an ids file
are then read in the same way.
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
    """Whether a path names a table, by its ending."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


@dataclass(frozen=True)
class TableSource:
    """A table with the features of its images."""

    location: Location
    images: Path | None
    """The folder of the images, where it is not the table's own."""
    rows: Callable[[], pa.Table]
    """Parses the file when it is called first."""
    is_table = True

    @classmethod
    def open(cls, location: Location, images: Path | None = None) -> "TableSource":
        """The table at a location; nothing is read yet."""
        return cls(location, images, cache(partial(read_rows, Path(location.path), location.columns)))

    @property
    def name(self) -> str:
        """The file."""
        return self.location.path

    @property
    def skip_empty(self) -> bool:
        """Whether rows without an image or a caption are left out, instead of refused."""
        return self.location.skip_empty

    @property
    def has_features(self) -> bool:
        """Whether features are named, or lie beside the table."""
        found = default_features(Path(self.location.path))
        return self.location.features is not None or any(path.is_file() for path in found)

    @property
    def has_text_features(self) -> bool:
        """Whether vectors of the captions are named."""
        return self.location.text_features is not None

    @property
    def image_folder(self) -> Path:
        """The folder given, or else the table's own."""
        return self.images or Path(self.location.path).parent

    def splits(self) -> list[str]:
        """The values of the column `split`, or train and dev where there is none."""
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
        """The same rows with these features; with arrays they live in memory from then on."""
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
        """The same data, whose image files are in this folder."""
        require_folder(folder)
        return replace(self, images=folder)

    def without_empty(self) -> "TableSource":
        """The same table, with rows that lack an image or a caption left out."""
        return replace(self, location=replace(self.location, skip_empty=True))
