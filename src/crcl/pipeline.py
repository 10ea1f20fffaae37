"""What an audit of somebody's own data does before there is a run: features where there are none, and how to train."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from crcl import inputs, recipe
from crcl.config import Config
from crcl.data import embeddings, tables
from crcl.data.formats import holds_splits
from crcl.data.images import wanted_images
from crcl.extract import Extracted, Extractor, Progress, extract

Watch = Callable[[str], AbstractContextManager[Progress | None]]
_STEPS = 400  # of the frozen epochs, in which every pair is believed
_MOST_FROZEN = 10
_SMALL = 4000  # pairs below which batches are small, for more steps


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
    """How to train for an audit: as suits kind and number of the pairs, unless a preset is asked for."""
    vectors = asked.get("data.text_features") is not None or embeddings.is_embeddings(data)
    given = {key: str(value.absolute()) if isinstance(value, Path) else value for key, value in asked.items()}
    base = {"data.path": str(data.absolute())} | {key: value for key, value in given.items() if value is not None}
    if preset is not None:
        return recipe.asked_config(preset=preset, base=base, settings=settings)
    chosen = recipe.asked_config(preset="embeddings" if vectors else "cpu", base=base, settings=settings)
    suited = schedule_for(len(inputs.read_split(chosen, "train")), vectors=vectors)
    return recipe.asked_config(preset="embeddings" if vectors else "cpu", base=base | suited, settings=settings)


def schedule_for(pairs: int, *, vectors: bool) -> dict[str, Any]:
    """Batch size, frozen epochs and pieces for so many pairs.

    What is believed first comes from the end of the frozen epochs. These must be steps enough to have learnt something,
    and too few to know the wrong pairs by heart: some hundreds, however many pairs there are.
    """
    size = 256 if vectors and pairs >= 8 * _SMALL else 128 if pairs >= _SMALL else 32
    steps = max(pairs // size, 1)
    frozen = min(max(round(_STEPS / steps), 1), _MOST_FROZEN)
    last = 3 * frozen + (2 if vectors else 7)
    return {
        "train.batch_size": size,
        "ledger.freeze_epochs": frozen,
        "train.pieces": [frozen + 2, frozen + 2, last] if not vectors else [frozen + 1, last],
        "train.lr_update": max(round(0.75 * last), 1),
    }


def _is_table(path: Path) -> bool:
    return path.suffix in tables.SUFFIXES and not path.is_dir()
