"""The dtypes of PyTorch and those of this package that mean the same."""

from __future__ import annotations

from typing import Any, Final

import torch

from burn_remote_protocol import dtypes
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import DTypeMismatch

__all__ = ["dtype_from_torch", "dtype_to_torch"]

_FROM_TORCH: Final[dict[Any, DType]] = {
    torch.float16: dtypes.F16,
    torch.bfloat16: dtypes.BF16,
    torch.float32: dtypes.F32,
    torch.float64: dtypes.F64,
    torch.complex64: dtypes.C64,
    torch.complex128: dtypes.C128,
    torch.int8: dtypes.I8,
    torch.int16: dtypes.I16,
    torch.int32: dtypes.I32,
    torch.int64: dtypes.I64,
    torch.uint8: dtypes.U8,
    torch.uint16: dtypes.U16,
    torch.uint32: dtypes.U32,
    torch.uint64: dtypes.U64,
    torch.bool: dtypes.BOOL,
}
_TO_TORCH: Final = {ours: theirs for theirs, ours in _FROM_TORCH.items()}


def dtype_from_torch(dtype: Any) -> DType:
    """Return the dtype for a ``torch.dtype``. Raises ``DTypeMismatch`` if there is none."""
    found = _FROM_TORCH.get(dtype)
    if found is None:
        known = ", ".join(str(one) for one in _FROM_TORCH)
        raise DTypeMismatch(f"{dtype} does not exist on burn devices, which have {known}")
    return found


def dtype_to_torch(dtype: DType) -> Any:
    """Return the ``torch.dtype`` for a dtype. Raises ``DTypeMismatch`` if there is none."""
    found = _TO_TORCH.get(dtype)
    if found is None:
        raise DTypeMismatch(f"PyTorch has no dtype for {dtype}")
    return found
