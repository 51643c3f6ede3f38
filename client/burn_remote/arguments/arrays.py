"""Conversion between NumPy arrays and the data of tensors."""

from __future__ import annotations

import sys
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from burn_remote.arguments.axes import sendable_shape
from burn_remote.arguments.numbers import Number, bounds_of
from burn_remote_protocol import dtypes
from burn_remote_protocol.dtypes import DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, shown
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
_BFLOAT16: Final = _NUMPY[dtypes.BF16]
_LITTLE_ENDIAN: Final = sys.byteorder == "little"


def as_dtype(dtype: AnyDType) -> DType:
    """Return a dtype of burn-remote for one, or for anything that NumPy takes as a dtype.

    Raises ``DTypeMismatch`` where tensors cannot have it (complex numbers, text, objects).
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, QuantScheme):
        raise DTypeMismatch("a scheme is no dtype; burn_remote.quantize(x, scheme) quantizes")
    try:
        # NumPy's own default is float64, and no default of ours.
        found = None if dtype is None else _BY_NUMPY.get(np.dtype(dtype).newbyteorder("="))
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
    instead where it is given: floats are rounded to it, integers keep their value, and all but zero
    is true. Raises ``DTypeMismatch`` for what tensors or that dtype cannot hold.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise DTypeMismatch("a tensor has no mask; write array.filled(number), or array.data")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DTypeMismatch(f"not the elements of a tensor: {error}") from error
    if array.dtype == np.object_:
        raise DTypeMismatch(_strange(array))
    listed = array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic)
    if listed and (dtype is None or dtype.is_integer) and (array >= 2.0**63).any():
        array = _large_integers(value, array, dtype)
    if dtype is None:
        plain = isinstance(value, float | list | tuple) and not isinstance(value, np.generic)
        if plain and array.dtype == np.float64:
            return _rounded(array, np.dtype(np.float32))
        as_dtype(array.dtype)
        return array
    target = numpy_dtype(dtype)
    if array.dtype == target:
        return array
    as_dtype(array.dtype)
    if dtype.is_bool:
        return array.astype(np.bool_).astype(target)
    if dtype.is_integer:
        _check_values(array, dtype)
    return _rounded(array, target)


def _large_integers(value: Any, rounded: Array, dtype: DType | None) -> Array:
    """Return integers of which NumPy made floats: those that int64 holds beside those it does not.

    What are no integers, or have no dtype in common, stays as it is. Raises ``DTypeMismatch`` for
    the latter where no dtype is wanted either.
    """
    numbers = np.asarray(value, dtype=np.object_)
    if not all(isinstance(one, int | np.integer) for one in numbers.flat):
        return rounded
    least = numbers.min()
    if least >= 0:
        return numbers.astype(np.uint64)
    if dtype is None:
        raise DTypeMismatch(f"no integer dtype holds both {least} and {numbers.max()}")
    return rounded


def _rounded(array: Array, target: np.dtype[Any]) -> Array:
    # Numbers beyond the dtype become infinity, as on a device, and without a warning.
    with np.errstate(over="ignore"):
        if target == _BFLOAT16 and array.dtype.kind in "iuf" and array.dtype != np.float32:
            array = _float32_rounded_to_odd(array)
        return array.astype(target)


def _float32_rounded_to_odd(array: Array) -> Array:
    """Return numbers as float32 so that rounding them to bfloat16 rounds them once.

    They are rounded toward zero, and an inexact one gets its last bit set: it stays on its side of
    every midpoint of two bfloat16 numbers. The server has the same for tensors
    (``backends/array/rounding.py``).
    """
    if array.dtype.itemsize == 8 and array.dtype.kind in "iu":
        # Beyond 53 bits float64 is inexact too: bit 11 stands for the twelve lowest.
        sticky = np.where(array & 0xFFF, array & ~np.array(0xFFF, array.dtype) | 0x800, array)
        array = np.where(np.absolute(array.astype(np.float64)) < 2.0**53, array, sticky)
    exact = array.astype(np.float64)
    near = np.asarray(exact.astype(np.float32))
    back = near.astype(np.float64)
    beyond = np.absolute(back) > np.absolute(exact)
    odd: Array = (near.view(np.uint32) - beyond) | (back != exact)
    return np.asarray(odd, np.uint32).view(np.float32)


def _check_values(array: Array, dtype: DType) -> None:
    """Raise ``DTypeMismatch`` for the first element that is no integer of a dtype."""
    if array.dtype == np.bool_:
        return
    least, most = bounds_of(dtype)
    if np.issubdtype(array.dtype, np.integer):
        fits = (array >= least) & (array <= most)
    else:
        # The bounds are powers of two, or one less: exact as float64 when that one is added.
        numbers = array.astype(np.float64)
        fits = (numbers >= least) & (numbers < float(most + 1)) & (numbers == np.trunc(numbers))
    if not fits.all():
        place = tuple(np.argwhere(~fits)[0].tolist())
        where = f" at {list(place)}" if place else ""
        raise DTypeMismatch(
            f"{array[place].item()!r}{where} is no {dtype}, an integer from {least} to "
            f"{most}; NumPy's array.astype(dtype) cuts and wraps, where that is meant"
        )


def _strange(array: Array) -> str:
    """Return what is said of elements for which NumPy has no numeric dtype."""
    for one in array.flat:
        if not isinstance(one, int):
            return f"the elements of a tensor are numbers or truths, not {one!r}"
        if one.bit_length() > 64:
            return f"{shown(one)} is beyond 64 bits; write it as a float"
    return "NumPy has these integers as objects; array.astype(numpy.int64) makes numbers of them"


def data_from(array: Array, dtype: DType | None = None) -> TensorData:
    """Describe an array's elements as the wire wants them: C order, little-endian.

    No copy is made of an array that has this form already, so its owner must not change it before
    the data was sent. ``dtype`` is needed only where it is not that of the array (bool stores).
    Raises ``ShapeMismatch`` for more axes than a tensor can have.
    """
    if dtype is None:
        dtype = as_dtype(array.dtype)
    shape, stored = sendable_shape(array.shape), numpy_dtype(dtype)
    if array.dtype != stored:
        array = array.astype(stored)
    flat = np.asarray(array, order="C").reshape(-1)
    if not _LITTLE_ENDIAN:
        flat = flat.byteswap()
    return TensorData(flat.view(np.uint8).data, shape, dtype)


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
