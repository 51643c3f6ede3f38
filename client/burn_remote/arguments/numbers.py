"""Numbers in calls: their validation, and their conversion to a tensor's dtype.

A number is converted to the dtype of the tensor with which it is combined. An integer becomes a
float for a tensor of floats. Any other change of kind is an error; operators avoid it by converting
the tensor first (``promotion.py``).
"""

from __future__ import annotations

import math
import numbers
import operator
import struct
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from burn_remote.arguments.traced_numbers import TracedNumber
from burn_remote.runner.interface import TensorHandle
from burn_remote_protocol import dtypes
from burn_remote_protocol.dtypes import Category, DType
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    DTypeMismatch,
    UsageError,
    shown,
    type_name,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = [
    "Number",
    "Operand",
    "bounds_of",
    "check_number",
    "is_imaginary",
    "is_number",
    "number_for",
    "number_key",
    "plain_number",
    "real_number",
    "refuse_elements",
    "truncated_for",
    "whole_for",
    "whole_number",
]


def whole_number(what: str, value: Any, least: int, most: int) -> int:
    """Return ``value``, a Python or NumPy integer, as an ``int``.

    Raises ``ArgumentMismatch`` for other types, including booleans, and ``UsageError`` outside
    ``least`` to ``most``. ``what`` names the argument in the message.
    """
    try:
        number = None if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        number = None
    if number is None:
        raise ArgumentMismatch(f"{what} must be an integer, not {value!r}")
    if not least <= number <= most:
        raise UsageError(f"{what} must be from {least:,} to {most:,}, not {shown(number)}")
    return number


def real_number(what: str, value: Any) -> float:
    """Return ``value`` as a ``float``.

    Raises ``ArgumentMismatch`` if it is not a number and ``UsageError`` if it is an integer too
    large for a float. ``what`` names the argument in the message.
    """
    try:
        if not isinstance(value, str):  # float() would parse it
            return float(value)
    except TypeError:
        pass
    except OverflowError:
        raise UsageError(f"{what} is too large for a float: {shown(value)}") from None
    raise ArgumentMismatch(f"{what} must be a number, not {value!r}")


# A number operand. (For type checkers, complex includes float, int and bool.)
Number = complex | np.number[Any] | np.bool_
# An operand beside a tensor: a number, or an array that is sent to the tensor's device.
Operand = Number | np.ndarray[Any, Any]

FLOAT64_BYTES: Final = 8
_WITH_FRACTIONS: Final = frozenset({Category.FLOAT, Category.COMPLEX})
_FLOAT64: Final = struct.Struct("<d")
_BITS: Final = struct.Struct("<q")

_NUMBERS: Final = frozenset({complex, float, int, bool})


def is_number(value: object) -> TypeIs[Number]:
    """Return whether a value is a Python number or a NumPy scalar."""
    # ``__class__``, because a traced number has that of its value. The second test accepts
    # instances of subclasses, such as members of ``IntEnum``.
    return value.__class__ in _NUMBERS or isinstance(value, np.generic | complex | float | int)


def is_imaginary(value: object) -> bool:
    """Return whether a value is a complex number with an imaginary part.

    The parameters of operations are real, so such a number is sent as a tensor of one element.
    """
    return isinstance(value, complex | np.complexfloating) and value.imag != 0


def number_for(dtype: DType, value: Any) -> float:
    """Convert ``value`` to the Python number that is combined with elements of ``dtype``.

    Raises ``DTypeMismatch`` for a float with integers, a number with bools, a bool with numbers,
    and an integer that ``dtype`` cannot hold; ``ArgumentMismatch`` if it is not a number.
    """
    seen = value.__class__
    if type(value) is TracedNumber:
        return cast("float", value.program.calculated(partial(number_for, dtype), value))
    category = dtype.category
    if category is Category.COMPLEX and seen is complex and value.imag == 0:
        return float(value.real)
    if category in _WITH_FRACTIONS and (seen is float or seen is int):
        try:
            number = float(value)
        except OverflowError:
            raise DTypeMismatch(f"{shown(value)} is too large for {dtype}") from None
        if (
            seen is int
            and number != value
            and dtype.itemsize < FLOAT64_BYTES * (1 + dtype.is_complex)
        ):
            return _rounded_to_odd(value, number)
        return number
    if category is Category.BOOL and seen is bool:
        return bool(value)
    if seen is int and (category is Category.INT or category is Category.UINT):
        least, most = bounds_of(dtype)
        if least <= value <= most:
            return int(value)
        raise DTypeMismatch(
            f"{shown(value)} does not fit in {dtype} ({least} to {most}){_wider(dtype, value)}"
        )
    plain = plain_number(value)
    if plain is not value:
        return number_for(dtype, plain)
    raise _refusal(dtype, value)


def plain_number(value: Any) -> Any:
    """Return a NumPy scalar, or a number of a subclass, as a number of Python's own classes.

    Other values are returned unchanged.
    """
    if value.__class__ in _NUMBERS:
        return value
    if isinstance(value, np.generic):
        return value.item()
    kinds: Any = (int, float, complex)
    return next((kind(value) for kind in kinds if isinstance(value, kind)), value)


def whole_for(dtype: DType, number: float) -> int:
    """Convert an integral number to ``int``. Raises ``DTypeMismatch`` if it has a fraction."""
    if not isinstance(number, int) and not number.is_integer():
        raise DTypeMismatch(f"{number} has a fraction, but {dtype} holds integers")
    return int(number)


def truncated_for(dtype: DType, number: float) -> float:
    """Truncate a number for elements of an integer ``dtype``.

    Raises ``DTypeMismatch`` if ``dtype`` cannot hold the result.
    """
    if not math.isfinite(number):
        raise DTypeMismatch(f"{number} is not a value of {dtype}")
    return number_for(dtype, math.trunc(number))


def check_number(value: object) -> None:
    """Raise ``ArgumentMismatch`` for anything but a number, such as an array or ``None``."""
    if not is_number(value):
        raise _not_a_number(value, "…")


def refuse_elements(value: object) -> None:
    """Raise ``ArgumentMismatch`` for an array, a list, a tuple or a number of another class.

    For ``==`` and ``!=``, where Python would otherwise return a single boolean.
    """
    if isinstance(value, np.ndarray | list | tuple | numbers.Number | Decimal):
        raise _not_a_number(value)


def number_key(value: Any) -> object:
    """Return a cache key that distinguishes 0.0 from -0.0 and makes NaN equal to itself."""
    if type(value) is TracedNumber:
        # An input lives as long as its program, any other traced number as long as the signature
        # that is cached under this key. So the id is not reused while the key exists.
        return id(value), value.program
    return value if value and value == value else repr(value)


def bounds_of(dtype: DType) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer dtype."""
    bits = 8 * dtype.itemsize
    if dtype.category is Category.UINT:
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _rounded_to_odd(value: int, nearest: float) -> float:
    """Round an inexact integer to float64 "to odd", so that a narrower dtype rounds it correctly.

    Rounding to odd truncates the number and sets its last bit. The result is never a midpoint of
    two numbers of a narrower dtype, so the second rounding goes in the same direction as rounding
    the exact integer. Rounding to the nearest float64 first may yield such a midpoint.
    """
    below = math.nextafter(nearest, 0.0) if abs(nearest) > abs(value) else nearest
    (bits,) = _BITS.unpack(_FLOAT64.pack(below))
    (odd,) = _FLOAT64.unpack(_BITS.pack(bits | 1))
    return float(odd)


def _refusal(dtype: DType, value: object) -> Exception:
    seen = type(value)
    if seen not in _NUMBERS:
        return _not_a_number(value)
    if seen is complex and dtype.is_complex:  # as a bound, for example of clip
        return DTypeMismatch(
            f"this operation takes no complex number, such as {value!r}; use real parts: "
            "number.real, burn_remote.real(x)"
        )
    if seen is complex:
        wide = dtypes.C128 if dtype is dtypes.F64 else dtypes.C64
        advice = f"use the dtype {wide}: x.astype(burn_remote.{wide}) converts a tensor"
    elif dtype.category is Category.QUANTIZED:
        advice = "dequantize the tensor first with x.dequantize()"
    elif dtype.is_bool:
        advice = "convert the tensor first, for example with x.astype(burn_remote.int64)"
    elif seen is bool:
        advice = "use 0 or 1"
    else:
        advice = "convert the tensor first with x.astype(burn_remote.float32), or use an integer"
    return DTypeMismatch(
        f"a tensor of {dtype} cannot be combined with the {seen.__name__} {value!r}; {advice}"
    )


def _wider(dtype: DType, value: int) -> str:
    """Return the advice for an integer that ``dtype`` cannot hold."""
    (least, most), same_kind = bounds_of(dtype), [dtype.category]
    wanted = same_kind if value > most else []
    for category in (*wanted, Category.INT):
        for wide in sorted(dtypes.ALL_DTYPES, key=lambda one: one.itemsize):
            if wide.category is category:
                low, high = bounds_of(wide)
                if low <= min(least, value) and max(most, value) <= high:
                    return f"; use {wide}: x.astype(burn_remote.{wide}) converts a tensor"
    try:
        float(value)
    except OverflowError:
        return ""
    return "; use float64, which may round it: x.astype(burn_remote.float64) converts a tensor"


def _not_a_number(value: object, device: str = "x.device") -> ArgumentMismatch:
    if isinstance(getattr(value, "handle", None), TensorHandle):
        return ArgumentMismatch(
            "expected a number, not a tensor; x.item() reads the number of a tensor with one "
            "element"
        )
    if isinstance(value, np.ndarray):
        return ArgumentMismatch(
            "expected a tensor or a number, not a numpy.ndarray; send the array to the device "
            f"first: burn_remote.tensor(array, device={device})"
        )
    way = ""
    if isinstance(value, list | tuple):
        way = f"; burn_remote.tensor(data, device={device}) makes a tensor of a list"
    if isinstance(value, Fraction | Decimal):
        way = "; float(number) converts it"
    if hasattr(type(value), "__array__") or hasattr(type(value), "__dlpack__"):
        way = f"; burn_remote.tensor(data, device={device}) makes a tensor of it"
    return ArgumentMismatch(f"expected a tensor or a number, not {type_name(value)}{way}")
