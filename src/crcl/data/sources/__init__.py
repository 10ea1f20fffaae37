"""Layouts of data, one module each, and opening data in whatever layout it has."""

from pathlib import Path

from crcl.data.files import SHOWN, require
from crcl.data.pictures.files import Files, require_folder
from crcl.data.sources import captioned, datacomp, embeddings, hub, hub_parquet, imagefolder, precomp, table, tars
from crcl.data.sources.annotations import cc, coco, karpathy, llava, open_clip
from crcl.data.sources.base import Layout, Location, Source
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
        raise _not_recognised(Path(location.path))
    return LAYOUTS[name].open(location, pictures)


def _not_recognised(path: Path) -> InputError:
    """The error for a path that no layout recognises."""
    expected = "data in one of these layouts: " + "; ".join(f"{name}, {known.title}" for name, known in LAYOUTS.items())
    if not path.is_dir():
        if not path.exists():
            require(path, purpose="a table, a folder of features or other data")
        return InputError(f"expected {expected}", where=path)
    found = sorted(file.name for file in path.iterdir())
    tables = [name for name in found if name.endswith(table.SUFFIXES) and not name.endswith("_caps.tsv")]
    advice = f"; to read a table, name the file: {path / tables[0]}" if tables else ""
    wanted = f"train{precomp.IMAGES}"
    return InputError(
        f"no {wanted}{did_you_mean(wanted, found)}{advice}; it contains {', '.join(found[:SHOWN]) or 'no files'}",
        where=path,
    )
