"""Reading pickled checkpoints without running anything in them.

Such a file may hold tensors, plain values, numpy arrays and an `argparse.Namespace`. Whatever else it names is refused,
and numpy's own unpickling is not used either: a crafted dtype would make it take any number for a pointer.
"""

import argparse
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crcl.data.files import require
from crcl.errors import InputError


def load(path: Path) -> Any:
    """The content of a pickled file; a dict has its arrays as numpy's. Only the allowed classes are created."""
    require(path, purpose="a published checkpoint (.pth.tar)")
    try:
        _refuse_compressed(path)
        with torch.serialization.safe_globals(ALLOWED):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # torch's own message would advise to unpickle
        if wanted := re.search(r"GLOBAL (\S+)", str(error)):
            raise InputError(
                f"refused: it names {wanted[1]}, and a checkpoint may hold tensors, arrays, plain values and an "
                "argparse.Namespace only; nothing in it was run",
                where=path,
            ) from error
        what = f"not a checkpoint, or a damaged one ({type(error).__name__})"
        raise InputError(what, where=path, hint="download it again") from error
    if not isinstance(content, dict):
        return content
    return {str(key): value.array if isinstance(value, _Array) else value for key, value in content.items()}


def _refuse_compressed(path: Path) -> None:
    """Torch stores without compression; a file that grows on reading was made to fill the memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise InputError(
                    "refused: it unpacks to more than it holds, which no torch checkpoint does", where=path
                )


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
