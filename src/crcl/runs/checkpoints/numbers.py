"""Numbers and tensors of checkpoint files, which may be anything."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NUMBERS = (*_FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
"""Types of tensors that are read; the others have no arithmetic."""


def unusable(value: Any, limit: int) -> str:
    """What is wrong with a weight in itself; no tensor is larger than its file (one number may be shown as many)."""
    if not isinstance(value, Tensor):
        return f"must be a tensor, is a {type(value).__name__}"
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_complex():
        return "must be a plain tensor of numbers"
    if value.dtype not in NUMBERS:
        return f"is {value.dtype}, expected numbers of 16, 32 or 64 bits"
    if value.numel() * value.element_size() > limit:
        return f"claims a shape of {tuple(value.shape)}, more than the file can hold"
    return "" if not value.is_floating_point() or bool(value.isfinite().all()) else "holds NaN or infinity"


def number(value: Any) -> float | None:
    """A number that a file may hold as plain value, tensor or array; None for anything else."""
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 and not unusable(value, value.element_size()) else None
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    try:
        return None if isinstance(value, bool) or not math.isfinite(value) else float(value)
    except (TypeError, OverflowError):  # no number, or one of hundreds of digits
        return None
