"""CC3M and CC12M as they are published: addresses of images and captions, tab-separated and without a header."""

from pathlib import Path

from crcl.data.cleaning.headless import clean_headless
from crcl.data.cleaning.judged import Judged
from crcl.data.rows.headless import order_of, read_headless
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.content import Content, RowsSource


def recognises(path: Path) -> bool:
    """Whether a path is such a list, by its first lines."""
    return path.suffix.lower() == ".tsv" and not path.is_dir() and order_of(path) is not None


def read(location: Location) -> Content:
    """The lines of the list. Images are addresses, which are never fetched, so there are none to read."""
    path = Path(location.path)
    rows, others = read_headless(path)
    notes = (f"{path.name}: {others:,} lines do not have two values and are left out",) if others else ()
    return Content(rows, None, notes)


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write the list again; lines that are no rows stay."""
    path = Path(location.path)
    order = order_of(path)
    if order is None:
        raise judged.changed("it is no list of addresses and captions")
    return clean_headless(path, order, judged, output)


LAYOUT = Layout(
    "CC3M's and CC12M's lists of addresses and captions (.tsv without a header)",
    recognises,
    RowsSource.opening(read, beside=True),
    clean,
)
