"""Options that several commands have, and what becomes of the paths in them."""

from pathlib import Path
from typing import Annotated

import typer

from crcl import config
from crcl.data.sources.rows import USUAL, Columns
from crcl.errors import InputError

Data = Annotated[
    Path, typer.Argument(help="Folder in the field's layout or of embeddings, or a table (.csv .tsv .jsonl .parquet).")
]
Features = Annotated[Path | None, typer.Option(help="A table's features file (.npy).")]
TextFeatures = Annotated[Path | None, typer.Option(help="Vectors of a table's captions (.npy), one per row.")]
Ids = Annotated[Path | None, typer.Option(help="A table's image ids, one per row of the features.")]
ImageColumn = Annotated[
    str | None, typer.Option(help="What the table calls its column of images; image, if not given.")
]
CaptionColumn = Annotated[str | None, typer.Option(help="What it calls its column of captions; caption, if not given.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any key, e.g. loss.tau=0.03; `crcl info` lists all.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Memory = Annotated[float | None, typer.Option(help="GiB for intermediate results; the run's train.memory, mostly 4.")]


def columns_of(image: str | None, caption: str | None) -> Columns:
    """What the table calls its columns."""
    return Columns(image or USUAL.image, caption or USUAL.caption)


def text(path: Path | None) -> str | None:
    """A path as settings have it."""
    return None if path is None else str(path)


def located(
    stored: config.Config, data: Path | None, features: Path | None, ids: Path | None, text_features: Path | None
) -> config.Config:
    """The stored config with data that is elsewhere now."""
    if data is None and not Path(stored.data.path).exists():
        raise InputError(f"{stored.data.path}: the run's data is not there; say with --data where it is now")
    files = {"data.features": features, "data.text_features": text_features, "data.ids": ids}
    if data is not None:  # the old table's files do not belong to other data
        stored = config.load(over=stored, base=dict.fromkeys(files))
    moved = {"data.path": data} | files
    return config.load(over=stored, base={key: str(path) for key, path in moved.items() if path is not None})


def refuse_input(output: Path, *inputs: str) -> None:
    """Never write over what was read."""
    if any(output.exists() and Path(name).exists() and output.samefile(name) for name in inputs):
        raise InputError(f"{output}: that is the data itself; name another file to write")


def make_folder(folder: Path) -> None:
    """A folder to write to, if it is not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error
