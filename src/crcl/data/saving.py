"""Saving pairs that are in memory to a folder, from which they can be read again.

FOLDER/pairs.parquet       image, caption, optionally split, and the table's other columns
FOLDER/features.npy        features of the images; ids.txt has the image id of each row
FOLDER/text_features.npy   a vector for each row
FOLDER/images/             images that were in no file, named by number: PIL images as PNG, bytes as they are
FOLDER/saved.json          a hash of the data
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from crcl.data.files import SAVED
from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.held import as_file
from crcl.data.sources.base import Location
from crcl.data.sources.memory import MemorySource
from crcl.errors import InputError
from crcl.storage import could_not_save, replacing_folder, write_bytes, write_json

_BUSY = "another process is writing this folder"
_ADVICE = "make room and try again"


def save(source: MemorySource, folder: Path, *, overwrite: bool = False) -> Location:
    """Write the data to a folder atomically; do nothing if it has the same data.

    Other data that was saved there is replaced with `overwrite`, and refused without; any other folder is refused.

    Returns:
        Where the saved data is, for opening it again.
    """
    fingerprint = source.fingerprint()
    known = _known(folder) if folder.exists() else None
    if folder.exists() and known is None:
        raise InputError("exists and contains other data", where=folder, hint="name another folder")
    if known is not None and known != fingerprint and not overwrite:
        hint = "name another folder, or pass {overwrite} to replace it"
        raise InputError("exists and contains other data", where=folder, hint=hint)
    if known != fingerprint:
        try:
            with replacing_folder(folder, busy=_BUSY) as fresh:
                _write(source, fresh)
                write_json(fresh / SAVED, {"fingerprint": fingerprint})
        except OSError as error:
            raise could_not_save(folder, error, _ADVICE) from error
    features, ids, texts = (folder / name for name in ("features.npy", "ids.txt", "text_features.npy"))
    return Location(
        str(folder / "pairs.parquet"),
        features=str(features) if source.features is not None else None,
        text_features=str(texts) if source.text_features is not None else None,
        ids=str(ids) if source.features is not None else None,
        image_column=source.columns.image,
        caption_column=source.columns.caption,
        skip_empty=source.skip_empty,
    )


def _own_name(source: MemorySource, column: str) -> str:
    """The user's own name of a column."""
    return {"image": source.columns.image, "caption": source.columns.caption}.get(column, column)


def _known(folder: Path) -> str | None:
    """The fingerprint of the data saved in a folder; None if the folder was not written by `save`."""
    try:
        return str(json.loads((folder / SAVED).read_text("utf-8"))["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _write(source: MemorySource, folder: Path) -> None:
    table = source.table.rename_columns([_own_name(source, name) for name in source.table.column_names])
    if source.others is not None:
        for name, values in zip(source.others.column_names, source.others.columns, strict=True):
            table = table.append_column(name, values)
    pa.parquet.write_table(table, folder / "pairs.parquet")
    if source.features is not None:
        row_of = {name: row for name, row in source.row_of.items() if name}
        np.save(folder / "features.npy", source.features[list(row_of.values())], allow_pickle=False)
        write_bytes(folder / "ids.txt", "".join(f"{name}\n" for name in row_of).encode(), advice=_ADVICE)
    if source.text_features is not None:
        np.save(folder / "text_features.npy", source.text_features, allow_pickle=False)
    if source.held:
        (folder / "images").mkdir()
    for name, picture in source.held.items():
        try:
            content = as_file(picture)
        except UnusableError as error:
            raise InputError(f"image {name}: {error}", where=source.name) from error
        if content:  # empty: it cannot be read, and is not found later
            (folder / name).write_bytes(content)
