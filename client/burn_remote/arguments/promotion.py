"""Promotion: the dtype of an operation on operands of several dtypes.

Two dtypes of one kind promote as in the array API standard 2024.12 ("Type promotion rules"). Pairs
that the standard leaves undefined promote as in most of NumPy, PyTorch and JAX:

- bool and any number: the number's dtype;
- integers and floats: the dtype of the floats, as in PyTorch and JAX (NumPy widens to float64);
- integers or bools and complex numbers: the dtype of the complex numbers;
- float16 and bfloat16: float32, the smallest dtype that holds both.

A Python number takes the dtype of the tensor. If its kind is higher (a float with integers, an
integer with bools), the result has the default dtype of its kind: int64, float32, or the complex
dtype of the tensor's precision.

Signed integers and uint64 have no common integer dtype, and quantized tensors none at all.

Comparisons of integers with floats or complex numbers are exceptions: their operands are converted
as in NumPy, to the smallest dtype that holds the elements of both, at most float64 or complex128.
PyTorch and JAX round the integers to the dtype of the floats, which makes 2049 equal to
``float16(2048)``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from burn_remote_protocol import dtypes
from burn_remote_protocol.dtypes import Category, DType
from burn_remote_protocol.errors import DTypeMismatch

__all__ = ["compared", "compared_with_number", "promoted", "promoted_with_number"]

_SIGNED: Final = (dtypes.I8, dtypes.I16, dtypes.I32, dtypes.I64)
# Each dtype holds all numbers of those before it. bfloat16 and flex32 have no place in this order:
# see ``_floats``.
_FLOATS: Final = (dtypes.F16, dtypes.F32, dtypes.F64)


def _larger(first: DType, second: DType) -> DType:
    return first if first.itemsize >= second.itemsize else second


def _mixed_integers(signed: DType, unsigned: DType) -> DType | None:
    """Return the smallest signed dtype that holds both, ``None`` for uint64."""
    size = max(signed.itemsize, 2 * unsigned.itemsize)
    return next((one for one in _SIGNED if one.itemsize >= size), None)


def _floats(first: DType, second: DType) -> DType:
    if first in _FLOATS and second in _FLOATS:
        return _larger(first, second)
    # bfloat16 or flex32 with another dtype: float32 holds bfloat16, float16 and flex32.
    return dtypes.F64 if dtypes.F64 in (first, second) else dtypes.F32


def _same_kind(first: DType, second: DType) -> DType | None:
    match first.category:
        case Category.FLOAT:
            return _floats(first, second)
        case Category.INT | Category.UINT:
            return _larger(first, second)
        case Category.COMPLEX:
            return _larger(first, second)
        case Category.BOOL:
            return dtypes.BOOL
        case _:
            return None


_KINDS: Final = {
    Category.BOOL: 0,
    Category.INT: 1,
    Category.UINT: 1,
    Category.FLOAT: 2,
    Category.COMPLEX: 3,
}


def _common(first: DType, second: DType) -> DType | None:
    """Return the common dtype of two dtypes, ``None`` if they have none."""
    if first is second:
        return first
    if first.category is second.category:
        return _same_kind(first, second)
    rank1, rank2 = _KINDS.get(first.category), _KINDS.get(second.category)
    if rank1 is None or rank2 is None:
        return None
    if dtypes.F64 in (first, second) and dtypes.C64 in (first, second):
        return dtypes.C128
    if rank1 != rank2:
        return first if rank1 > rank2 else second
    signed, unsigned = (first, second) if first.category is Category.INT else (second, first)
    return _mixed_integers(signed, unsigned)


_PROMOTED: Final[dict[tuple[DType, DType], DType]] = {
    (first, second): common
    for first in dtypes.ALL_DTYPES
    for second in dtypes.ALL_DTYPES
    if (common := _common(first, second)) is not None
}


def promoted(*operands: DType) -> DType:
    """Return the dtype to which operands of these dtypes are converted.

    Raises ``DTypeMismatch`` if they have no common dtype.
    """
    common = operands[0]
    for dtype in operands[1:]:
        found = common if dtype is common else _PROMOTED.get((common, dtype))
        if found is None:
            raise DTypeMismatch(
                f"{common} and {dtype} have no common dtype; {_advice(dtype, common)}"
            )
        common = found
    return common


def _advice(*operands: DType) -> str:
    if any(one.category is Category.QUANTIZED for one in operands):
        return "dequantize the quantized tensor first with x.dequantize()"
    return "convert one with x.astype(dtype)"


def promoted_with_number(dtype: DType, number: Any) -> DType:
    """Return the dtype to which a tensor is converted before it is combined with a Python number.

    It is the tensor's own dtype unless the number's kind is higher: then the default dtype of that
    kind. NumPy scalars count as the Python numbers of their kind. For any other object, this
    returns the tensor's dtype; the conversion of the object raises an error later.
    """
    category = dtype.category
    if category is Category.QUANTIZED or category is Category.COMPLEX:
        return dtype
    kind = number.__class__  # a traced number has the ``__class__`` of its value
    if issubclass(kind, complex | np.complexfloating):
        return dtypes.C128 if dtype is dtypes.F64 else dtypes.C64
    if category is Category.FLOAT:
        return dtype
    if issubclass(kind, float | np.floating):
        return dtypes.F32
    if category is Category.BOOL and issubclass(kind, int | np.integer) and kind is not bool:
        return dtypes.I64
    return dtype


def compared(first: DType, second: DType) -> DType:
    """Return the dtype in which elements of two dtypes are compared.

    As ``promoted``, except for integers with floats or complex numbers. Raises ``DTypeMismatch`` if
    there is no common dtype.
    """
    common = promoted(first, second)
    if common.is_integer or not (first.is_integer or second.is_integer):
        return common
    integers = first if first.is_integer else second
    # float16 and bfloat16 hold all integers of 8 bits, float32 those of 16 bits.
    if integers.itemsize == 1:
        return common
    if common.category is Category.COMPLEX:
        return common if integers.itemsize == 2 else dtypes.C128
    return _floats(common, dtypes.F32 if integers.itemsize == 2 else dtypes.F64)


def compared_with_number(dtype: DType, number: Any) -> DType:
    """Return the dtype in which a tensor is compared with a Python number.

    As ``promoted_with_number``, but integers are compared with floats in float64 and with complex
    numbers in complex128, in which NumPy compares them too: float32 would make ``2**24 + 1`` equal
    to ``2.0**24``.
    """
    common = promoted_with_number(dtype, number)
    if not dtype.is_integer or common is dtype:
        return common
    return dtypes.C128 if common.category is Category.COMPLEX else dtypes.F64
