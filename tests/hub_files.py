"""Parquet files with images in them, as the hub has them and img2dataset writes them; written without `datasets`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from drawn import Drawn

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
TEXT = {"dtype": "string", "_type": "Value"}


def cell(content: bytes | None, path: str | None = None) -> dict[str, Any]:
    """A cell of an image."""
    return {"bytes": content, "path": path}


def write_parquet(
    path: Path, columns: dict[str, Any], *, features: dict[str, Any] | None = None, group: int = 7
) -> Path:
    """A Parquet file in small row groups, with the metadata of `datasets` if features are given."""
    table = pa.table(columns)
    if features is not None:
        about = json.dumps({"info": {"features": features}}).encode()
        table = table.replace_schema_metadata({b"huggingface": about, b"mine": b"kept"})
    path.parent.mkdir(parents=True, exist_ok=True)
    pa.parquet.write_table(table, path, row_group_size=group)
    return path


def write_hub(data: Drawn, folder: Path, *, several: bool = False) -> Path:
    """The scenes as `push_to_hub` lays them out: two files of train, one of validation; a number for each image."""
    train = data.splits.index("val")
    parts = {"train-00000-of-00002": (0, train // 2), "train-00001-of-00002": (train // 2, train)}
    parts["validation-00000-of-00001"] = (train, len(data.names))
    captions: Sequence[Any] = data.captions if several else [texts[0] for texts in data.captions]
    for name, (begin, end) in parts.items():
        images = [cell(*pair) for pair in zip(data.pictures[begin:end], data.names[begin:end], strict=True)]
        columns = {
            "image": pa.array(images, STRUCT),
            "number": pa.array(range(begin, end)),
            "caption": pa.array(captions[begin:end]),
        }
        caption = {"feature": TEXT, "_type": "List"} if several else TEXT
        features = {"image": {"_type": "Image"}, "number": {"dtype": "int64", "_type": "Value"}, "caption": caption}
        write_parquet(folder / "data" / f"{name}.parquet", columns, features=features, group=30)
    return folder
