"""Lists of what to keep of a DataComp pool: as for other embeddings, and `keep.npy` for DataComp's resharder.

keep.npy    sorted uids, each once, as two unsigned integers of 64 bits: the first 16 digits and the last 16
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from crcl.data.cleaning.judged import Judged
from crcl.data.cleaning.lists import KEYS, write_lists

UIDS = "keep.npy"
DTYPE = np.dtype("u8,u8")


def write_uids(folder: Path, judged: Judged, rows: pa.Table) -> int:
    """Write the lists into a folder; returns the number of rows. Images are named by their uids."""
    count = write_lists(folder, judged, rows["image"], rows)
    with (folder / KEYS).open(encoding="utf-8") as listed:
        uids = np.array([as_numbers(line.strip()) for line in listed], DTYPE)
    np.save(folder / UIDS, np.unique(uids), allow_pickle=False)
    return count


def as_numbers(uid: str) -> tuple[int, int]:
    """A uid of 32 hexadecimal digits as two numbers."""
    return int(uid[:16], 16), int(uid[16:], 16)
