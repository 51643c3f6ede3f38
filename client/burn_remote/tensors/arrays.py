"""How do NumPy arrays become the data of tensors, and how do they come back?"""

from __future__ import annotations

import sys
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from burn_remote.tensors.scalars import Number
from burn_remote_protocol import dtypes
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.tensors import TensorData

__all__ = [
    "AnyDType",
    "Array",
    "array_from",
    "as_array",
    "as_dtype",
    "data_from",
    "dtype_of_number",
    "numpy_dtype",
]

Array = npt.NDArray[Any]

# What users may give for a dtype: one of ours, or whatever NumPy takes for one.
AnyDType = DType | npt.DTypeLike

_NUMPY: Final[dict[DType, np.dtype[Any]]] = {
    dtypes.F64: np.dtype(np.float64),
    dtypes.F32: np.dtype(np.float32),
    dtypes.FLEX32: np.dtype(np.float32),
    dtypes.F16: np.dtype(np.float16),
    dtypes.BF16: np.dtype(ml_dtypes.bfloat16),
    dtypes.I64: np.dtype(np.int64),
    dtypes.I32: np.dtype(np.int32),
    dtypes.I16: np.dtype(np.int16),
    dtypes.I8: np.dtype(np.int8),
    dtypes.U64: np.dtype(np.uint64),
    dtypes.U32: np.dtype(np.uint32),
    dtypes.U16: np.dtype(np.uint16),
    dtypes.U8: np.dtype(np.uint8),
    dtypes.BOOL: np.dtype(np.bool_),
    dtypes.BOOL_U8: np.dtype(np.uint8),
    dtypes.BOOL_U32: np.dtype(np.uint32),
}
# Several dtypes are stored alike; an array of that NumPy dtype becomes the plain one.
_BY_NUMPY: Final[dict[np.dtype[Any], DType]] = {
    stored: dtype
    for dtype, stored in _NUMPY.items()
    if dtype not in (dtypes.FLEX32, dtypes.BOOL_U8, dtypes.BOOL_U32)
}
_LITTLE_ENDIAN: Final = sys.byteorder == "little"


def as_dtype(dtype: AnyDType) -> DType:
    """Return a dtype of burn-remote for one, or for anything that NumPy takes as a dtype.

    Raises ``DTypeMismatch`` where tensors cannot have it (complex numbers, text, objects).
    """
    if isinstance(dtype, DType):
        return dtype
    try:
        found = _BY_NUMPY.get(np.dtype(dtype).newbyteorder("="))
    except TypeError:
        found = None
    if found is None:
        known = ", ".join(map(str, _BY_NUMPY.values()))
        raise DTypeMismatch(f"tensors cannot hold {dtype!r}; they hold {known}")
    return found


def dtype_of_number(number: Number) -> DType:
    """Return the dtype that a tensor of one number has: NumPy's own, or int64, float32 or bool."""
    if isinstance(number, np.generic):
        return as_dtype(number.dtype)
    if isinstance(number, bool):
        return dtypes.BOOL
    return dtypes.I64 if isinstance(number, int) else dtypes.F32


def as_array(value: Any, dtype: DType | None) -> Array:
    """Return a NumPy array of a dtype that tensors can have, from anything NumPy understands.

    Python floats become float32, Python integers int64; arrays keep their dtype. ``dtype`` decides
    instead where it is given. Raises ``DTypeMismatch`` for what tensors cannot hold.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DTypeMismatch(f"not the elements of a tensor: {error}") from error
    if dtype is None:
        plain = isinstance(value, float | list | tuple) and not isinstance(value, np.generic)
        if plain and array.dtype == np.float64:
            return array.astype(np.float32)
        as_dtype(array.dtype)
        return array
    target = numpy_dtype(dtype)
    if array.dtype != target:
        as_dtype(array.dtype)
        array = array.astype(np.bool_).astype(target) if dtype.is_bool else array.astype(target)
    return array


def data_from(array: Array, dtype: DType | None = None) -> TensorData:
    """Describe an array's elements as the wire wants them: C order, little-endian.

    No copy is made of an array that has this form already, so its owner must not change it before
    the data was sent. ``dtype`` is needed only where it is not that of the array (bool stores).
    """
    if dtype is None:
        dtype = as_dtype(array.dtype)
    stored = numpy_dtype(dtype)
    if array.dtype != stored:
        array = array.astype(stored)
    flat = np.asarray(array, order="C").reshape(-1)
    if not _LITTLE_ENDIAN:
        flat = flat.byteswap()
    return TensorData(flat.view(np.uint8).data, array.shape, dtype)


def array_from(data: TensorData) -> Array:
    """Return a writable array of the elements that a read brought.

    A buffer that can be written is taken over without a copy: whoever delivers one gives it up.
    Bool stores become NumPy bools. Raises ``DTypeMismatch`` for quantized elements.
    """
    stored = numpy_dtype(data.dtype)
    content = data.bytes
    flat: Array = np.frombuffer(content, stored)
    if not _LITTLE_ENDIAN:
        flat = flat.byteswap()
    if data.dtype is dtypes.BOOL_U8 or data.dtype is dtypes.BOOL_U32:
        flat = flat != 0
    elif not flat.flags.writeable:
        flat = flat.copy()
    return flat.reshape(data.shape)


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the dtype of arrays that hold elements as the wire does.

    Raises ``DTypeMismatch`` for quantized dtypes.
    """
    stored = _NUMPY.get(dtype)
    if stored is None:
        raise DTypeMismatch(
            f"NumPy has no dtype for {dtype}; x.dequantize().numpy() reads the numbers, "
            "burn_remote.read_quantized(x) the integers and scales"
        )
    return stored
