"""Options that several commands share, and the pairs that they name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.data.pairs import Pairs
from crcl.errors import InputError
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.training.inputs import data_of

FILES = "Files of features and names of columns"

Data = Annotated[
    Path, typer.Argument(help="A table (.csv .tsv .jsonl .parquet), a folder in the field's layout or of embeddings.")
]
Images = Annotated[
    Path | None, typer.Option(help="Folder of the table's images; the table's own folder, if not given.")
]
MovedData = Annotated[
    Path | None, typer.Option("--data", help="Where the run's data is now, if it has moved.", rich_help_panel=FILES)
]
Features = Annotated[Path | None, typer.Option(help="A table's features file (.npy).", rich_help_panel=FILES)]
TextFeatures = Annotated[
    Path | None, typer.Option(help="Vectors of a table's captions (.npy), one per row.", rich_help_panel=FILES)
]
Ids = Annotated[
    Path | None, typer.Option(help="A table's image ids, one per row of the features.", rich_help_panel=FILES)
]
ImageColumn = Annotated[str, typer.Option(help="The table's column of images.", rich_help_panel=FILES)]
CaptionColumn = Annotated[str, typer.Option(help="The table's column of captions.", rich_help_panel=FILES)]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, e.g. loss.tau=0.03; `crcl info` lists all.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Memory = Annotated[float | None, typer.Option(help="GiB for intermediate results; as the run was trained, mostly 4.")]
Threshold = Annotated[float | None, typer.Option(help="Flag all pairs with a lower correspondence, 0 to 1.")]
Precision = Annotated[
    float | None, typer.Option(help="Or flag as many as possible at this estimated precision, e.g. 0.95.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file or folder.")]


def pairs_of(
    data: Path,
    *,
    images: Path | None = None,
    features: Path | None = None,
    text_features: Path | None = None,
    ids: Path | None = None,
    image_column: str = "image",
    caption_column: str = "caption",
) -> Pairs:
    """The pairs that the options of a command name."""
    return crcl.read(
        data,
        images=images,
        features=features,
        text_features=text_features,
        ids=ids,
        image_column=image_column,
        caption_column=caption_column,
    )


def moved(
    run: Path, data: Path | None, features: Path | None, ids: Path | None, text_features: Path | None
) -> Pairs | None:
    """The run's data where it has moved or has other features now; None where it is as the run knows it."""
    if data is None and features is ids is text_features is None:
        return None
    config = stored_config(Run.open(run))
    if data is None:
        return data_of(config).with_features(features, ids, text_features)
    pairs = pairs_of(
        data,
        features=features,
        text_features=text_features,
        ids=ids,
        image_column=config.data.image_column,
        caption_column=config.data.caption_column,
    )
    return pairs.without_empty() if config.data.skip_empty and pairs.is_table else pairs


def refuse(given: Mapping[str, object], where: Path, what: str) -> None:
    """Refuse options that would change nothing."""
    names = [f"--{name}" for name, value in given.items() if value not in (None, False)]
    if names:
        raise InputError(f"{what}; {', '.join(names)} would change nothing", where=where)
