"""Lines of `metrics.jsonl` and `timing.jsonl`: one record of each epoch."""

import json
import os
from pathlib import Path
from typing import Any

from crcl.runs.files import damaged
from crcl.storage import could_not_save

NEEDED = {"piece", "epoch", "loss", "dev"}


def append(path: Path, record: dict[str, Any]) -> None:
    """Add a line and flush it to the disk."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise could_not_save(path, error) from error


def length(path: Path) -> int:
    """Size of the file in bytes; 0 where there is none."""
    return path.stat().st_size if path.is_file() else 0


def truncate(path: Path, size: int) -> None:
    """Remove the lines that were written after the file had this size."""
    if length(path) < size:
        raise damaged(path, "shorter than when it was saved")
    if path.is_file():
        os.truncate(path, size)


def read(path: Path) -> list[dict[str, Any]]:
    """The records of all epochs; a last line that is still being written is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    try:
        records = [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    if not all(map(_is_record, records)):
        raise damaged(path, "a line is not an epoch's record")
    return records


def _is_record(record: Any) -> bool:
    """Whether this has what every epoch's record has: where it was, the loss, and scores on dev."""
    if not isinstance(record, dict) or not record.keys() >= NEEDED:
        return False
    dev = record["dev"]
    parts = [dev, dev.get("i2t"), dev.get("t2i")] if isinstance(dev, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        return False
    numbers = [*(record[name] for name in ("piece", "epoch", "loss")), dev.get("rsum")]
    return all(isinstance(number, int | float) for number in numbers)
