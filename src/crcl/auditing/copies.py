"""The copies that an audit found: tables of images and captions that occur more than once, sentences, and a file."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crcl.auditing.findings import columns_of, first_shown, write_table
from crcl.data.duplicates import MOST, Copies, find_copies, generic_limit, is_file_name, shared_images
from crcl.data.pairs import Pairs
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.progress import SILENT, Progress

_COLUMNS = ["kind", "group", "row", "image", "caption", "similarity"]


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Images and captions of the training pairs that occur more than once.

    Example:
        >>> audit.duplicates
        12 images are exact copies of other images.
        3 captions are generic (file names, or shown with 34 images or more), in 340 pairs.
        >>> audit.duplicates.images.to_pandas()
        >>> audit.duplicates.generic.column("caption").to_pylist()
        ['a photo', 'untitled', 'IMG_1234.JPG']
    """

    pairs: Split
    copies: Copies
    across: dict[str, int] = field(default_factory=dict)
    """How many images of another split are exact copies of training images, by the name of the split."""

    @property
    def images(self) -> pa.Table:
        """Exact copies, one row per image: group, row (the first that shows it), image."""
        return self._members(self.copies.same, np.arange(self.pairs.images), self._of_image)

    @property
    def near(self) -> pa.Table:
        """Near copies, one row per image: row, image, near_row, near_image, similarity; the most similar first."""
        found = np.flatnonzero(self.copies.near >= 0)
        found = found[np.argsort(-self.copies.similarity[found], kind="stable")]
        one, other = self._of_image(found), self._of_image(self.copies.near[found])
        named = {f"near_{name}": values for name, values in other.items()}
        return pa.table(one | named | {"similarity": pa.array(self.copies.similarity[found].astype(np.float32))})

    @property
    def captions(self) -> pa.Table:
        """Captions of more than one pair, without the generic ones: caption, pairs, images; the most frequent first."""
        return self._texts(~self.copies.generic, least=2)

    @property
    def generic(self) -> pa.Table:
        """Captions that say nothing of one image: caption, pairs, images, why; the most frequent first."""
        texts = self._texts(self.copies.generic, least=1)
        why = ["file name" if is_file_name(text) else "many images" for text in texts["caption"].to_pylist()]
        return texts.append_column("why", pa.array(why, pa.string()))

    @property
    def limit(self) -> int:
        """The number of different images that must carry a caption to make it generic, unless it is a file name."""
        return generic_limit(len(np.unique(self.copies.same)))

    def table(self) -> pa.Table:
        """All of these in one table, a row for each image or pair.

        Columns: kind (same image, near image, same caption, generic caption), group, row, image, caption (of the kinds
        of captions) and similarity (of near images).
        """
        copies, numbers = self.copies, np.arange(len(self.pairs))
        parts = {
            "same image": self.images,
            "near image": self._couples(),
            "same caption": self._members(copies.text, numbers[~copies.generic], self._of_pair),
            "generic caption": self._members(copies.text, numbers[copies.generic], self._of_pair, least=1),
        }
        tables = [part.add_column(0, "kind", pa.array([kind] * len(part), pa.string())) for kind, part in parts.items()]
        return pa.concat_tables(tables, promote_options="default").select(_COLUMNS)

    def columns(self, rows: np.ndarray) -> dict[str, pa.Array]:
        """Columns for the table of an audit, for these pairs; only of those kinds that there are.

        copy_of: the first image with the same content; near_copy_of: the most similar image; generic_caption.
        """
        images = self.pairs.image_index[rows]
        same = np.where(self.copies.same == np.arange(self.pairs.images), -1, self.copies.same)
        columns = {}
        for name, other in (("copy_of", same), ("near_copy_of", self.copies.near)):
            if (other >= 0).any():
                columns[name] = pa.array([self._name(number) for number in other[images]], pa.string())
        if self.copies.generic.any():
            columns["generic_caption"] = pa.array(self.copies.generic[rows])
        return columns

    def told(self) -> dict[str, str]:
        """A sentence for each kind of copies that there is: images, near, across, captions, generic."""
        copies, captions, generic = self.copies, self.captions, self.generic
        exact, near = int((copies.same != np.arange(self.pairs.images)).sum()), int((copies.near >= 0).sum())
        lines = {}
        if exact:
            told = counted(exact, "image is an exact copy of another image", "images are exact copies of other images")
            lines["images"] = f"{told}."
        if near:
            told = counted(near, "image is a near copy of another image", "images are near copies of other images")
            lines["near"] = f"{told} (similarity {copies.least:g} or more)."
        counts = [
            counted(count, f"image of {split} is a copy", f"images of {split} are copies")
            for split, count in self.across.items()
            if count
        ]
        if counts:
            lines["across"] = f"{' and '.join(counts)} of train images."
        if len(captions):
            texts, pairs = len(captions), pc.sum(captions["pairs"]).as_py()
            lines["captions"] = (
                f"{counted(texts, 'caption occurs', 'captions occur')} more than once, in {pairs:,} pairs."
            )
        if len(generic):
            texts, pairs = len(generic), pc.sum(generic["pairs"]).as_py()
            told = counted(texts, "caption is", "captions are")
            lines["generic"] = (
                f"{told} generic (file names, or shown with {self.limit:,} images or more), in "
                f"{counted(pairs, 'pair', 'pairs')}."
            )
        return lines

    def sentences(self) -> list[str]:
        """What was found, a sentence for each kind of copies that there is."""
        return list(self.told().values())

    def __bool__(self) -> bool:
        return bool(self.told())

    def __repr__(self) -> str:
        return "\n".join(self.sentences()) or "No copies."

    def _of_image(self, images: np.ndarray) -> dict[str, Any]:
        shown = self.pairs.rows[first_shown(self.pairs)[images]] if len(self.pairs) else images
        return {"row": pa.array(shown), "image": pa.array([self._name(number) for number in images], pa.string())}

    def _of_pair(self, pairs: np.ndarray) -> dict[str, Any]:
        images = self.pairs.image_index[pairs]
        return {
            "row": pa.array(self.pairs.rows[pairs]),
            "image": pa.array([self._name(number) for number in images], pa.string()),
            "caption": pa.array([self.pairs.captions[number] for number in pairs], pa.string()),
        }

    def _couples(self) -> pa.Table:
        """Near copies as groups of two images, the most similar first."""
        found = np.flatnonzero(self.copies.near >= 0)
        couples, first = np.unique(
            np.sort(np.stack([found, self.copies.near[found]]), axis=0), axis=1, return_index=True
        )
        similarity = self.copies.similarity[found[first]].astype(np.float32)
        order = np.argsort(-similarity, kind="stable")
        of_images = self._of_image(couples[:, order].T.ravel())
        return pa.table(
            {"group": np.repeat(np.arange(len(order)), 2), **of_images, "similarity": np.repeat(similarity[order], 2)}
        )

    def _name(self, image: int | np.integer) -> str | None:
        return None if image < 0 else str(self.pairs.image_ids[int(image)])

    def _members(
        self, first: np.ndarray, numbers: np.ndarray, describe: Callable[[np.ndarray], dict[str, Any]], least: int = 2
    ) -> pa.Table:
        """Groups of at least so many of these numbers that share their first one: group, then what `describe` says."""
        _, group, count = np.unique(first[numbers], return_inverse=True, return_counts=True)
        large = count[group] >= least
        numbers, group = numbers[large], np.unique(group[large], return_inverse=True)[1]
        order = np.lexsort((numbers, group))
        return pa.table({"group": pa.array(group[order]), **describe(numbers[order])})

    def _texts(self, chosen: np.ndarray, least: int) -> pa.Table:
        """The captions of the chosen pairs that occur at least so often, with their numbers of pairs and images."""
        numbers = np.flatnonzero(chosen)
        texts, place, pairs = np.unique(self.copies.text[numbers], return_inverse=True, return_counts=True)
        shown = self.copies.same[self.pairs.image_index[numbers]]
        couples = np.unique(np.stack([place, shown], axis=1), axis=0)
        images = np.bincount(couples[:, 0], minlength=len(texts))
        order = np.flatnonzero(pairs >= least)
        order = order[np.lexsort((texts[order], -images[order], -pairs[order]))]
        captions = pa.array([self.pairs.captions[text] for text in texts[order]], pa.string())
        return pa.table({"caption": captions, "pairs": pa.array(pairs[order]), "images": pa.array(images[order])})


def find_duplicates(pairs: Split, data: Pairs, *, least: float, progress: Progress = SILENT) -> Duplicates:
    """The copies among the training pairs of some data, and the images of its other splits that are copies of them.

    Args:
        pairs: The training pairs.
        data: The data with all its splits.
        least: Similarity from which images are near copies.
        progress: Receives progress and a note if near copies are not searched.
    """
    with progress.task("copies") as advance:
        copies = find_copies(pairs, least=least, advance=advance)
    if not copies.searched and least < 1:
        progress.note(f"near copies are not searched among more than {MOST:,} images; exact copies are")
    across = {}
    for name in data.splits:
        if name != "train":
            with suppress(InputError):  # a split that cannot be read is no matter of this audit
                across[name] = shared_images(pairs, data.split(name))
    return Duplicates(pairs, copies, across)


def duplicates_file(table: Path) -> Path:
    """The file of copies beside a table: `duplicates.csv` beside `audit.csv`, `x-duplicates.csv` beside `x.csv`."""
    return table.with_name(f"{'' if table.stem == 'audit' else f'{table.stem}-'}duplicates{table.suffix}")


def check_duplicates_file(table: Path) -> None:
    """Refuse, before long work, to replace a file that is not an earlier list of copies."""
    path = duplicates_file(table)
    if path.exists() and columns_of(path) != _COLUMNS:
        raise InputError(
            "exists and is not a list of copies of an earlier audit, so it is not replaced",
            where=path,
            hint="move it, or write the audit elsewhere",
        )


def write_duplicates(found: Duplicates, table: Path) -> Path | None:
    """Write the copies beside an audit's table; without any, an earlier file is removed. Returns the file, if any."""
    check_duplicates_file(table)
    path, content = duplicates_file(table), found.table()
    if not len(content):
        path.unlink(missing_ok=True)
        return None
    write_table(content, path)
    return path


def counted(number: int, one: str, several: str) -> str:
    """A number with its word, such as `1 pair` or `2 pairs`."""
    return f"{number:,} {one if number == 1 else several}"
