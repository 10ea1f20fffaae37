"""Data sets of the library `datasets`: its objects in memory, and names on the Hugging Face hub (`hub:USER/NAME`).

Images stay where `datasets` has them, and are saved as they are with a run. The package is needed for names only.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from crcl.data.pictures.base import Pictures
from crcl.data.pictures.dataset import HEAD, DatasetImages, ending, ending_of
from crcl.data.rows.cells import Cells, find_cells, is_caption, is_picture, one_array, take_apart
from crcl.data.rows.tables import Columns, tidied, used_columns
from crcl.data.sources.base import Layout, Location
from crcl.data.sources.memory import NAME, MemorySource, from_table
from crcl.errors import InputError

PREFIX = "hub:"
"""What names on the hub begin with; no layout on disk is recognised there."""
EXTRA = "pip install 'crcl[datasets]'"
_BATCH = 256
_NAMED = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:/(?P<part>[\w.-]+))?", re.ASCII)
_NUMBERED = "images/{:07d}{}"  # names of images, also the paths that they are saved to


def recognises(path: Path) -> bool:
    """Whether a path is a name on the hub."""
    return str(path).startswith(PREFIX)


def open_named(location: Location, images: Pictures | None = None) -> MemorySource:
    """Load a data set by its name on the hub: all its splits, from the cache of `datasets` where it has them."""
    named = _NAMED.fullmatch(location.path.removeprefix(PREFIX))
    if named is None or any(part.strip(".") == "" for part in location.path.removeprefix(PREFIX).split("/")):
        raise InputError(
            "not a name on the hub", where=location.path, hint="write hub:USER/NAME, or hub:USER/NAME/CONFIG"
        )
    try:
        import datasets
    except ImportError as error:
        raise InputError("names on the hub need the package datasets", where=location.path, hint=EXTRA) from error
    try:
        loaded = datasets.load_dataset(named["name"], named["part"])
    except Exception as error:  # the library raises errors of many kinds
        why = " ".join(f"{error}".split())[:500] or type(error).__name__
        hint = "check the name and the network; a configuration is named as hub:USER/NAME/CONFIG"
        raise InputError(f"cannot be loaded ({why})", where=location.path, hint=hint) from error
    from huggingface_hub.constants import HF_HUB_CACHE

    within = [Path(datasets.config.HF_DATASETS_CACHE), Path(HF_HUB_CACHE)]
    source = from_dataset(loaded, location.columns, None, name=location.path, within=within)
    return source if images is None else source.with_images(images)


def is_dataset(data: Any) -> bool:
    """Whether an object is a data set of the library `datasets`, or several with their splits."""
    return type(data).__module__.split(".")[0] == "datasets" and (
        isinstance(data, Mapping) or hasattr(data, "column_names")
    )


def from_dataset(
    data: Any, columns: Columns, images: Path | None, *, name: str = NAME, within: list[Path] | None = None
) -> MemorySource:
    """A source of a `Dataset` or of a `DatasetDict`, whose keys are splits.

    Args:
        data: The object.
        columns: Columns of images and captions; found by type and usual names, where these are the usual ones.
        images: The folder of image files, if the data set only names them.
        name: The name of the data in messages.
        within: Folders that image files may lie in, where a row of images only has a path; None: anywhere.
    """
    parts = {str(key): part for key, part in data.items()} if isinstance(data, Mapping) else {"": data}
    if not parts or not all(hasattr(part, "with_format") and hasattr(part, "__len__") for part in parts.values()):
        raise InputError("a data set that is streamed, or none", where=name, hint="load it without streaming=True")
    formatted = {key: part.with_format("arrow") for key, part in parts.items()}
    schema = _schema(name, parts)
    if not any(is_picture(field.type) for field in schema):
        return _of_names(name, formatted, schema, columns, images)
    cells = find_cells(name, schema, columns)
    row_of, names = _name_images(list(formatted.values()), cells)
    table, others = _rows(formatted, names, cells)
    held = DatasetImages([part.select_columns(_of_images(cells)) for part in formatted.values()], cells, row_of, within)
    used = Columns(cells.image, cells.caption)
    return MemorySource(tidied(name, table), name, used, held=held, others=others)


def _schema(name: str, parts: Mapping[str, Any]) -> pa.Schema:
    """The columns of all splits, which must be the same."""
    schemas = {key: part.features.arrow_schema.remove_metadata() for key, part in parts.items()}
    first, schema = next(iter(schemas.items()))
    other = next((key for key in schemas if schemas[key] != schema), None)
    if other is not None:
        raise InputError(f"the splits '{first}' and '{other}' have different columns", where=name)
    return schema


def _of_images(cells: Cells) -> list[str]:
    return [cells.image] if cells.is_struct or cells.names is None else [cells.image, cells.names]


def _batches(part: Any, columns: list[str]) -> Iterator[pa.Table]:
    yield from part.select_columns(columns).iter(batch_size=_BATCH)


def _name_images(parts: list[Any], cells: Cells) -> tuple[dict[str, int], list[str]]:
    """The first row of each image by name, and the name in each row, empty where there is none.

    Rows with the same path and the same bytes show one image. Names are numbers of rows with the ending of the format.
    """
    columns = _of_images(cells)
    counts: Counter[str | None] = Counter()
    for part in parts if cells.names is not None else ():
        for table in _batches(part, columns):
            counts.update(cells.names_of(table).to_pylist())
    names: list[str] = []
    row_of: dict[str, int] = {}
    known: dict[tuple[str, bytes], str] = {}
    for part in parts:
        for table in _batches(part, columns):
            contents = cells.contents_of(table)
            heads, paths = pc.binary_slice(contents, 0, HEAD).to_pylist(), cells.names_of(table).to_pylist()
            for place, (head, path) in enumerate(zip(heads, paths, strict=True)):
                if head is None and (path is None or not cells.is_struct):
                    names.append("")
                    continue
                made = _NUMBERED.format(len(names), ending_of(path) if head is None else ending(head))
                if path is not None and counts[path] > 1:
                    content = contents[place].as_py()
                    digest = b"" if content is None else hashlib.blake2b(content, digest_size=16).digest()
                    made = known.setdefault((path, digest), made)
                row_of.setdefault(made, len(names))
                names.append(made)
    return row_of, names


def _rows(parts: Mapping[str, Any], names: list[str], cells: Cells) -> tuple[pa.Table, pa.Table | None]:
    """Rows of image, caption and split, and the other columns beside them; none of these has bytes of images."""
    tables, others = [], []
    begin = 0
    for key, part in parts.items():
        schema = part.features.arrow_schema
        used = (cells.image, cells.caption, "split")
        kept = [field.name for field in schema if field.name not in used and not is_picture(field.type)]
        columns = [cells.caption, *(["split"] if cells.has_split else []), *kept]
        table = part.select_columns(columns)[:]
        rows, captions = take_apart(one_array(table[cells.caption]))
        order = pa.array(rows)
        texts = {"image": pa.array(names[begin : begin + len(table)], pa.string()).take(order), "caption": captions}
        if cells.has_split:
            texts["split"] = one_array(table["split"]).cast(pa.string()).take(order)
        elif len(parts) > 1:
            texts["split"] = pa.array([key] * len(rows), pa.string())
        tables.append(pa.table(texts))
        others.append(table.select(kept).take(order).replace_schema_metadata(None))
        begin += len(table)
    return pa.concat_tables(tables), pa.concat_tables(others) if others[0].num_columns else None


def _of_names(
    name: str, parts: Mapping[str, Any], schema: pa.Schema, columns: Columns, images: Path | None
) -> MemorySource:
    """A source of a data set that names its images; lists of captions are taken apart here, too."""
    used_columns(name, columns, schema.names)
    tables = []
    for key, part in parts.items():
        table = part[:].replace_schema_metadata(None)
        if is_caption(schema.field(columns.caption).type):
            place = schema.get_field_index(columns.caption)
            rows, captions = take_apart(one_array(table[columns.caption]))
            table = table.take(pa.array(rows)).set_column(place, columns.caption, captions)
        if len(parts) > 1 and "split" not in schema.names:
            table = table.append_column("split", pa.array([key] * len(table), pa.string()))
        tables.append(table)
    return replace(from_table(pa.concat_tables(tables), columns, images), name=name)


LAYOUT = Layout("a data set on the Hugging Face hub, as hub:USER/NAME (needs crcl[datasets])", recognises, open_named)
