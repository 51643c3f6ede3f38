"""PyTorch's promotion of dtypes.

A tensor with axes outranks a 0-d tensor of the same kind, and a 0-d tensor outranks a number: see
``torch.result_type``.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import torch

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.dtypes import dtype_from_torch, dtype_to_torch
from burn_remote_protocol.dtypes import BOOL, C64, C128, F64, I64, DType
from burn_remote_protocol.errors import UsageError

__all__ = [
    "as_floats",
    "cast",
    "default_float",
    "factor_for",
    "filled_like",
    "in_common",
    "number_for",
    "result_dtype",
]

Tensor = br.Tensor

# Ranks of the kinds of numbers.
_KINDS: Final = {bool: 0, int: 1, float: 2, complex: 3}


def cast(x: Tensor, dtype: Any) -> Tensor:
    """Convert to a ``torch.dtype``; ``None`` keeps the dtype.

    As on the CPU, complex numbers that become real ones lose their imaginary parts.
    """
    if dtype is None:
        return x
    wanted = dtype_from_torch(dtype)
    if x.dtype.is_complex and not wanted.is_complex:
        if wanted.is_bool:
            return br.not_equal(x, 0)
        x = br.real(x)
    return converted_to(x, wanted)


def default_float() -> DType:
    """Return PyTorch's default dtype."""
    return dtype_from_torch(torch.get_default_dtype())


def filled_like(x: Tensor, number: Any, shape: tuple[int, ...] = (), dtype: Any = None) -> Tensor:
    """Return a tensor of one number on the device of ``x``; ``dtype`` is one of burn-remote's."""
    return br.full(shape, number, dtype=dtype or x.dtype, device=x.device)


def number_for(value: Any, dtype: DType) -> Any:
    """Convert a number that is stored in a tensor of a dtype, as PyTorch does.

    Raises ``UsageError`` if it does not fit. A traced number, whose value differs between calls of
    a graph, is returned unchanged for a dtype of floats.
    """
    if isinstance(value, complex) and not dtype.is_complex:
        if value.imag:
            raise UsageError(f"{value} cannot be stored in a tensor of {dtype}: it is complex")
        value = value.real
    if dtype.is_bool:
        return bool(value)
    if dtype.is_integer:
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{value} cannot be stored in a tensor of {dtype}")
        number, limits = int(value), br.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            raise UsageError(
                f"{number} cannot be stored in a tensor of {dtype}, which holds {limits.min} to "
                f"{limits.max}"
            )
        return number
    if type(value) is bool:
        return int(value)
    if type(value) in (int, float) and dtype.is_floating and dtype is not F64:
        largest = br.finfo(dtype).max
        if largest < abs(value) < math.inf:
            raise UsageError(
                f"{value} cannot be stored in a tensor of {dtype}: the largest is {largest}"
            )
    return value


def factor_for(value: Any, dtype: DType) -> Any:
    """Convert a factor for elements of a dtype: its fraction is cut off for integers and bools."""
    return int(value) if dtype.is_integer or dtype.is_bool else value


def _kind(dtype: DType) -> int:
    if dtype.is_bool:
        return 0
    if dtype.is_integer:
        return 1
    return 3 if dtype.is_complex else 2


@functools.lru_cache(maxsize=4096)
def _result(
    wide: tuple[DType, ...],
    scalars: tuple[DType, ...],
    numbers: tuple[type, ...],
    default: DType,
) -> DType:
    def promoted(dtypes: tuple[DType, ...]) -> DType | None:
        common = None
        for dtype in dtypes:
            theirs = dtype_to_torch(dtype)
            common = theirs if common is None else torch.promote_types(common, theirs)
        return None if common is None else dtype_from_torch(common)

    result = promoted(wide)
    zero = promoted(scalars)
    if zero is not None and (result is None or _kind(zero) > _kind(result)):
        result = zero if result is None else _combined(result, zero)
    number = max((_KINDS[one] for one in numbers), default=-1)
    if result is None:
        return (BOOL, I64, default, C64)[number]
    if number <= _kind(result):
        return result
    if number == 3:
        return C128 if result is F64 else C64
    return (BOOL, I64, default)[number]


def _combined(wide: DType, zero: DType) -> DType:
    if zero.is_complex and wide.is_floating:
        return C128 if wide is F64 else C64
    if wide.is_floating and not zero.is_complex:
        return wide
    return zero


def result_dtype(*operands: Any) -> DType:
    """Return the dtype in which tensors and numbers are combined, as ``torch.result_type``."""
    wide: list[DType] = []
    scalars: list[DType] = []
    numbers: list[type] = []
    for operand in operands:
        if type(operand) is Tensor:
            (wide if operand.ndim else scalars).append(operand.dtype)
        elif operand is not None:
            numbers.append(operand.__class__)  # of a traced number: the class of its value
    return _result(tuple(wide), tuple(scalars), tuple(numbers), default_float())


def in_common(*operands: Any) -> tuple[Any, ...]:
    """Convert tensors to the dtype of the result; numbers stay numbers."""
    dtype = result_dtype(*operands)
    return tuple([converted_to(x, dtype) if type(x) is Tensor else x for x in operands])


def as_floats(*operands: Any) -> tuple[Any, ...]:
    """Convert as ``in_common``, integers and bools to the default floating-point dtype."""
    dtype = result_dtype(*operands)
    if not (dtype.is_floating or dtype.is_complex):
        dtype = default_float()
    return tuple([converted_to(x, dtype) if type(x) is Tensor else x for x in operands])
