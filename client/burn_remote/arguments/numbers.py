"""Numbers in calls: their validation, and their conversion to a tensor's dtype.

A number beside a tensor takes the tensor's dtype: an integer beside floats becomes a float; no
other conversion between kinds happens.
"""

from __future__ import annotations

import math
import operator
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from burn_remote_protocol.dtypes import Category, DType
from burn_remote_protocol.errors import ArgumentMismatch, DTypeMismatch, UsageError, shown

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = [
    "Number",
    "bounds_of",
    "is_number",
    "number_for",
    "number_key",
    "real_number",
    "refuse_elements",
    "truncated_for",
    "whole_for",
    "whole_number",
]


def whole_number(what: str, value: Any, least: int, most: int) -> int:
    """Return ``value`` as Python's integer; NumPy's are taken too, truths are not.

    ``what`` names it in the error: ``ArgumentMismatch`` for what is no integer, ``UsageError`` for
    one below ``least`` or above ``most``.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise ArgumentMismatch(f"{what} is a whole number, not {value!r}")
    if not least <= number <= most:
        raise UsageError(f"{what} is from {least:,} to {most:,}, not {shown(number)}")
    return number


def real_number(what: str, value: Any) -> float:
    """Return ``value`` as Python's float. Raises ``ArgumentMismatch`` for what is no number, and
    ``UsageError`` for an integer beyond all of them.
    """
    try:
        if not isinstance(value, str):  # whose numbers Python would read
            return float(value)
    except TypeError:
        pass
    except OverflowError:
        raise UsageError(f"{what} is beyond 64 bits: {shown(value)}") from None
    raise ArgumentMismatch(f"{what} is a number, not {value!r}")


# What users may write beside a tensor. (For type checkers, float includes int and bool.)
Number = float | np.number[Any] | np.bool_

FLOAT64_BYTES: Final = 8
_FLOAT64: Final = struct.Struct("<d")
_BITS: Final = struct.Struct("<q")

_NUMBERS: Final = frozenset({float, int, bool})


def is_number(value: object) -> TypeIs[Number]:
    """Whether a value is a Python number, or one of NumPy's scalars."""
    return value.__class__ in _NUMBERS or isinstance(value, np.generic)


def number_for(dtype: DType, value: Any) -> float:
    """Return ``value`` as the number that goes with elements of ``dtype``.

    Raises ``DTypeMismatch`` for a float beside integers, for a number beside bools and the other
    way round, and for an integer that ``dtype`` cannot hold; ``ArgumentMismatch`` for no number.
    """
    seen = value.__class__
    category = dtype.category
    if category is Category.FLOAT and (seen is float or seen is int):
        try:
            number = float(value)
        except OverflowError:
            raise DTypeMismatch(f"{shown(value)} is beyond the numbers of {dtype}") from None
        if seen is int and number != value and dtype.itemsize < FLOAT64_BYTES:
            return _rounded_to_odd(value, number)
        return number
    if category is Category.BOOL and seen is bool:
        return bool(value)
    if seen is int and (category is Category.INT or category is Category.UINT):
        least, most = bounds_of(dtype)
        if least <= value <= most:
            return int(value)
        raise DTypeMismatch(f"{shown(value)} does not fit into {dtype} ({least} to {most})")
    if isinstance(value, np.generic):
        return number_for(dtype, value.item())
    raise _refusal(dtype, value)


def whole_for(dtype: DType, number: float) -> int:
    """Return a number without a fraction as an integer. Raises ``DTypeMismatch`` for one with."""
    if not isinstance(number, int) and not number.is_integer():
        raise DTypeMismatch(f"{number} is no whole number, as those of {dtype} are")
    return int(number)


def truncated_for(dtype: DType, number: float) -> float:
    """Return a number without its fraction, for elements of an integer ``dtype``.

    Raises ``DTypeMismatch`` where they cannot hold it.
    """
    if not math.isfinite(number):
        raise DTypeMismatch(f"{number} is no {dtype}")
    return number_for(dtype, math.trunc(number))


def refuse_elements(value: object) -> None:
    """Raise ``ArgumentMismatch`` for what has elements and is no tensor.

    For comparisons, where Python's answer would be a single false.
    """
    if isinstance(value, np.ndarray | list | tuple):
        raise _no_number(value)


def number_key(value: float) -> object:
    """Return what tells a number from all others of its type: ``0.0 == -0.0``, ``nan != nan``."""
    return value if value and value == value else repr(value)


def bounds_of(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest integer that an integer dtype holds."""
    bits = 8 * dtype.itemsize
    if dtype.category is Category.UINT:
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _rounded_to_odd(value: int, nearest: float) -> float:
    """Return an integer that float64 does not hold, so that a shorter dtype rounds it only once.

    The last bit of a number that was rounded toward zero is set: it stays on its side of every
    midpoint of a shorter dtype, where the nearest float64 may be the midpoint itself.
    """
    below = math.nextafter(nearest, 0.0) if abs(nearest) > abs(value) else nearest
    (bits,) = _BITS.unpack(_FLOAT64.pack(below))
    (odd,) = _FLOAT64.unpack(_BITS.pack(bits | 1))
    return float(odd)


def _refusal(dtype: DType, value: object) -> Exception:
    seen = type(value)
    if seen not in _NUMBERS:
        return _no_number(value)
    if dtype.category is Category.QUANTIZED:
        advice = "compute with its numbers, x.dequantize()"
    elif dtype.is_bool:
        advice = "convert the tensor first, for instance with .astype(burn_remote.int64)"
    elif seen is bool:
        advice = "write 0 or 1"
    else:
        advice = "convert the tensor first with .astype(burn_remote.float32), or write an integer"
    return DTypeMismatch(
        f"a tensor of {dtype} and the {seen.__name__} {value!r} do not go together; {advice}"
    )


def _no_number(value: object) -> ArgumentMismatch:
    if isinstance(value, np.ndarray):
        return ArgumentMismatch(
            "an array is not on the tensor's device; send it there first: "
            "burn_remote.tensor(array, device=x.device)"
        )
    return ArgumentMismatch(f"expected a tensor or a number, not {type(value).__name__}")
