"""What to say of a path that no layout recognises: what was found there, and what can be read."""

import zipfile
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from crcl.data.files import SHOWN, require
from crcl.data.pictures.zips import BROKEN
from crcl.data.rows.documents import keys_at_start
from crcl.data.rows.metadata import IMAGES, NAMES, column_names
from crcl.data.sources.table import SUFFIXES
from crcl.errors import InputError, did_you_mean

READABLE = (
    "tables (.csv .tsv .jsonl .parquet), JSON of COCO captions, Karpathy's splits or LLaVA's conversations, tars, "
    "folders of images with metadata or text files, and embeddings"
)
_FEATURES = "train_ims.npy"
_BY_LAYOUT = "if it is one of these, name it by {layout}"


def not_recognised(path: Path) -> InputError:
    """The error for a path that no layout recognises."""
    if path.is_dir():
        what = f"neither a run folder nor data that is recognised; {inside(path)}"
        return InputError(what, where=path, hint=f"{READABLE} are read")
    if not path.exists():
        require(path, purpose="a table, a folder of features or other data")
    found, hint = _file(path)
    return InputError(f"{found}, neither a run folder nor data that is recognised", where=path, hint=hint)


def inside(folder: Path) -> str:
    """What a folder contains, and why that is no data: a misspelled name, or a file that cannot be read."""
    try:
        names = sorted(entry.name for entry in islice(folder.iterdir(), 10_000))
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    tables = [name for name in names if name.lower().endswith(SUFFIXES) and not name.endswith("_caps.tsv")]
    near = did_you_mean(_FEATURES, names)
    return "; ".join(
        [
            f"it contains {', '.join(names[:SHOWN]) or 'no files'}{', ...' if len(names) > SHOWN else ''}",
            *([f"no {_FEATURES}{near}"] if near else []),
            *islice(_faults(folder), SHOWN),
            *([f"to read a table, name the file: {folder / tables[0]}"] if tables else []),
        ]
    )


def zip_advice(path: Path) -> tuple[str, str]:
    """What a zip file has inside, and what to do with it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except BROKEN as error:
        return f"a zip file that cannot be read ({error})", "get it again"
    if any(Path(name).name in NAMES for name in names):
        return "a zip file of an imagefolder", "move it to a folder of its own, and name that folder"
    return f"a zip file with {', '.join(names[:3]) or 'nothing'} in it", "unpack it, and name the folder"


def _file(path: Path) -> tuple[str, str]:
    """What a file is, and what to do with it."""
    suffix = path.suffix.lower()
    if not path.stat().st_size:
        return "an empty file", "get it again"
    if suffix == ".zip":
        return zip_advice(path)
    if suffix == ".json":
        return _document(path)
    return f"a file {f'that ends in {path.suffix}' if suffix else 'without an ending'}", f"{READABLE} are read"


def _document(path: Path) -> tuple[str, str]:
    """What a JSON document has inside, by its beginning, and what to do with it."""
    with path.open("rb") as file:
        start = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    keys = keys_at_start(path)
    if start == b"[":
        named = sorted(place[1] for place in keys if len(place) == 2 and place[0] == "[]")
        if named:
            hint = f"write one object per line to a .jsonl file, which is a table; of JSON {_EXPECTED}"
            return f"a JSON list of objects with the keys {_listed(named)}", hint
        return "a JSON list", f"of JSON {_EXPECTED}"
    if start == b"{":
        named = sorted(place[0] for place in keys if len(place) == 1)
        return f"a JSON object with the keys {_listed(named)}", f"of JSON {_EXPECTED}; {_BY_LAYOUT}"
    return "not a JSON object or list", "get it again, or give it the ending that it should have"


_EXPECTED = (
    'COCO captions ("images" and "annotations"), Karpathy\'s splits ("images" with "sentences") and LLaVA\'s '
    '"conversations" are read'
)


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:SHOWN]) or '(none)'}{', ...' if len(names) > SHOWN else ''}"


def _faults(folder: Path) -> Iterator[str]:
    """Files of a folder, and of those below it, that look like data and cannot be read as such."""
    for file in islice(chain(sorted(folder.glob("*")), sorted(folder.glob("*/*"))), 1000):
        name = file.relative_to(folder).as_posix()
        if not file.is_file():
            continue
        if file.name in NAMES:
            try:
                columns = column_names(file)
            except InputError as error:
                yield f"{name} is {error.what}"
            else:
                yield f"{name} has no column {IMAGES}, but {_listed(columns)}"
        elif file.suffix.lower() == ".parquet":
            try:
                pyarrow.parquet.read_schema(file)
            except (pa.ArrowException, OSError, ValueError) as error:
                yield f"{name} is not a readable parquet file ({error})"
