"""Pairs: a data set with all its splits, on disk or in memory. `crcl.read` returns it."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from crcl.data.pictures.base import Pictures, Wanted
from crcl.data.pictures.files import Files, require_folder
from crcl.data.rows.headless import is_address
from crcl.data.rows.splits import in_order, rows_of, split_name, whole_rows
from crcl.data.rows.stored import read_skipped
from crcl.data.rows.tables import USUAL, Columns
from crcl.data.saving import save
from crcl.data.sources import hub, memory, open_source
from crcl.data.sources.base import Given, Location, Names, Source
from crcl.data.sources.memory import MemorySource
from crcl.data.split import Split
from crcl.errors import InputError

_FETCH = (
    "download them, e.g. with img2dataset, and name the folder that it writes instead of this list; or pass {features} "
    "and {ids}, with one address per line"
)


class Unjudged(NamedTuple):
    """How much of the data is not among the pairs that were trained on."""

    held_out: int
    """Rows of other splits."""
    empty: int
    """Rows without an image or a caption."""
    skipped: int
    """Images that could not be used."""


class Pairs:
    """Image-caption pairs of all splits. The data is parsed once, and each split is read once and kept.

    Example:
        >>> pairs = Pairs.of({"image": ["a.jpg", "b.jpg"], "caption": ["two dogs", "a red car"]})
        >>> pairs
        Pairs('pairs in memory', 2 pairs, 2 images, splits train, dev)
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._read: dict[str, Split] = {}

    @classmethod
    def at(cls, location: Location, *, images: str | Path | None = None) -> "Pairs":
        """Open the pairs at a location; `images` is the folder of the image files."""
        return cls(open_source(location, images=images))

    @classmethod
    def of(
        cls,
        data: Any,
        captions: Sequence[str] | None = None,
        *,
        images: str | Path | None = None,
        features: Given = None,
        text_features: Given = None,
        ids: Names = None,
        image_index: Any = None,
        columns: Columns = USUAL,
        layout: str | None = None,
    ) -> "Pairs":
        """Pairs from a path, a table in memory, or images with their captions.

        Args:
            data: A path (table, folder of features, folder of embeddings); or, in memory, a DataFrame, a pyarrow Table
                or a dict of lists with columns `image`, `caption` and optionally `split`; or a list of image files or
                PIL images, or an array of features `(images, regions, size)` or `(images, size)`.
            captions: The captions of a list or an array of images.
            images: The folder of the image files that a table names.
            features: Features of a table's images: a `.npy` file or an array.
            text_features: A vector for each caption: a `.npy` file or an array.
            ids: The image id of each row of the features: a file with one id per line, or a list.
            image_index: For an array, the image row of each caption. By default all images have equally many captions.
            columns: Names of a table's columns of images and captions.
            layout: The name of the layout of a path; None: recognised by looking.

        Returns:
            The pairs; they need not have features yet.
        """
        if isinstance(data, Pairs):
            return data if features is text_features is None else data.with_features(features, ids, text_features)
        folder = None if images is None else Path(images)
        in_lists = not isinstance(data, str | Path) and not memory.is_table(data)
        if not in_lists and (captions is not None or image_index is not None):
            raise InputError(
                "a path or a table has its own captions",
                where=str(data) if isinstance(data, str | Path) else memory.NAME,
                hint="pass {captions} and {image_index} with a list or an array only",
            )
        if isinstance(data, str | Path):
            where = Location(str(data), image_column=columns.image, caption_column=columns.caption, layout=layout)
            source = open_source(where, images=folder)
        elif not in_lists:
            read = hub.from_dataset if hub.is_dataset(data) else memory.from_table
            source = read(data, columns, folder)
        elif captions is None:
            raise InputError(
                f"{type(data).__name__}: expected a path, a table, or images with their captions",
                hint="pass {captions} with a list or an array",
            )
        elif isinstance(captions, str):
            raise InputError("captions: expected a list of texts, got a single text")
        elif hasattr(data, "shape") and np.asarray(data).dtype.kind in "fiub":
            source = memory.from_arrays(data, captions, ids=ids, image_index=image_index, images=folder)
            ids = None
        else:
            source = memory.from_lists(list(data), list(captions), folder)
        if any(given is not None for given in (features, ids, text_features)):
            source = source.with_features(features, ids, text_features)
        source.splits()  # raises now if a table cannot be read
        return cls(source)

    @property
    def name(self) -> str:
        """The name of the data in messages."""
        return self.source.name

    @property
    def location(self) -> Location | None:
        """Where the data is stored, enough to open it again; None for data in memory (see `save`)."""
        return self.source.location

    @property
    def is_table(self) -> bool:
        """Whether the pairs are rows of a table, whose features are stored separately."""
        return self.source.is_table

    @property
    def has_features(self) -> bool:
        """Whether the images have features."""
        return self.source.has_features

    @property
    def has_text_features(self) -> bool:
        """Whether each caption has a vector."""
        return self.source.has_text_features

    @property
    def pictures(self) -> Pictures | None:
        """Where the images lie; None if that is unknown."""
        return self.source.pictures

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out of the data when it was read, in sentences."""
        return self.source.notes

    @cached_property
    def splits(self) -> list[str]:
        """Names of the splits: train, dev, test first, others after them."""
        return in_order(self.source.splits())

    def split(self, name: str) -> Split:
        """The pairs of one split, read on first use."""
        key = split_name(name) if self.is_table else name
        if key not in self._read:
            self._read[key] = self.source.read(name)
        return self._read[key]

    def __len__(self) -> int:
        """The number of pairs in all splits."""
        rows = self.source.rows()
        if rows is None:
            return sum(len(self.split(name)) for name in self.splits)
        return len(whole_rows(rows)) if self.source.skip_empty else len(rows)

    @property
    def captions(self) -> list[str]:
        """The caption of each pair, split by split or in the order of the rows."""
        return self._column("caption")

    @property
    def images(self) -> list[str]:
        """The name of each pair's image, split by split or in the order of the rows."""
        return self._column("image")

    def _column(self, name: str) -> list[str]:
        rows = self.source.rows()
        if rows is not None:
            used = rows.take(whole_rows(rows)) if self.source.skip_empty else rows
            return list(used[name].to_pylist())
        splits = [self.split(split) for split in self.splits]
        if name == "caption":
            return [caption for split in splits for caption in split.captions]
        return [split.image_ids[image] for split in splits for image in split.image_index]

    def __repr__(self) -> str:
        name = Path(self.name).name if self.location is not None else self.name
        try:
            images = len(set(self.images) - {""})
            return f"Pairs({name!r}, {len(self):,} pairs, {images:,} images, splits {', '.join(self.splits)})"
        except InputError:  # a repr must not fail; reading the data raises the error
            return f"Pairs({name!r})"

    def with_features(self, features: Given = None, ids: Names = None, text_features: Given = None) -> "Pairs":
        """The same pairs with other features or caption vectors; None keeps the present ones.

        Args:
            features: A `.npy` file or an array, (images, regions, size) or (images, size).
            ids: The image id of each row of the features: a file with one id per line, or a list.
            text_features: A `.npy` file or an array, one vector per row of the data.
        """
        return Pairs(self.source.with_features(features, ids, text_features))

    def with_images(self, folder: str | Path) -> "Pairs":
        """The same pairs with this folder of image files."""
        return Pairs(self.source.with_images(Files(require_folder(Path(folder)))))

    def without_empty(self) -> "Pairs":
        """The same pairs without rows that lack an image or a caption, which otherwise raise an error."""
        return self if self.source.skip_empty else Pairs(self.source.without_empty())

    def wanted_images(self) -> list[Wanted]:
        """The images of the pairs, each once."""
        pictures = self.source.pictures
        if pictures is None and not self.is_table:
            hint = "pass {images}, the folder that they lie in, to make others"
            raise InputError("has features, and no folder of image files", where=self.name, hint=hint)
        names = [name for name in dict.fromkeys(self.images) if name]
        if (pictures is None or isinstance(pictures, Files)) and names and all(map(is_address, names)):
            raise InputError("images are addresses on the web, which are never fetched", where=self.name, hint=_FETCH)
        if pictures is None:
            hint = "pass {images}, the folder that they lie in, or {features}"
            raise InputError("its images were not found", where=self.name, hint=hint)
        return [Wanted(name, pictures) for name in names]

    def check(self) -> np.ndarray:
        """Raise an error, before long work, if a table has too few pairs to train on.

        Returns:
            Rows, counted from 0, that lack an image or a caption; `without_empty` leaves them out.
        """
        rows = self.source.rows()
        if rows is None or not self.is_table:
            return np.empty(0, dtype=np.int64)
        whole = whole_rows(rows)
        if not len(whole):
            raise InputError("no row has both an image and a caption", where=self.name)
        used = rows.take(whole)
        rows_of(self.name, used, "dev")
        train = rows_of(self.name, used, "train")
        hint = "training compares pairs with each other; add pairs with other images"
        if len(train) < 2:
            raise InputError("only one training pair", where=self.name, hint=hint)
        if len(pc.unique(used["image"].take(train))) < 2:
            raise InputError("all training pairs show one image", where=self.name, hint=hint)
        return np.setdiff1d(np.arange(len(rows)), whole)

    def unjudged(self, judged: Split) -> Unjudged:
        """How much of the data is not in `judged`, the split that was trained on."""
        rows = self.source.rows()
        if rows is None or not self.is_table:
            return Unjudged(len(self) - len(judged), 0, 0)
        whole = whole_rows(rows)
        names = rows["image"].take(whole).to_pylist()
        skipped: set[str] = set()
        if self.location is not None:
            listed = Path(self.location.ids or judged.source).with_name("skipped.csv")
            skipped = read_skipped(listed) & (set(names) - set(judged.image_ids))
        held_out = sum(name not in skipped for name in names) - len(judged)
        return Unjudged(held_out, len(rows) - len(whole), len(skipped))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> "Pairs":
        """Write pairs that are in memory to a folder, so that a run can read them again later.

        Saving the same pairs to the same folder again writes nothing. Pairs on disk stay where they are.

        Args:
            folder: A new folder, or one that the same pairs were saved to.
            overwrite: Replace other pairs that were saved there.

        Returns:
            The pairs, read from that folder.
        """
        if not isinstance(self.source, MemorySource):
            return self
        pictures = None if self.source.held else self.source.pictures
        saved = open_source(save(self.source, Path(folder), overwrite=overwrite))
        return Pairs(saved if pictures is None else saved.with_images(pictures))
