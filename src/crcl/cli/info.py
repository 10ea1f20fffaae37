"""`crcl info`: facts about data, a run or an index; all settings; a model card."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import crcl
from crcl.api.common import path_of
from crcl.cli.console import out, say
from crcl.cli.options import CaptionColumn, Features, Ids, ImageColumn, Layout, TextFeatures, pairs_of
from crcl.data.sources import layout_of
from crcl.errors import InputError
from crcl.retrieval.engines.addresses import is_address
from crcl.retrieval.index.folder import is_index
from crcl.runs.card import model_card


def info(
    path: Annotated[
        str | None,
        typer.Argument(help="Data, a run, an audit or an index: its path; all settings, if not given."),
    ] = None,
    card: Annotated[
        bool, typer.Option("--card", help="A model card of the run as Markdown: data, noise, settings, scores, limits.")
    ] = False,
    features: Features = None,
    text_features: TextFeatures = None,
    ids: Ids = None,
    image_column: ImageColumn = "image",
    caption_column: CaptionColumn = "caption",
    layout: Layout = None,
) -> None:
    """Facts about data, a run or an index: counts, shapes, settings, progress; without a path, every setting.

    Example: `crcl info runs/first`, or `crcl info runs/first --card > README.md`
    """
    if card:
        if path is None:
            raise InputError("a model card describes a run", hint="name a run folder")
        print(model_card(path_of(path)), end="")
        return
    if path is None:
        table = Table("key", "type", "default", "meaning", box=None, pad_edge=False)
        for setting in crcl.info():
            table.add_row(*setting)
        out.print(table)
        return
    source: str | crcl.Pairs = path
    if not is_address(path) and not is_index(path) and layout_of(Path(path), layout) is not None:
        source = pairs_of(
            Path(path),
            features=features,
            text_features=text_features,
            ids=ids,
            image_column=image_column,
            caption_column=caption_column,
            layout=layout,
        )
    for name, fact in crcl.info(source):
        say(f"{name:<12}{fact}")
