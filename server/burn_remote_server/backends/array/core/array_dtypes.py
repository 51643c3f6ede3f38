"""The array dtypes of stored tensors and of tensors on the wire."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from burn_remote_protocol.dtypes import (
    BF16,
    BOOL,
    BOOL_U8,
    BOOL_U32,
    C64,
    C128,
    F16,
    F32,
    F64,
    FLEX32,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from burn_remote_protocol.errors import Unsupported

__all__ = ["BFLOAT16", "LOW_PRECISION", "array_dtype", "wire_dtype"]

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)

# Stored in 16 bits, computed in float32.
LOW_PRECISION: Final = frozenset({np.dtype(np.float16), BFLOAT16})

_ARRAY_DTYPES: Final[dict[DType, Any]] = {
    F64: np.dtype("<f8"), F32: np.dtype("<f4"), FLEX32: np.dtype("<f4"), F16: np.dtype("<f2"),
    BF16: BFLOAT16,
    I64: np.dtype("<i8"), I32: np.dtype("<i4"), I16: np.dtype("<i2"), I8: np.dtype("i1"),
    U64: np.dtype("<u8"), U32: np.dtype("<u4"), U16: np.dtype("<u2"), U8: np.dtype("u1"),
    C128: np.dtype("<c16"), C64: np.dtype("<c8"),
    BOOL: np.dtype("?"), BOOL_U8: np.dtype("?"), BOOL_U32: np.dtype("?"),
}  # fmt: skip

# Bools cross the wire as integers; every integer but 0 is true.
_WIRE_DTYPES: Final[dict[DType, Any]] = _ARRAY_DTYPES | {
    BOOL: np.dtype("u1"), BOOL_U8: np.dtype("u1"), BOOL_U32: np.dtype("<u4"),
}  # fmt: skip


_BYTES: Final = np.dtype("u1")


# By identity, because the hash of a dtype is computed by Python code, which takes longer. These
# dtypes are never freed, so their ids stay valid.
_ARRAY_DTYPES_BY_ID: Final = {id(dtype): found for dtype, found in _ARRAY_DTYPES.items()}
_WIRE_DTYPES_BY_ID: Final = {id(dtype): found for dtype, found in _WIRE_DTYPES.items()}


def _found(table: dict[int, Any], dtype: DType) -> Any:
    found = table.get(id(dtype))
    if found is None:
        if dtype.scheme is not None:
            return _BYTES
        raise Unsupported(f"this server cannot store tensors of dtype {dtype}")
    return found


def array_dtype(dtype: DType) -> Any:
    """Return the dtype of the arrays that store tensors of ``dtype``; quantized tensors are bytes.

    Raises ``Unsupported``.
    """
    return _found(_ARRAY_DTYPES_BY_ID, dtype)


def wire_dtype(dtype: DType) -> Any:
    """Return the dtype of the elements on the wire. Raises ``Unsupported``."""
    return _found(_WIRE_DTYPES_BY_ID, dtype)
