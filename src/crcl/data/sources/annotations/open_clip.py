"""open_clip's table of pairs: a `.csv` file that is separated by tabs, with the columns `filepath` and `title`."""

from pathlib import Path

from crcl.data.cleaning.judged import Judged
from crcl.data.cleaning.tables import clean_table
from crcl.data.pictures.files import Files
from crcl.data.rows.tables import USUAL, Columns, read_rows
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.content import Content, RowsSource

COLUMNS = Columns("filepath", "title")
_HEADER = 2**16  # bytes in which the header must end


def recognises(path: Path) -> bool:
    """Whether a path is such a table, by its ending and its header."""
    if path.suffix.lower() != ".csv" or path.is_dir():
        return False
    try:
        with path.open("rb") as file:
            header = file.readline(_HEADER).decode("utf-8-sig", "replace")
    except OSError:
        return False
    return {value.strip().strip('"') for value in header.split("\t")} >= set(COLUMNS)


def read(location: Location) -> Content:
    """The rows of the table; its images are in its folder."""
    path = Path(location.path)
    return Content(read_rows(path, _columns(location), delimiter="\t"), Files(path.parent))


def _columns(location: Location) -> Columns:
    """The names of the columns: open_clip's, where none are given."""
    given = zip(location.columns, USUAL, COLUMNS, strict=True)
    return Columns(*(own if name == usual else name for name, usual, own in given))


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write the table again."""
    return clean_table(Path(location.path), _columns(location), judged, output, delimiter="\t")


LAYOUT = Layout(
    "open_clip's table (.csv separated by tabs, with filepath and title)",
    recognises,
    RowsSource.opening(read, beside=True),
    clean,
)
