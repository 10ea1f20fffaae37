"""Reading pickled checkpoints without running anything in them.

Such a file may hold tensors, plain values, numpy arrays and an `argparse.Namespace`. Whatever else it names is refused,
and numpy's own unpickling is not used either: a crafted dtype would make it take any number for a pointer.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crcl.data.files import require
from crcl.errors import InputError
from crcl.runs.checkpoints.pickles import RefusedError, opened


def load(path: Path) -> Any:
    """The content of a published checkpoint; a dict has its arrays as numpy's. Only the allowed classes are created."""
    require(path, purpose="a published checkpoint (.pth.tar)")
    try:
        content = restricted(path)
    except RefusedError as error:
        raise InputError(f"refused: {error}", where=path) from error
    except Exception as error:  # torch's own message would advise to unpickle
        what = f"not a checkpoint, or a damaged one ({type(error).__name__})"
        raise InputError(what, where=path, hint="download it again") from error
    if not isinstance(content, dict):
        return content
    return {str(key): value.array if isinstance(value, _Array) else value for key, value in content.items()}


def restricted(path: Path) -> Any:
    """What torch's restricted reader makes of a file that was looked at before; raises `RefusedError`, or anything."""
    with opened(path, _NAMES) as file, torch.serialization.safe_globals(ALLOWED):
        return torch.load(file, map_location="cpu", weights_only=True)


class _DType:
    """A numpy dtype in a pickle: plain numbers only."""

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        if not re.fullmatch(r"b1|[iu][1248]|f[248]", code):
            raise ValueError(f"arrays of {code!r} are not read")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    """A numpy array in a pickle."""

    array: np.ndarray = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, by_columns, data = state
        values = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if by_columns else "C")
        self.array = values.astype(values.dtype.newbyteorder("="))


def _new_array(kind: type, shape: tuple[int, ...], code: bytes) -> _Array:
    return _Array()


def _scalar(dtype: _DType, data: bytes) -> Any:
    return np.frombuffer(data, dtype.dtype)[0].item()


ALLOWED: list[Any] = [
    argparse.Namespace,
    (_DType, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_new_array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]
"""What a checkpoint may name beside tensors; the classes above stand in for numpy's."""
_DTYPES = (name for name, value in vars(torch).items() if isinstance(value, torch.dtype))
_NAMES = frozenset(
    [
        *("collections OrderedDict", "argparse Namespace", "_codecs encode", "numpy dtype", "numpy ndarray"),
        *(f"numpy.{core}.multiarray {name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
        *(f"torch._utils _rebuild_{name}" for name in ("tensor", "tensor_v2", "tensor_v3", "parameter")),
        *(f"torch._utils _rebuild_{name}" for name in ("sparse_tensor", "meta_tensor_no_storage")),
        *("torch._tensor _rebuild_from_type_v2", "torch.nn.parameter Parameter"),
        *("torch Size", "torch.serialization _get_layout"),
        *(f"torch {name}" for name in _DTYPES),
    ]
)
"""All that a checkpoint may name, as its pickle writes it: fewer things than torch's restricted reader would create."""
