"""What an audit of somebody's own data does before there is a run: features where there are none, and how to train."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from crcl import recipe
from crcl.config import Config
from crcl.data import embeddings, tables
from crcl.data.formats import holds_splits
from crcl.data.images import wanted_images
from crcl.extract import Extracted, Extractor, Progress, extract

Watch = Callable[[str], AbstractContextManager[Progress | None]]


def is_data(path: Path) -> bool:
    """Whether this looks like data to be trained on, and not like a run folder."""
    return _is_table(path) or embeddings.is_embeddings(path) or holds_splits(path)


def needs_features(data: Path, features: Path | None) -> bool:
    """Whether the data is a table without a file of features."""
    return _is_table(data) and features is None and not any(path.is_file() for path in tables.default_features(data))


def make_features(
    table: Path,
    folder: Path,
    extractor: Extractor,
    *,
    images: Path | None,
    columns: tables.Columns,
    overwrite: bool,
    watch: Watch,
) -> Extracted:
    """Features of a table's images in FOLDER/features; unusable images are listed there, and their pairs left out."""
    wanted = wanted_images([table], folder=images, columns=columns)
    return extract(wanted, extractor, folder / "features", overwrite=overwrite, watch=watch)


def plan(data: Path, *, preset: str | None, asked: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """How to train for an audit: by the preset that suits the data, unless one is asked for."""
    vectors = asked.get("data.text_features") is not None or embeddings.is_embeddings(data)
    given = {key: str(value.absolute()) if isinstance(value, Path) else value for key, value in asked.items()}
    return recipe.asked_config(
        preset=preset or ("embeddings" if vectors else "cpu"),
        base={"data.path": str(data.absolute())} | {key: value for key, value in given.items() if value is not None},
        settings=settings,
    )


def _is_table(path: Path) -> bool:
    return path.suffix in tables.SUFFIXES and not path.is_dir()
