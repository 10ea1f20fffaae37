"""A table of image names and captions (CSV, TSV, JSONL, Parquet), perhaps beside a features file and an ids file.

A file of caption vectors has one row per row of the table; with it, the features may do without an ids file and then
also have one row per row of the table.
"""

from pathlib import Path

from crcl.data.cleaning.judged import Judged
from crcl.data.cleaning.tables import clean_table
from crcl.data.pictures.files import Files
from crcl.data.rows.tables import read_rows
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.content import Content, RowsSource

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def recognises(path: Path) -> bool:
    """Whether a path is a table, by its ending."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def read(location: Location) -> Content:
    """The rows of a table; its images are in its folder."""
    path = Path(location.path)
    return Content(read_rows(path, location.columns), Files(path.parent))


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write a table again in its own format."""
    return clean_table(Path(location.path), location.columns, judged, output)


LAYOUT = Layout(
    "a table of image names and captions (.csv .tsv .jsonl .parquet)",
    recognises,
    RowsSource.opening(read, beside=True),
    clean,
)
