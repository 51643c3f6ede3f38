"""Tensors of random numbers.

The numbers come from the session's generator on the device: after ``device.seed(…)``, the same
calls return the same numbers. ``device=None`` means ``default_device()``. All raise ``UsageError``,
or a subclass of it, for invalid shapes and dtypes and for parameters outside their range, such as a
negative ``std``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from burn_remote.arguments.arrays import AnyDType, Array, as_dtype
from burn_remote.arguments.axes import normal_axis, normal_shape
from burn_remote.arguments.numbers import bounds_of, number_for, real_number, whole_number
from burn_remote.autodiff.grad_mode import check_random_numbers
from burn_remote.diagnostics.advice import missing_from
from burn_remote.diagnostics.foreign_names import RANDOM as RANDOM_NAMES
from burn_remote.diagnostics.invalid_calls import explained, no_tensor
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.functions.arithmetic import add, divide, multiply, negative, pow, subtract
from burn_remote.functions.casting import LOW_PRECISION, as_float, astype, at_least_float32
from burn_remote.functions.counting import searchsorted
from burn_remote.functions.creation import new_tensor, tensor
from burn_remote.functions.default_device import default_device
from burn_remote.functions.device_class import checked_device
from burn_remote.functions.dtype_information import finfo
from burn_remote.functions.elementwise import exp, expm1, log, log1p, sqrt, tan
from burn_remote.functions.gathering import take
from burn_remote.functions.manipulation import part
from burn_remote.functions.searching import argsort
from burn_remote.functions.selection import clip, maximum
from burn_remote.functions.statistics import cumulative_sum
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import F32, I64, DType
from burn_remote_protocol.errors import ArgumentMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import floats, numeric
from burn_remote_protocol.tensors import MAX_ELEMENTS, TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice

__all__ = [
    "bernoulli", "choice", "default", "exponential", "gumbel", "integers", "laplace", "logistic",
    "lognormal", "normal", "pareto", "permutation", "rayleigh", "standard_cauchy",
    "standard_normal", "uniform", "weibull",
]  # fmt: skip

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__, RANDOM_NAMES)

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
    """Draw from the uniform distribution from ``low`` up to, but excluding, ``high``.

    Raises ``UsageError`` for bounds that are not finite in ``dtype``.
    """
    wanted = as_dtype(dtype)
    drawn = _drawn(shape, _bounds(low, high, wanted), wanted, device)
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
    """Draw from the device's default distribution.

    Floats are uniform from 0 up to, but excluding, 1; integers from the whole range of their dtype.
    """
    return _drawn(shape, ("Default",), as_dtype(dtype), device)


@explained
def integers(
    low: int, high: int, /, shape: Shape, *, dtype: AnyDType = I64, device: AnyDevice | None = None
) -> Tensor:
    """Draw integers uniformly from ``low`` up to, but excluding, ``high``.

    Raises ``DTypeMismatch`` if ``dtype`` cannot hold them. Raises ``UsageError`` for an empty
    range, and for a range that cannot be sent: float64 must represent both bounds or the number of
    integers in the range exactly.
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


@explained
def choice(
    x: int | Tensor,
    /,
    shape: Shape = (),
    *,
    replace: bool = True,
    p: Tensor | Array | Sequence[float] | None = None,
    axis: int = 0,
    device: AnyDevice | None = None,
) -> Tensor:
    """Draw elements of a tensor along an axis, or integers from 0 to ``x - 1``, as int64.

    Shapes: ``[…, n, …]`` to ``[…, shape…, …]``. ``replace=False`` draws each element at most once.
    ``p`` ``[n]`` has their probabilities, or weights in the same proportion; without ``replace``,
    each draw is from the elements that were not drawn yet. A tensor ``x`` determines the device.

    Raises ``UsageError`` for too few elements, and for a sequence ``p`` that has a negative number
    or too few positive ones for the draw. A tensor ``p`` is not checked. Raises ``Unsupported``
    with ``p`` on Burn's own servers.
    """
    if is_tensor(x):
        count, device = x.shape[normal_axis(axis, x.ndim)], x.device
    elif isinstance(x, np.ndarray | list | tuple):
        raise ArgumentMismatch(no_tensor("x", x))
    else:
        count = whole_number("the number of elements", x, 0, MAX_ELEMENTS)
    sizes = normal_shape(shape)
    wanted = math.prod(sizes)
    if wanted and (not count or (not replace and wanted > count)):
        raise UsageError(f"{wanted:,} elements cannot be drawn from {count:,}")
    if p is not None:
        weights = _weights(p, count, 1 if replace else wanted, device)
        places = _weighted_places(weights, sizes, replace)
    elif replace:
        places = integers(0, max(count, 1), sizes, device=device)
    else:
        places = reshaped(part(permutation(count, device=device), 0, 0, wanted), sizes)
    return take(x, places, axis=axis) if is_tensor(x) else places


def _weights(
    p: Tensor | Array | Sequence[float], count: int, needed: int, device: AnyDevice | None
) -> Tensor:
    """Return weights as floats. Raises ``ShapeMismatch`` and ``UsageError``."""
    if not is_tensor(p):
        given = np.asarray(p, np.float64)
        if not (np.isfinite(given) & (given >= 0)).all():
            raise UsageError("the elements of p must be finite and not negative")
        if np.count_nonzero(given) < needed:
            raise UsageError(f"at least {needed:,} elements of p must be positive for this draw")
        p = tensor(given, device=device)
    if p.shape != (count,):
        raise ShapeMismatch(f"p is {p.handle.spec}, but there are {count:,} elements")
    return at_least_float32(as_float(p, F32))


def _weighted_places(weights: Tensor, shape: tuple[int, ...], replace: bool) -> Tensor:
    if replace:
        ends = cumulative_sum(weights)
        drawn = uniform(shape, dtype=weights.dtype, device=weights.device)
        total = part(ends, 0, weights.size - 1, weights.size)
        places = searchsorted(ends, reshaped(multiply(drawn, total), shape), side="right")
        return clip(places, 0, weights.size - 1)
    # The order of exponential times with these rates: Efraimidis and Spirakis, "Weighted random
    # sampling with a reservoir" (2006). An element of weight 0 has an infinite time.
    times = exponential(weights.shape, dtype=weights.dtype, device=weights.device)
    order = argsort(divide(maximum(times, _LEAST), weights))
    return reshaped(part(order, 0, 0, math.prod(shape)), shape)


# -- Distributions that follow from the uniform one -----------------------------------------------

# Replaces a draw of 0, which occurs once in 16 million draws of float32 numbers.
_LEAST: Final = 2.0**-26


def _open_uniform(shape: Shape, dtype: DType, device: AnyDevice | None) -> Tensor:
    """Draw numbers between 0 and 1, both excluded, in at least float32."""
    if not dtype.is_floating:
        raise UsageError(f"dtype must be a floating-point dtype, not {dtype}")
    wide = F32 if dtype in LOW_PRECISION else dtype
    return maximum(uniform(shape, dtype=wide, device=device), _LEAST)


def _positive(name: str, value: float) -> float:
    number = real_number(name, value)
    if not number > 0:
        raise UsageError(f"{name} must be positive, but is {value}")
    return number


def _moved(x: Tensor, mean: float, scale: float, dtype: DType) -> Tensor:
    x = multiply(x, _positive("scale", scale))
    return astype(add(x, real_number("mean", mean)), dtype)


@explained
def exponential(
    shape: Shape, *, scale: float = 1.0, dtype: AnyDType = F32, device: AnyDevice | None = None
) -> Tensor:
    """Draw from the exponential distribution with the mean ``scale``."""
    wanted = as_dtype(dtype)
    # Numbers close to 0 come from the logarithm of those close to 1, without a loss of digits.
    times = negative(log1p(negative(_open_uniform(shape, wanted, device))))
    return astype(multiply(times, _positive("scale", scale)), wanted)


@explained
def standard_normal(
    shape: Shape, *, dtype: AnyDType = F32, device: AnyDevice | None = None
) -> Tensor:
    """Draw from the normal distribution with mean 0 and standard deviation 1."""
    return normal(shape, dtype=dtype, device=device)


@explained
def lognormal(
    shape: Shape,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
) -> Tensor:
    """Draw numbers whose logarithms are normal with this mean and standard deviation."""
    return exp(normal(shape, mean=mean, std=std, dtype=dtype, device=device))


@explained
def laplace(
    shape: Shape,
    *,
    mean: float = 0.0,
    scale: float = 1.0,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
) -> Tensor:
    """Draw from the Laplace distribution: ``scale`` times the difference of two exponentials."""
    wanted = as_dtype(dtype)
    quotient = divide(_open_uniform(shape, wanted, device), _open_uniform(shape, wanted, device))
    return _moved(log(quotient), mean, scale, wanted)


@explained
def logistic(
    shape: Shape,
    *,
    mean: float = 0.0,
    scale: float = 1.0,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
) -> Tensor:
    """Draw from the logistic distribution with this mean and scale."""
    wanted = as_dtype(dtype)
    drawn = _open_uniform(shape, wanted, device)
    return _moved(subtract(log(drawn), log1p(negative(drawn))), mean, scale, wanted)


@explained
def gumbel(
    shape: Shape,
    *,
    mode: float = 0.0,
    scale: float = 1.0,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
) -> Tensor:
    """Draw from the Gumbel distribution, whose mean is about ``mode + 0.577 * scale``."""
    wanted = as_dtype(dtype)
    times = negative(log1p(negative(_open_uniform(shape, wanted, device))))
    return _moved(negative(log(times)), mode, scale, wanted)


@explained
def rayleigh(
    shape: Shape, *, scale: float = 1.0, dtype: AnyDType = F32, device: AnyDevice | None = None
) -> Tensor:
    """Draw the norms of normal vectors of two elements with the standard deviation ``scale``."""
    wanted = as_dtype(dtype)
    times = negative(log1p(negative(_open_uniform(shape, wanted, device))))
    return _moved(sqrt(multiply(times, 2)), 0.0, scale, wanted)


@explained
def weibull(
    shape: Shape, *, a: float, dtype: AnyDType = F32, device: AnyDevice | None = None
) -> Tensor:
    """Draw from the Weibull distribution with the parameter ``a`` and scale 1."""
    wanted = as_dtype(dtype)
    times = negative(log1p(negative(_open_uniform(shape, wanted, device))))
    return astype(pow(times, 1 / _positive("a", a)), wanted)


@explained
def pareto(
    shape: Shape, *, a: float, dtype: AnyDType = F32, device: AnyDevice | None = None
) -> Tensor:
    """Draw from the Pareto II (Lomax) distribution with the parameter ``a``, as NumPy does."""
    wanted = as_dtype(dtype)
    times = negative(log1p(negative(_open_uniform(shape, wanted, device))))
    return astype(expm1(divide(times, _positive("a", a))), wanted)


@explained
def standard_cauchy(
    shape: Shape, *, dtype: AnyDType = F32, device: AnyDevice | None = None
) -> Tensor:
    """Draw from the Cauchy distribution with mode 0 and scale 1."""
    wanted = as_dtype(dtype)
    angle = multiply(subtract(_open_uniform(shape, wanted, device), 0.5), math.pi)
    return astype(tan(angle), wanted)


def _is_float(number: int) -> bool:
    return float(number) == number


def _bounds(low: float, high: float, dtype: DType) -> tuple[str, float, float]:
    least, most = real_number("low", low), real_number("high", high)
    if dtype.is_floating:
        smallest, largest = finfo(dtype).min, finfo(dtype).max
    elif dtype.is_integer:
        smallest, largest = bounds_of(dtype)
        largest += 1  # it is excluded
    else:  # the operation refuses it
        smallest, largest = -math.inf, math.inf
    # NaN is not in any range.
    if not (
        smallest <= least <= largest and smallest <= most <= largest and most - least < math.inf
    ):
        raise UsageError(
            f"low={least:g} and high={most:g} are no bounds for {dtype}, whose numbers are from "
            f"{smallest:g} to {largest:g}; they and their distance must be finite"
        )
    if least > most:
        raise UsageError(f"low={least:g} is greater than high={most:g}")
    return "Uniform", least, most


def _drawn(
    shape: Shape, distribution: tuple[Any, ...], dtype: DType, device: AnyDevice | None
) -> Tensor:
    check_random_numbers()
    operator = INT_RANDOM if dtype.is_integer else RANDOM
    client = (default_device() if device is None else checked_device(device)).runners
    return Tensor(operator.create(client, TensorSpec(normal_shape(shape), dtype), (distribution,)))
