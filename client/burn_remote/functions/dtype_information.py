"""Properties of dtypes: their kinds, their limits, and the dtypes to which they convert.

The functions are those of the array API standard 2024.12, section "Data type functions".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

from burn_remote.arguments.arrays import AnyDType, as_dtype, numpy_dtype
from burn_remote.arguments.numbers import bounds_of, is_number
from burn_remote.arguments.promotion import promoted, promoted_with_number
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import REAL_DTYPES, Category, DType
from burn_remote_protocol.errors import ArgumentMismatch, DTypeMismatch, UsageError

if TYPE_CHECKING:
    from burn_remote.arguments.numbers import Number
    from burn_remote.functions.tensor import Tensor

__all__ = ["FloatInfo", "IntegerInfo", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """Limits of a floating-point dtype: what ``finfo`` returns. All limits are Python floats."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IntegerInfo:
    """Limits of an integer dtype: what ``iinfo`` returns."""

    bits: int
    max: int
    min: int
    dtype: DType


_INTEGERS: Final = frozenset({Category.INT, Category.UINT})
_REAL: Final = _INTEGERS | {Category.FLOAT}

# The standard's names of kinds of dtypes.
_KINDS: Final = {
    "bool": frozenset({Category.BOOL}),
    "signed integer": frozenset({Category.INT}),
    "unsigned integer": frozenset({Category.UINT}),
    "integral": _INTEGERS,
    "real floating": frozenset({Category.FLOAT}),
    "complex floating": frozenset({Category.COMPLEX}),
    "numeric": _REAL | {Category.COMPLEX},
}


def finfo(type: AnyDType | Tensor, /) -> FloatInfo:
    """Return the limits of a floating-point dtype, or of a tensor's dtype.

    The limits of a complex dtype are those of its parts. Raises ``DTypeMismatch`` for any other
    dtype.
    """
    dtype = _dtype_of(type)
    dtype = REAL_DTYPES.get(dtype, dtype)
    if not dtype.is_floating:
        advice = f"; for {dtype}, use iinfo" if dtype.is_integer else f", not {dtype}"
        raise DTypeMismatch(f"finfo describes floating-point dtypes{advice}")
    limits: Any = ml_dtypes.finfo  # NumPy's, and those of bfloat16
    found = limits(numpy_dtype(dtype))
    return FloatInfo(
        bits=int(found.bits),
        eps=float(found.eps),
        max=float(found.max),
        min=float(found.min),
        smallest_normal=float(found.smallest_normal),
        dtype=as_dtype(found.dtype),
    )


def iinfo(type: AnyDType | Tensor, /) -> IntegerInfo:
    """Return the limits of an integer dtype, or of a tensor's dtype.

    Raises ``DTypeMismatch`` for any other dtype.
    """
    dtype = _dtype_of(type)
    if not dtype.is_integer:
        has_finfo = dtype.is_floating or dtype.is_complex
        advice = f"; for {dtype}, use finfo" if has_finfo else f", not {dtype}"
        raise DTypeMismatch(f"iinfo describes integer dtypes{advice}")
    least, most = bounds_of(dtype)
    return IntegerInfo(bits=dtype.itemsize * 8, max=most, min=least, dtype=dtype)


def isdtype(dtype: AnyDType, kind: AnyDType | str | tuple[AnyDType | str, ...]) -> bool:
    """Return whether a dtype is of a kind, or of one of several kinds.

    A kind is a dtype or one of ``"bool"``, ``"signed integer"``, ``"unsigned integer"``,
    ``"integral"``, ``"real floating"``, ``"complex floating"`` and ``"numeric"``. Raises
    ``UsageError`` for any other text.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    dtype = as_dtype(dtype)
    if not isinstance(kind, str):
        return dtype is as_dtype(kind)
    categories = _KINDS.get(kind)
    if categories is None:
        raise UsageError(f"kind must be a dtype or one of {', '.join(_KINDS)}, not {kind!r}")
    return dtype.category in categories


def can_cast(from_: AnyDType | Tensor, to: AnyDType, /) -> bool:
    """Return whether a dtype holds all values of another one, as ``numpy.can_cast`` does."""
    return np.can_cast(numpy_dtype(_dtype_of(from_)), numpy_dtype(as_dtype(to)), "safe")


def result_type(*arrays_and_dtypes: Tensor | Number | AnyDType) -> DType:
    """Return the dtype of an operation on these tensors, dtypes and Python numbers.

    Python numbers count as in operators: ``result_type(uint8, 1)`` is uint8. Raises
    ``DTypeMismatch`` if there is no common dtype, and ``ArgumentMismatch`` for numbers alone.
    """
    numbers = [one for one in arrays_and_dtypes if is_number(one)]
    others = [_dtype_of(one) for one in arrays_and_dtypes if not is_number(one)]
    if not others:
        raise ArgumentMismatch("result_type needs a tensor or a dtype beside Python numbers")
    common = promoted(*others)
    for number in numbers:
        common = promoted_with_number(common, number)
    return common


def _dtype_of(value: Any) -> DType:
    return value.dtype if is_tensor(value) else as_dtype(value)
