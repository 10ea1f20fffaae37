"""What was judged of some data, and what is to become of it: the input of every writer of cleaned data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from crcl.errors import InputError, nth_row
from crcl.storage import replacing, replacing_folder

COLUMN = "correspondence"
"""Name of the column, the key or the member that `mark` adds."""


@dataclass(frozen=True)
class Judged:
    """The judged rows of some data. Rows are counted from 0 over all of it, in the order that its layout reads them."""

    data: Path
    """The data, for messages."""
    expected: dict[int, tuple[str, str]]
    """Image and caption of the judged rows: the data is read once more, and must come out the same."""
    correspondence: dict[int, np.float32]
    """Of the judged rows; others are kept."""
    suspects: set[int]
    """Rows to leave out, unless all are marked instead."""
    moved: dict[int, str]
    """The new image of the rows that are moved."""
    mark: bool = False
    """Keep all rows, and add correspondences."""
    images: Literal["link", "copy"] | None = None
    """What to do with image files beside cleaned data: nothing, by default."""
    rewrite: bool = False
    """Write containers of images anew, instead of lists of what to keep."""
    corrected: dict[int, str] = field(default_factory=dict)
    """The new caption of the rows that get one."""

    def keeps(self, row: int) -> bool:
        """Whether a row is written."""
        return self.mark or row not in self.suspects

    def check(self, row: int, image: Any, caption: Any) -> None:
        """Refuse a row that is not the pair that was judged."""
        if row in self.expected and self.expected[row] != (str(image).strip(), str(caption).strip()):
            raise self.changed(f"{nth_row(row)} is not the pair that was judged")

    def check_count(self, rows: int) -> None:
        """Refuse data that has lost judged rows."""
        if self.expected and max(self.expected) >= rows:
            raise self.changed(f"it has {rows} rows, but {nth_row(max(self.expected))} was judged")

    def changed(self, why: str) -> InputError:
        """The error for data that is not what was judged."""
        return InputError(f"cannot be cleaned ({why})", where=self.data, hint="audit it again if it was changed since")

    def one_line(self, row: int) -> str:
        """The new caption of a row, for a container in which a caption is a line."""
        caption = self.corrected[row]
        if len(caption.splitlines()) > 1 or "\t" in caption:
            raise InputError(
                f"the new caption of {nth_row(row)} has several lines or tabs, which do not fit there",
                where=self.data,
                hint="give it a caption of one line",
            )
        return caption

    def has_column(self) -> InputError:
        """The error for data that is marked already."""
        return InputError(f"has a column '{COLUMN}' already", where=self.data, hint="rename it, or leave {mark} out")


def written(path: Path, write: Callable[[Path], int]) -> int:
    """Write a file under a temporary name and rename it; returns what `write` returns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            return write(temporary)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot be written ({getattr(error, 'strerror', None) or error})", where=path) from error


def written_folder(path: Path, write: Callable[[Path], int]) -> int:
    """Fill a folder under a temporary name and rename it; returns what `write` returns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(path, busy="another process writes to it") as temporary:
            return write(temporary)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot be written ({getattr(error, 'strerror', None) or error})", where=path) from error
