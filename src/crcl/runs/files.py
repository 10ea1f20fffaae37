"""Reading and writing files of a run folder; errors name a damaged file, and nothing is unpickled."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from crcl.data.files import NPY_ERRORS
from crcl.errors import InputError, is_out_of_memory
from crcl.runs.checkpoints.pickles import RefusedError
from crcl.runs.checkpoints.unpickling import restricted
from crcl.storage import write_bytes


def damaged(path: Path, why: object) -> InputError:
    """The error for a file with invalid content."""
    return InputError(f"damaged ({why})", where=path, hint="train again with {overwrite}")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise damaged(path, error) from error


def read_npy(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except NPY_ERRORS as error:
        raise damaged(path, type(error).__name__) from error


def read_npz(path: Path, *names: str) -> dict[str, np.ndarray]:
    """Arrays of an `.npz` file, all of them without names; a file that unpacks to more than it holds is refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > path.stat().st_size:
            raise damaged(path, "it unpacks to more than it holds, which no training writes")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names or arrays.files}
    except InputError:
        raise
    except Exception as error:  # numpy's own message would advise to unpickle
        raise damaged(path, type(error).__name__) from error


def write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    plain = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    write_bytes(path, safetensors.torch.save(plain))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read weights; raises an error unless floats are float32 and finite."""
    try:
        weights = safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from error
    for name, weight in weights.items():
        if weight.is_floating_point() and (weight.dtype != torch.float32 or not weight.isfinite().all()):
            what = f"in {weight.dtype}" if weight.dtype != torch.float32 else "not finite"
            raise damaged(path, f"{name} is {what}")
    return weights


def read_weight(path: Path, name: str) -> Tensor | None:
    """One of the weights, without reading the others; None if there is none of this name."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return file.get_tensor(name) if name in file.keys() else None  # noqa: SIM118 - the file is no mapping
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from error


def write_state(path: Path, state: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_bytes(path, buffer.getbuffer())


def read_state(path: Path) -> dict[str, Any]:
    """A state of tensors and plain values."""
    try:
        return dict(restricted(path))
    except RefusedError as error:
        raise damaged(path, error) from error
    except Exception as error:  # torch's own message would advise to unpickle
        if is_out_of_memory(error):
            raise
        raise damaged(path, type(error).__name__) from error
