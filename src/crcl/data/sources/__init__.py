"""Layouts of data, one module each, and opening data in whatever layout it has."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crcl.data.files import SHOWN, require
from crcl.data.sources import embeddings, precomp, table
from crcl.data.sources.base import Location, Source, require_folder
from crcl.errors import InputError, did_you_mean


class Layout(NamedTuple):
    """Functions that recognise and open a layout."""

    recognises: Callable[[Path], bool]
    open: Callable[[Location, Path | None], Source]


LAYOUTS: dict[str, Layout] = {
    "table": Layout(table.recognises, table.TableSource.open),
    "embeddings": Layout(embeddings.recognises, embeddings.EmbeddingsSource.open),
    "precomp": Layout(precomp.recognises, precomp.PrecompSource.open),
}
"""All layouts on disk. The first that recognises a path reads it."""

_EXPECTED = f"a folder with {{split}}{precomp.IMAGES} files, or a table ({', '.join(table.SUFFIXES)})"


def layout_of(path: str | Path) -> str | None:
    """The name of the layout of a path; None if no layout recognises it."""
    return next((name for name, layout in LAYOUTS.items() if layout.recognises(Path(path))), None)


def open_source(location: Location, *, images: str | Path | None = None) -> Source:
    """Open the data at a location, without reading it yet.

    Args:
        location: Where the data is stored.
        images: The folder of the image files.
    """
    if images is not None:
        require_folder(Path(images))
    name = layout_of(location.path)
    if name is None:
        raise _not_recognised(Path(location.path))
    return LAYOUTS[name].open(location, None if images is None else Path(images))


def _not_recognised(path: Path) -> InputError:
    """The error for a path that no layout recognises."""
    if not path.is_dir():
        if not path.exists():
            require(path, purpose=_EXPECTED)
        return InputError(f"expected {_EXPECTED}", where=path)
    found = sorted(file.name for file in path.iterdir())
    tables = [name for name in found if name.endswith(table.SUFFIXES) and not name.endswith("_caps.tsv")]
    advice = f"; to read a table, name the file: {path / tables[0]}" if tables else ""
    wanted = f"train{precomp.IMAGES}"
    return InputError(
        f"no {wanted}{did_you_mean(wanted, found)}{advice}; it contains {', '.join(found[:SHOWN]) or 'no files'}",
        where=path,
    )
