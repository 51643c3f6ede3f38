"""Conversion between NumPy arrays and the data of tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from burn_remote.arguments.axes import sendable_shape
from burn_remote.arguments.numbers import Number, bounds_of
from burn_remote_protocol import dtypes
from burn_remote_protocol.dtypes import DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, shown
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
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

# A dtype argument: one of burn-remote's dtypes, or anything that numpy.dtype accepts.
AnyDType = DType | npt.DTypeLike

_NUMPY: Final[dict[DType, np.dtype[Any]]] = {
    dtypes.F64: np.dtype(np.float64),
    dtypes.F32: np.dtype(np.float32),
    dtypes.FLEX32: np.dtype(np.float32),
    dtypes.F16: np.dtype(np.float16),
    dtypes.BF16: np.dtype(ml_dtypes.bfloat16),
    dtypes.C128: np.dtype(np.complex128),
    dtypes.C64: np.dtype(np.complex64),
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
# By identity, because the hash of a dtype is computed by Python code, which takes longer. These
# dtypes are never freed, so their ids stay valid.
_NUMPY_BY_ID: Final = {id(dtype): stored for dtype, stored in _NUMPY.items()}
# If several dtypes have the same NumPy dtype (bools that are stored as integers, flex32), arrays
# get the plain dtype.
_BY_NUMPY: Final[dict[np.dtype[Any], DType]] = {
    stored: dtype
    for dtype, stored in _NUMPY.items()
    if dtype not in (dtypes.FLEX32, dtypes.BOOL_U8, dtypes.BOOL_U32)
}
# The dtype of Python's numbers in NumPy -> the default dtype of tensors.
_DEFAULTS: Final[dict[np.dtype[Any], np.dtype[Any]]] = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}
# Names of dtypes in settings of other libraries, such as Lightning and Hugging Face.
_SHORT_NAMES: Final = {
    "fp64": dtypes.F64,
    "fp32": dtypes.F32,
    "fp16": dtypes.F16,
    "bf16": dtypes.BF16,
}
_BFLOAT16: Final = _NUMPY[dtypes.BF16]
_LITTLE_ENDIAN: Final = sys.byteorder == "little"


def as_dtype(dtype: AnyDType) -> DType:
    """Convert a dtype argument to a burn-remote dtype.

    Raises ``DTypeMismatch`` for dtypes that tensors cannot have (text, dates, objects).
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, QuantScheme):
        raise DTypeMismatch("a scheme is not a dtype; use burn_remote.quantize(x, scheme)")
    if isinstance(dtype, str) and dtype in _SHORT_NAMES:
        return _SHORT_NAMES[dtype]
    try:
        # numpy.dtype(None) is float64; burn-remote has no such default.
        found = None if dtype is None else _BY_NUMPY.get(np.dtype(dtype).newbyteorder("="))
    except TypeError:
        found = None
    if found is None:
        known = ", ".join(map(str, _BY_NUMPY.values()))
        name = str(dtype).rpartition(".")[2]  # of torch.float32
        same = f"; write burn_remote.{name}" if name in map(str, _BY_NUMPY.values()) else ""
        raise DTypeMismatch(f"tensors cannot hold {dtype!r}; they hold {known}{same}")
    return found


def dtype_of_number(number: Number) -> DType:
    """Return the default dtype of a number.

    It is a NumPy scalar's own, or int64, float32, complex64 or bool.
    """
    if isinstance(number, np.generic):
        return as_dtype(number.dtype)
    if isinstance(number, complex):
        return dtypes.C64
    if isinstance(number, bool):
        return dtypes.BOOL
    return dtypes.I64 if isinstance(number, int) else dtypes.F32


def as_array(value: Any, dtype: DType | None) -> Array:
    """Convert anything that ``numpy.asarray`` accepts to an array whose dtype tensors can have.

    Without ``dtype``, Python floats become float32, complex numbers complex64 and Python integers
    int64; arrays keep their dtype, also in lists. NumPy's scalars in lists count as numbers. A
    floating-point ``dtype`` rounds the elements, an integer one requires integers in its range, and
    a bool one makes nonzero elements true. Raises ``DTypeMismatch`` for elements that tensors or
    ``dtype`` cannot hold.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise DTypeMismatch("tensors have no mask; use array.filled(number) or array.data")
    try:
        array = np.asarray(value)
    except ValueError as error:
        pass_on_of_signal_handler(error)
        if "inhomogeneous" in str(error):
            raise DTypeMismatch(
                "cannot make a tensor of rows with different lengths; pad them, or make a tensor "
                "of each"
            ) from error
        raise DTypeMismatch(f"cannot make a tensor of these elements: {error}") from error
    if array.dtype == np.object_:
        raise DTypeMismatch(_strange(array))
    listed = array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic)
    if listed and (dtype is None or dtype.is_integer) and (array >= 2.0**63).any():
        array = _large_integers(value, array, dtype)
    if dtype is None:
        plain = isinstance(value, complex | float | list | tuple)
        if plain and not isinstance(value, np.generic) and array.dtype in _DEFAULTS:
            if _lists_array_of(value, array.dtype, array.ndim - 1):
                return array
            return _rounded(array, _DEFAULTS[array.dtype])
        as_dtype(array.dtype)
        return array
    target = numpy_dtype(dtype)
    if array.dtype == target:
        return array
    as_dtype(array.dtype)
    return _converted(array, dtype, target)


def _lists_array_of(value: Any, dtype: np.dtype[Any], axes: int) -> bool:
    """Return whether nested lists contain an array of a dtype that has at least one axis.

    ``axes`` is the number of axes that an element of ``value`` has; the numbers of the innermost
    lists are not looked at.
    """
    if axes < 1 or not isinstance(value, list | tuple):
        return False
    return any(
        one.dtype == dtype if isinstance(one, np.ndarray) else _lists_array_of(one, dtype, axes - 1)
        for one in value
    )


def _converted(array: Array, dtype: DType, target: np.dtype[Any]) -> Array:
    if dtype.is_bool:
        return array.astype(np.bool_).astype(target)
    if array.dtype.kind == "c" and not dtype.is_complex:
        raise DTypeMismatch(f"complex numbers are not values of {dtype}; send array.real")
    if dtype.is_integer:
        _check_values(array, dtype)
    return _rounded(array, target)


def _large_integers(value: Any, rounded: Array, dtype: DType | None) -> Array:
    """Return the uint64 array of integers that NumPy converted to floats, or else ``rounded``.

    NumPy converts a list to floats when some integers fit int64 and others only uint64. Raises
    ``DTypeMismatch`` for integers without a common dtype if ``dtype`` is ``None``.
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
    # Overflow becomes infinity without a warning, as on a device.
    with np.errstate(over="ignore"):
        if target == _BFLOAT16 and array.dtype.kind in "iuf" and array.dtype != np.float32:
            array = _float32_rounded_to_odd(array)
        return array.astype(target)


def _float32_rounded_to_odd(array: Array) -> Array:
    """Round numbers to float32 "to odd", so that bfloat16 can be rounded correctly from the result.

    Rounding to odd truncates and sets the last bit of an inexact number, so the result is never a
    midpoint of two bfloat16 numbers. The server does the same
    (``backends/array/core/rounding.py``).
    """
    if array.dtype.itemsize == 8 and array.dtype.kind in "iu":
        # float64 is inexact beyond 53 bits: fold the twelve lowest bits into bit 11.
        sticky = np.where(array & 0xFFF, array & ~np.array(0xFFF, array.dtype) | 0x800, array)
        array = np.where(np.absolute(array.astype(np.float64)) < 2.0**53, array, sticky)
    exact = array.astype(np.float64)
    near = np.asarray(exact.astype(np.float32))
    back = near.astype(np.float64)
    beyond = np.absolute(back) > np.absolute(exact)
    odd: Array = (near.view(np.uint32) - beyond) | (back != exact)
    return np.asarray(odd, np.uint32).view(np.float32)


def _check_values(array: Array, dtype: DType) -> None:
    """Raise ``DTypeMismatch`` for the first element that an integer dtype cannot hold."""
    if array.dtype == np.bool_:
        return
    least, most = bounds_of(dtype)
    if np.issubdtype(array.dtype, np.integer):
        fits = (array >= least) & (array <= most)
    else:
        # ``least`` and ``most + 1`` are 0 or powers of two, which float64 represents exactly.
        numbers = array.astype(np.float64)
        fits = (numbers >= least) & (numbers < float(most + 1)) & (numbers == np.trunc(numbers))
    if not fits.all():
        place = tuple(np.argwhere(~fits)[0].tolist())
        where = f" at {list(place)}" if place else ""
        raise DTypeMismatch(
            f"{array[place].item()!r}{where} is not a value of {dtype}, an integer from {least} to "
            f"{most}; to truncate or wrap deliberately, use NumPy's array.astype(dtype)"
        )


def _strange(array: Array) -> str:
    """Return the error message for an array of objects."""
    for one in array.flat:
        if not isinstance(one, int):
            way = "; pass list(data)" if isinstance(one, Iterator) else ""
            return f"the elements of a tensor are numbers or booleans, not {shown(one)}{way}"
        if one.bit_length() > 64:
            return f"{shown(one)} does not fit in 64 bits; write it as a float"
    return "an array of objects has no numeric dtype; convert it with array.astype(numpy.int64)"


def data_from(array: Array, dtype: DType | None = None) -> TensorData:
    """Return an array's elements in wire format: C order, little-endian.

    An array already in this format is not copied, so its owner must not change it before the data
    is sent. ``dtype`` is needed only if the array's dtype does not imply it, as for bools that are
    stored as integers. Raises ``ShapeMismatch`` for more axes than a tensor can have.
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
    """Return a writable array of elements in wire format.

    Takes over a writable buffer without copying it; the caller must no longer use it. Bools that
    are stored as integers become NumPy bools. Raises ``DTypeMismatch`` for quantized elements.
    """
    content, shape, dtype = data
    stored = numpy_dtype(dtype)
    if type(content) is bytes and dtype.store is None and _LITTLE_ENDIAN:
        # The usual small reply: what follows, with fewer calls of NumPy.
        return np.ndarray(shape, stored, content).copy()
    flat: Array = np.frombuffer(content, stored)
    if not _LITTLE_ENDIAN:
        flat = flat.byteswap()
    if dtype is dtypes.BOOL_U8 or dtype is dtypes.BOOL_U32:
        flat = flat != 0
    elif not flat.flags.writeable:
        flat = flat.copy()
    return flat.reshape(shape)


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy dtype with the wire format's element type.

    Raises ``DTypeMismatch`` for quantized dtypes.
    """
    stored = _NUMPY_BY_ID.get(id(dtype))
    if stored is None:
        raise DTypeMismatch(
            f"NumPy has no dtype for {dtype}; use x.dequantize().numpy() for floats, or "
            "burn_remote.read_quantized(x) for integers and scales"
        )
    return stored


dtypes.use_array_dtypes(numpy_dtype)
