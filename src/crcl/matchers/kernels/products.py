"""The number type of large matrix products: float32, or bfloat16 within autocast, where the rest stays float32.

On a CPU autocast alone is slower than float32: it leaves the results of products in bfloat16, in which a processor is
slow at everything but products. So the CPU kernels round the inputs of products to `cpu_product_type`, and `single`
makes the result of a product float32 before anything else is computed with it.
"""

from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor

Precision = Literal["auto", "float32", "bfloat16", "float16"]


def product_type(device: torch.device, precision: Precision) -> torch.dtype:
    """The number type of products in this precision; `auto` is float32 on a CPU, and 16 bits on a CUDA GPU."""
    if precision == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if _has_bfloat16(device) else torch.float16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]


def computing_in(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Context for forward passes whose products are of this type: autocast, unless it is float32."""
    enabled = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if enabled else None, enabled=enabled)


def imitated(device: torch.device, dtype: torch.dtype) -> str:
    """A sentence that says that products of this type are slow on this device; empty if they are not."""
    if device.type != "cpu" or dtype == torch.float32 or (dtype == torch.bfloat16 and cpu_has_bfloat16()):
        return ""
    if dtype == torch.float16:
        return "float16 is slower than float32 on a CPU"
    return "this processor has no bfloat16 products (AVX512-BF16 or AMX): they are imitated, slower than float32"


def cpu_has_bfloat16() -> bool:
    """Whether the processor has bfloat16 products: AVX512-BF16, as every processor with AMX has too."""
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return known is not None and bool(known())


def _has_bfloat16(device: torch.device) -> bool:
    """Whether the GPU computes bfloat16 in hardware; torch's own check also counts slow emulation."""
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def cpu_product_type() -> torch.dtype:
    """The type that products on the CPU have here: that of autocast, or float32."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


def single(x: Tensor) -> Tensor:
    """The result of a product in float32; on a GPU as it is, where elementwise work in 16 bits is faster."""
    return x.float() if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16) else x
