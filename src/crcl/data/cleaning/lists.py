"""Lists of what to keep, for data that is too large to be written again: `keep.txt` and `keep.parquet`.

keep.txt        keys of what is kept, one per line, in the order of the data
keep.parquet    every row: key, image, caption, correspondence, kept; moved_to if captions are moved, new_caption if
                some are corrected
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from crcl.data.cleaning.judged import COLUMN, Judged
from crcl.errors import InputError

KEYS, TABLE = "keep.txt", "keep.parquet"
_CHUNK = 65_536  # rows that are Python objects at the same time


def write_lists(
    folder: Path,
    judged: Judged,
    keys: pa.Array | pa.ChunkedArray,
    rows: pa.Table,
    *,
    more: Mapping[str, pa.Array | pa.ChunkedArray] | None = None,
) -> int:
    """Write both lists into a folder; returns the number of rows.

    A key is in `keep.txt` once, if one of its rows stays as it is. A row that is moved to another image, or gets a new
    caption, is kept, but does not keep its key.

    Args:
        folder: An existing folder.
        judged: What was judged.
        keys: (rows,) what its owner calls a row: strings, each on one line.
        rows: Columns image and caption of all rows, as the layout reads them.
        more: Further columns of `keep.parquet` by name, (rows,) each; they follow the key.
    """
    columns = {"key": keys, **(more or {}), "image": rows["image"], "caption": rows["caption"]}
    table = pa.table({name: values.cast(pa.string()) for name, values in columns.items()})
    added = [pa.field(COLUMN, pa.float32()), pa.field("kept", pa.bool_())]
    changed = {"moved_to": judged.moved, "new_caption": judged.corrected}
    changed = {name: of for name, of in changed.items() if of}
    added += [pa.field(name, pa.string()) for name in changed]
    schema = pa.schema([*table.schema, *added])
    listed: dict[str, None] = {}  # keys without repetition, in order
    with (
        (folder / KEYS).open("w", encoding="utf-8", newline="\n") as text,
        pa.parquet.ParquetWriter(folder / TABLE, schema) as target,
    ):
        for start in range(0, len(table), _CHUNK):
            part = table.slice(start, _CHUNK)
            places = range(start, start + len(part))
            names = part["key"].to_pylist()
            for place, image, caption in zip(
                places, part["image"].to_pylist(), part["caption"].to_pylist(), strict=True
            ):
                judged.check(place, image, caption)
            kept = [judged.keeps(place) for place in places]
            for place, name, stays in zip(places, names, kept, strict=True):
                if stays and name not in listed and not any(place in of for of in changed.values()):
                    listed[name] = None
                    text.write(f"{_one_line(judged, name)}\n")
            values = [pa.array([judged.correspondence.get(place) for place in places], pa.float32()), pa.array(kept)]
            values += [pa.array([of.get(place) for place in places], pa.string()) for of in changed.values()]
            target.write_table(pa.table([*part.columns, *values], schema=schema))
    judged.check_count(len(table))
    return len(table)


def _one_line(judged: Judged, name: str) -> str:
    if len(name.splitlines()) != 1:
        raise InputError(f"the key {name!r} does not fit on one line of {KEYS}", where=judged.data, hint="rename it")
    return name
