"""A folder in the layout `imagefolder` of Hugging Face: images, and metadata files beside them.

    metadata.csv | .jsonl | .parquet              file_name, text
    train/metadata.csv   validation/metadata.csv  folders train, validation and test are splits
    train.zip                                     with metadata and images inside; it is not unpacked

Names of files are relative to the metadata file, and images are named by their path in the folder.
"""

from itertools import islice
from pathlib import Path

import pyarrow as pa

from crcl.data.cleaning.folders import clean_imagefolder
from crcl.data.cleaning.judged import Judged
from crcl.data.pictures.files import SUFFIXES, require_folder
from crcl.data.pictures.zips import Zips
from crcl.data.rows.folders import has_captions, splits_of_names, walk
from crcl.data.rows.metadata import IMAGES, NAMES, as_texts, column_names, find_metadata, read_cells, zipped
from crcl.data.rows.tables import tidied
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.content import Content, RowsSource
from crcl.data.sources.unknown import zip_advice
from crcl.errors import InputError

_LOOKED_INTO, _OPENED = 20, 3  # folders and zip files that a quick look opens
_DEPTH = 2  # of the folders that may be splits: data/train/metadata.csv


def recognises(path: Path) -> bool:
    """Whether a path is a folder with metadata that names files, or with zip files that have such metadata."""
    try:
        if not path.is_dir() or (path / "config.json").exists():
            return False
        return _has_metadata(path)
    except (OSError, InputError):
        return False


def _has_metadata(path: Path) -> bool:
    broken, opened = False, 0
    for place, files in islice(walk(path), _LOOKED_INTO):
        if any(_names_files(path / place / name) for name in files if name in NAMES):
            return True
        for name in [name for name in files if name.lower().endswith(".zip")][: _OPENED - opened]:
            opened += 1
            try:
                if zipped(path, (Path(place) / name).as_posix()):
                    return True
            except InputError:
                broken = True
    return broken and not has_captions(path)  # reading it says what is wrong with the zip file


def _names_files(file: Path) -> bool:
    try:
        return any(name == IMAGES or name.endswith(f"_{IMAGES}") for name in column_names(file))
    except InputError:
        return False


def read(location: Location) -> Content:
    """The rows of all metadata files, sorted by their paths."""
    root = Path(location.path)
    if root.suffix.lower() == ".zip" and root.is_file():
        found_inside, hint = zip_advice(root)
        raise InputError(f"{found_inside}, expected a folder", where=root, hint=hint)
    require_folder(root)
    found = find_metadata(root)
    if not found:
        raise InputError(
            f"no {' or '.join(NAMES)} in it",
            where=root,
            hint=f"write one with the columns {IMAGES}, relative to it, and text",
        )
    parts = []
    for metadata in found:
        with metadata.opened() as path:
            rows = read_cells(path, location.columns).rows
        cells = rows["image"].to_pylist()
        names = {cell: metadata.image(cell) for cell in set(cells)}
        named = as_texts(root / metadata.name, {"image": [names[cell] for cell in cells]})
        parts.append(rows.set_column(0, "image", named["image"]))
    images = [name for part in parts for name in part["image"].to_pylist()]
    columns = {"image": pa.array(images, pa.string()), "caption": pa.chunked_array(_column(parts, "caption"))}
    by_folder = splits_of_names(images, depth=_DEPTH)
    if any("split" in part.column_names for part in parts):
        columns["split"] = pa.chunked_array(_splits(parts, by_folder))
    elif by_folder is not None:
        columns["split"] = pa.array(by_folder, pa.string())
    zips = tuple(dict.fromkeys(metadata.archive for metadata in found if metadata.archive))
    return Content(tidied(str(root), pa.table(columns)), Zips(root, zips), _unnamed(root, set(images)))


def _column(parts: list[pa.Table], name: str) -> list[pa.Array]:
    return [chunk for part in parts for chunk in part[name].chunks]


def _splits(parts: list[pa.Table], by_folder: list[str] | None) -> list[pa.Array]:
    """The column `split` of each file, or the splits by folders for files without that column."""
    found: list[pa.Array] = []
    row = 0
    for part in parts:
        here = by_folder[row : row + len(part)] if by_folder is not None else ["train"] * len(part)
        found += part["split"].chunks if "split" in part.column_names else [pa.array(here, pa.string())]
        row += len(part)
    return found


def _unnamed(root: Path, named: set[str]) -> tuple[str, ...]:
    """A sentence about image files that no metadata file names."""
    others = 0
    for place, files in walk(root):
        prefix = f"{place}/" if place else ""
        others += sum(Path(file).suffix.lower() in SUFFIXES and prefix + file not in named for file in files)
    return (f"{others:,} image files are not named by any metadata file",) if others else ()


def clean(location: Location, judged: Judged, output: Path) -> int:
    """Write the metadata files again, in a new folder."""
    return clean_imagefolder(Path(location.path), location.columns, judged, output)


LAYOUT = Layout(
    "an imagefolder of Hugging Face (metadata.csv, .jsonl or .parquet beside images or in a zip file)",
    recognises,
    RowsSource.opening(read),
    clean,
    options=frozenset({"images"}),
)
