"""How are tensors of random numbers made?

The numbers come from the session's generator on the device: after ``device.seed(…)`` the same
calls give the same numbers. ``device=None`` means ``default_device()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from burn_remote.arguments.arrays import AnyDType, as_dtype
from burn_remote.arguments.axes import normal_shape
from burn_remote.arguments.numbers import bounds_of, number_for, real_number, whole_number
from burn_remote.chosen_device import checked_device, default_device
from burn_remote.diagnostics.foreign_names import missing_from
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator
from burn_remote.functions.arithmetic import add
from burn_remote.functions.casting import astype
from burn_remote.functions.searching import argsort
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.dtypes import F32, I64, DType
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.families import floats, numeric
from burn_remote_protocol.tensors import MAX_ELEMENTS, TensorSpec

if TYPE_CHECKING:
    from burn_remote.device import Device

__all__ = ["bernoulli", "default", "integers", "normal", "permutation", "uniform"]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)

Shape = int | Sequence[int]

RANDOM: Final = Operator(floats.RANDOM)
INT_RANDOM: Final = Operator(numeric.INT_RANDOM)


@explained
def uniform(
    shape: Shape,
    low: float = 0.0,
    high: float = 1.0,
    *,
    dtype: AnyDType = F32,
    device: Device | None = None,
) -> Tensor:
    """Return numbers between ``low`` and ``high`` (excluded), all equally likely."""
    return _drawn(shape, _bounds(low, high), as_dtype(dtype), device)


@explained
def normal(
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    dtype: AnyDType = F32,
    device: Device | None = None,
) -> Tensor:
    """Return numbers of a normal distribution with this mean and standard deviation."""
    distribution = ("Normal", _number("mean", mean), _number("std", std))
    if not std >= 0:
        raise UsageError(f"std={std} is not 0 or above")
    return _drawn(shape, distribution, as_dtype(dtype), device)


@explained
def bernoulli(
    shape: Shape, p: float = 0.5, *, dtype: AnyDType = F32, device: Device | None = None
) -> Tensor:
    """Return ones with probability ``p``, and zeros; of a bool dtype, truths."""
    if not 0 <= _number("p", p) <= 1:
        raise UsageError(f"a probability is between 0 and 1, not {p}")
    wanted = as_dtype(dtype)
    if wanted.is_bool:
        return astype(_drawn(shape, ("Bernoulli", float(p)), F32, device), wanted)
    return _drawn(shape, ("Bernoulli", float(p)), wanted, device)


@explained
def default(shape: Shape, *, dtype: AnyDType = F32, device: Device | None = None) -> Tensor:
    """Return numbers of the device's default distribution: from 0 to 1 for floats."""
    return _drawn(shape, ("Default",), as_dtype(dtype), device)


@explained
def integers(
    low: int, high: int, /, shape: Shape, *, dtype: AnyDType = I64, device: Device | None = None
) -> Tensor:
    """Return integers from ``low`` up to before ``high``, all equally likely.

    Raises ``DTypeMismatch`` where ``dtype`` cannot hold them, and ``UsageError`` for a range that
    cannot be sent: neither both its ends nor its length are numbers that float64 has.
    """
    low = whole_number("low", low, -(2**63), 2**64)
    high = whole_number("high", high, -(2**63), 2**64)
    if low >= high:
        raise UsageError(f"there is no integer from {low} up to before {high}")
    wanted = as_dtype(dtype)
    if not wanted.is_integer:
        raise UsageError(f"integers cannot be {wanted}; convert them with .astype(...)")
    for bound in (low, high - 1):
        number_for(wanted, bound)
    if _is_float(low) and _is_float(high):
        return _drawn(shape, ("Uniform", float(low), float(high)), wanted, device)
    count = high - low
    if not _is_float(count) or count - 1 > bounds_of(wanted)[1]:
        raise UsageError(f"float64, as which a range is sent, has no {low} to {high}, nor {count}")
    return add(_drawn(shape, ("Uniform", 0.0, float(count)), wanted, device), low)


@explained
def permutation(count: int, /, *, device: Device | None = None) -> Tensor:
    """Return the numbers from 0 to ``count - 1`` in a random order, as int64."""
    return argsort(uniform(whole_number("count", count, 0, MAX_ELEMENTS), device=device))


def _is_float(number: int) -> bool:
    return float(number) == number


def _number(name: str, value: float) -> float:
    return real_number(f"{name}, which follows the shape,", value)


def _bounds(low: float, high: float) -> tuple[str, float, float]:
    least, most = _number("low", low), _number("high", high)
    if not least <= most:
        raise UsageError(f"low={least:g} is above high={most:g}; a shape is one tuple: (2, 3)")
    return "Uniform", least, most


def _drawn(
    shape: Shape, distribution: tuple[Any, ...], dtype: DType, device: Device | None
) -> Tensor:
    operator = INT_RANDOM if dtype.is_integer else RANDOM
    client = (default_device() if device is None else checked_device(device)).client
    return Tensor(operator.create(client, TensorSpec(normal_shape(shape), dtype), (distribution,)))
