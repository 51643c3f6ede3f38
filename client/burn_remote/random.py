"""Tensors of random numbers.

The numbers come from the session's generator on the device: after ``device.seed(…)``, the same
calls return the same numbers. ``device=None`` means ``default_device()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from burn_remote.arguments.arrays import AnyDType, as_dtype
from burn_remote.arguments.axes import normal_shape
from burn_remote.arguments.numbers import bounds_of, number_for, real_number, whole_number
from burn_remote.autodiff.pausing import check_random_numbers
from burn_remote.diagnostics.foreign_names import missing_from
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator
from burn_remote.functions.arithmetic import add
from burn_remote.functions.casting import astype
from burn_remote.functions.creation import new_tensor
from burn_remote.functions.default_device import default_device
from burn_remote.functions.device_class import checked_device
from burn_remote.functions.searching import argsort
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.dtypes import F32, I64, DType
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.families import floats, numeric
from burn_remote_protocol.tensors import MAX_ELEMENTS, TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice

__all__ = ["bernoulli", "default", "integers", "normal", "permutation", "uniform"]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)

Shape = int | Sequence[int]

RANDOM: Final = Operator(floats.RANDOM)
INT_RANDOM: Final = Operator(numeric.INT_RANDOM)


@explained
def uniform(
    shape: Shape,
    *,
    low: float = 0.0,
    high: float = 1.0,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Draw from the uniform distribution from ``low`` up to, but excluding, ``high``."""
    drawn = _drawn(shape, _bounds(low, high), as_dtype(dtype), device)
    return new_tensor(drawn.handle, requires_grad)


@explained
def normal(
    shape: Shape,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Draw from the normal distribution with the given mean and standard deviation."""
    distribution = ("Normal", real_number("mean", mean), real_number("std", std))
    if not std >= 0:
        raise UsageError(f"std must not be negative, but is {std}")
    drawn = _drawn(shape, distribution, as_dtype(dtype), device)
    return new_tensor(drawn.handle, requires_grad)


@explained
def bernoulli(
    shape: Shape, p: float = 0.5, *, dtype: AnyDType = F32, device: AnyDevice | None = None
) -> Tensor:
    """Return 1 with probability ``p`` and 0 otherwise; booleans for a bool dtype."""
    if not 0 <= real_number("p, which follows the shape,", p) <= 1:
        raise UsageError(f"p must be from 0 to 1, not {p}")
    wanted = as_dtype(dtype)
    if wanted.is_bool:
        return astype(_drawn(shape, ("Bernoulli", float(p)), F32, device), wanted)
    return _drawn(shape, ("Bernoulli", float(p)), wanted, device)


@explained
def default(shape: Shape, *, dtype: AnyDType = F32, device: AnyDevice | None = None) -> Tensor:
    """Draw from the device's default distribution: for floats, uniform from 0 to 1."""
    return _drawn(shape, ("Default",), as_dtype(dtype), device)


@explained
def integers(
    low: int, high: int, /, shape: Shape, *, dtype: AnyDType = I64, device: AnyDevice | None = None
) -> Tensor:
    """Draw integers uniformly from ``low`` up to, but excluding, ``high``.

    Raises ``DTypeMismatch`` if ``dtype`` cannot hold them. Raises ``UsageError`` for an empty
    range, and for a range that cannot be sent because float64 represents neither both of its bounds
    nor its length exactly.
    """
    low = whole_number("low", low, -(2**63), 2**64)
    high = whole_number("high", high, -(2**63), 2**64)
    if low >= high:
        raise UsageError(f"low must be less than high, not {low} and {high}")
    wanted = as_dtype(dtype)
    if not wanted.is_integer:
        raise UsageError(
            f"dtype must be an integer dtype, not {wanted}; convert the result with x.astype(...)"
        )
    for bound in (low, high - 1):
        number_for(wanted, bound)
    if _is_float(low) and _is_float(high):
        return _drawn(shape, ("Uniform", float(low), float(high)), wanted, device)
    count = high - low
    if not _is_float(count) or count - 1 > bounds_of(wanted)[1]:
        raise UsageError(
            f"the range from {low} to {high} cannot be sent: float64 cannot represent it exactly"
        )
    return add(_drawn(shape, ("Uniform", 0.0, float(count)), wanted, device), low)


@explained
def permutation(count: int, /, *, device: AnyDevice | None = None) -> Tensor:
    """Return the integers from 0 to ``count - 1`` in random order, as int64."""
    return argsort(uniform(whole_number("count", count, 0, MAX_ELEMENTS), device=device))


def _is_float(number: int) -> bool:
    return float(number) == number


def _bounds(low: float, high: float) -> tuple[str, float, float]:
    least, most = real_number("low", low), real_number("high", high)
    if not least <= most:
        raise UsageError(f"low={least:g} is greater than high={most:g}")
    return "Uniform", least, most


def _drawn(
    shape: Shape, distribution: tuple[Any, ...], dtype: DType, device: AnyDevice | None
) -> Tensor:
    check_random_numbers()
    operator = INT_RANDOM if dtype.is_integer else RANDOM
    client = (default_device() if device is None else checked_device(device)).runners
    return Tensor(operator.create(client, TensorSpec(normal_shape(shape), dtype), (distribution,)))
