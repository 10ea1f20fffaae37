"""One split of data on the disk, as most tests want it."""

from pathlib import Path
from typing import Any

from crcl.data.pairs import Pairs
from crcl.data.sources.base import Location
from crcl.data.split import Split


def read(path: str | Path, split: str = "train", *, skip_empty: bool = False, **options: Any) -> Split:
    """The pairs of one split."""
    pairs = Pairs.of(path, **options)
    return (pairs.without_empty() if skip_empty else pairs).split(split)


def splits(path: str | Path) -> list[str]:
    """The splits that are there."""
    return Pairs.at(Location(str(path))).splits
