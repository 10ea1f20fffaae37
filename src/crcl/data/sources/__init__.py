"""Layouts of data, one module each, and opening data in whatever layout it has."""

import os
from pathlib import Path

from crcl.data.pictures.files import Files, require_folder
from crcl.data.sources import captioned, datacomp, embeddings, hub, hub_parquet, imagefolder, precomp, table, tars
from crcl.data.sources.annotations import cc, coco, karpathy, llava, open_clip
from crcl.data.sources.base import Layout, Location, Source
from crcl.data.sources.unknown import not_recognised
from crcl.errors import InputError, did_you_mean

LAYOUTS: dict[str, Layout] = {
    "datasets": hub.LAYOUT,
    "tars": tars.LAYOUT,
    "hub-parquet": hub_parquet.LAYOUT,
    "imagefolder": imagefolder.LAYOUT,
    "coco": coco.LAYOUT,
    "karpathy": karpathy.LAYOUT,
    "llava": llava.LAYOUT,
    "open_clip": open_clip.LAYOUT,
    "cc": cc.LAYOUT,
    "table": table.LAYOUT,
    "embeddings": embeddings.LAYOUT,
    "datacomp": datacomp.LAYOUT,
    "datacomp-b32": datacomp.SMALL,
    "precomp": precomp.LAYOUT,
    "captioned": captioned.LAYOUT,
}
"""All layouts on disk. The first that recognises a path reads it."""


def layout_of(path: str | Path, layout: str | None = None) -> str | None:
    """The name of the layout of a path: the given one, or that which recognises it; None if no layout does."""
    if layout is not None:
        if layout not in LAYOUTS:
            raise InputError(
                f"no layout '{layout}'{did_you_mean(layout, LAYOUTS)}; layouts: {', '.join(LAYOUTS)}",
                where=path,
                hint="pass one of these as {layout}, or leave it out",
            )
        return layout
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # noqa: PTH110, PTH112, PTH113
        raise InputError("a pipe or a device, not a file", where=path)
    return next((name for name, known in LAYOUTS.items() if known.recognises(Path(path))), None)


def open_source(location: Location, *, images: str | Path | None = None) -> Source:
    """Open the data at a location, without reading it yet.

    Args:
        location: Where the data is stored.
        images: The folder of the image files.
    """
    pictures = None if images is None else Files(require_folder(Path(images)))
    name = layout_of(location.path, location.layout)
    if name is None:
        raise not_recognised(Path(location.path))
    return LAYOUTS[name].open(location, pictures)
