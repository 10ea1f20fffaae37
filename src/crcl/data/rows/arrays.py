"""Checking of arrays that users pass (numpy, torch or nested lists); returned as float16 or float32."""

from typing import Any

import numpy as np

from crcl.data.files import as_regions
from crcl.data.split import not_finite
from crcl.errors import InputError


def regions(values: Any, name: str) -> np.ndarray:
    """Features as (images, R, F); `name` is the name of the data in messages."""
    return as_regions(_numbers(values, "features", name), f"features of {name}")


def vectors(values: Any, name: str) -> np.ndarray:
    """Vectors of captions as (captions, G)."""
    found = _numbers(values, "text features", name)
    if found.ndim != 2:
        raise InputError(f"text features have shape {found.shape}, expected (captions, size)", where=name)
    return found


def _numbers(values: Any, what: str, name: str) -> np.ndarray:
    """An array of float16 or float32; the error for NaN and infinity lists the rows."""
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.dtype.kind != "f":
        raise InputError(f"{what} are {array.dtype}, expected float16 or float32", where=name)
    if 0 in array.shape or array.ndim < 2:
        raise InputError(f"{what} have shape {array.shape}, expected at least one row of numbers", where=name)
    array = array if array.dtype.itemsize <= 4 else array.astype(np.float32)
    bad = not_finite(array)
    if len(bad):
        rows = ", ".join(str(row) for row in bad[:10]) + (f" and {len(bad) - 10} more" if len(bad) > 10 else "")
        raise InputError(f"NaN or infinity in the {what}, in row {rows}", where=name, hint="leave these rows out")
    return array
