"""Options that several commands share, and the pairs that they name."""

from pathlib import Path
from typing import Annotated

import typer

import crcl
from crcl.api.common import path_of
from crcl.auditing.scores.of_run import MEANINGS
from crcl.data.pairs import Pairs
from crcl.data.sources import LAYOUTS
from crcl.runs.describe import stored_config
from crcl.runs.folder import Run
from crcl.training.inputs import moved_data

FILES = "Files of features and names of columns"
FLAGGED = "Which pairs are flagged"
MACHINE = "Machine"

Data = Annotated[
    Path,
    typer.Argument(
        help="A table (.csv .tsv .jsonl .parquet), a folder in the field's layout or of embeddings, hub:USER/NAME for "
        "a data set on the Hugging Face hub, or any other layout of docs/data.md."
    ),
]
Images = Annotated[
    Path | None, typer.Option(help="Folder of the table's images; the table's own folder, if not given.")
]
MovedData = Annotated[
    Path | None, typer.Option("--data", help="The run's data, if it has moved.", rich_help_panel=FILES)
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
Layout = Annotated[
    str | None,
    typer.Option(help=f"Layout of the data, if not recognised: {', '.join(LAYOUTS)}.", rich_help_panel=FILES),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, e.g. loss.tau=0.03; `crcl info` lists all.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.", rich_help_panel=MACHINE)]
Memory = Annotated[
    float | None,
    typer.Option(help="GiB for intermediate results; the run's setting, if not given.", rich_help_panel=MACHINE),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="Number type of matrix products: float32 (if not given) or bfloat16.", rich_help_panel=MACHINE),
]
Threshold = Annotated[
    float | None, typer.Option(help="Flag all pairs with a lower correspondence, 0 to 1.", rich_help_panel=FLAGGED)
]
Precision = Annotated[
    float | None,
    typer.Option(help="Or flag as many as possible at this estimated precision, e.g. 0.95.", rich_help_panel=FLAGGED),
]
Score = Annotated[
    str | None,
    typer.Option(
        help=f"What to judge by; what tells decoys from pairs best, if not given: {', '.join(MEANINGS)}.",
        rich_help_panel=FLAGGED,
    ),
]
Keep = Annotated[
    float | None,
    typer.Option(help="Or keep this share of the judged pairs, the best, e.g. 0.3.", rich_help_panel=FLAGGED),
]
WrongAtMost = Annotated[
    float | None,
    typer.Option(
        help="Or remove as few as possible: at most this share of the kept is wrong, e.g. 0.05.",
        rich_help_panel=FLAGGED,
    ),
]
Rerank = Annotated[
    Path | None, typer.Option(help="A second run, of any matcher, which ranks the first candidates again.")
]
Candidates = Annotated[
    int | None, typer.Option(help="With --rerank: how many candidates the second run ranks again; 100, if not given.")
]
Verdicts = Annotated[
    Path | None,
    typer.Option(help="Train with the verdicts of a reviewed run, or of a file (.csv, .jsonl); docs/verdicts.md."),
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
    layout: str | None = None,
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
        layout=layout,
    )


def moved(
    run: Path, data: Path | None, features: Path | None, ids: Path | None, text_features: Path | None
) -> Pairs | None:
    """The run's data if it has moved or has other features; None if it is where the run's config says."""
    if data is None and features is ids is text_features is None:
        return None
    config = stored_config(Run.open(path_of(run)))
    return moved_data(config, data, features=features, ids=ids, text_features=text_features)
