"""Initialization of weights, with the names and rules of ``torch.nn.init``.

Each function returns a new tensor of the given shape, tracked if ``requires_grad`` is true. Random
numbers come from the session's generator on the device, as in ``burn_remote.random``. The shape of
weights is ``[out, in, …]``, as in PyTorch. All raise ``ShapeMismatch`` for other shapes, and
``UsageError`` for parameters outside their range, such as a negative ``std``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from burn_remote import random
from burn_remote.arguments.arrays import AnyDType, as_dtype
from burn_remote.arguments.axes import normal_shape
from burn_remote.diagnostics.advice import missing_from
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import reshaped
from burn_remote.functions import creation
from burn_remote.functions.arithmetic import add, divide, multiply, subtract
from burn_remote.functions.casting import astype
from burn_remote.functions.elementwise import log, sign, sqrt
from burn_remote.functions.linear_algebra import matmul, vector_norm
from burn_remote.functions.logic import less
from burn_remote.functions.manipulation import matrix_transpose
from burn_remote.functions.matrix_parts import triu
from burn_remote.functions.selection import clip, where
from burn_remote.functions.statistics import sum
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.dtypes import F32, F64
from burn_remote_protocol.errors import ShapeMismatch, UsageError

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice

__all__ = [
    "calculate_gain",
    "constant",
    "eye",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "ones",
    "orthogonal",
    "trunc_normal",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)

Shape = int | Sequence[int]

# Values documented for torch.nn.init.calculate_gain: the gain of a layer's weights that compensates
# for the change of variance by the activation after it.
GAINS: Final = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 3 / 4,
}
LEAKY_SLOPE: Final = 0.01

# Giles, "Approximating the erfinv function", GPU Computing Gems (2012): polynomials for the central
# region and for the tails, highest power first, accurate to seven digits.
ERFINV_MIDDLE: Final = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
ERFINV_TAILS: Final = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the recommended gain for an activation, as documented by PyTorch.

    ``param`` is the negative slope of ``"leaky_relu"``. Raises ``UsageError`` for an unknown
    activation.
    """
    if nonlinearity == "leaky_relu":
        slope = LEAKY_SLOPE if param is None else param
        return math.sqrt(2 / (1 + slope**2))
    gain = GAINS.get(nonlinearity)
    if gain is None:
        known = ", ".join(sorted({*GAINS, "leaky_relu"}))
        raise UsageError(f"nonlinearity must be one of {known}, not {nonlinearity!r}")
    return gain


@explained
def uniform(
    shape: Shape,
    a: float = 0.0,
    b: float = 1.0,
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Draw from the uniform distribution from ``a`` to ``b``."""
    return _leaf(random.uniform(shape, low=a, high=b, dtype=dtype, device=device), requires_grad)


@explained
def normal(
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Draw from the normal distribution."""
    return _leaf(
        random.normal(shape, mean=mean, std=std, dtype=dtype, device=device), requires_grad
    )


@explained
def trunc_normal(
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Draw from the normal distribution truncated to the range from ``a`` to ``b``.

    The function maps uniform numbers by an approximation of the inverse distribution function,
    which is accurate to seven digits. Raises ``UsageError`` unless ``a < b`` and ``std`` is
    positive, and for a range too far from the mean.
    """
    if not a < b or not std > 0:
        raise UsageError(f"a must be less than b and std positive, not a={a}, b={b}, std={std}")
    low, high = (math.erf((bound - mean) / std / math.sqrt(2)) for bound in (a, b))
    if low == high:
        raise UsageError(f"a={a} and b={b} are too far from mean={mean} for std={std}")
    wanted = as_dtype(dtype)
    share = random.uniform(
        shape, low=low, high=high, dtype=F64 if wanted is F64 else F32, device=device
    )
    drawn = add(multiply(_erfinv(share), std * math.sqrt(2)), mean)
    return _leaf(astype(clip(drawn, a, b), wanted), requires_grad)


@explained
def constant(
    shape: Shape,
    val: float,
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor filled with one number."""
    return _leaf(creation.full(shape, val, dtype=dtype, device=device), requires_grad)


def zeros(
    shape: Shape,
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor filled with zeros."""
    return _leaf(creation.zeros(shape, dtype=dtype, device=device), requires_grad)


def ones(
    shape: Shape,
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor filled with ones."""
    return _leaf(creation.ones(shape, dtype=dtype, device=device), requires_grad)


def eye(
    shape: Shape,
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return an identity matrix ``[out, in]``, which preserves the inputs of a linear layer."""
    rows, columns = _matrix_shape(shape)
    return _leaf(creation.eye(rows, columns, dtype=dtype, device=device), requires_grad)


@explained
def xavier_uniform(
    shape: Shape,
    gain: float = 1.0,
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Draw uniformly from -b to b with ``b = gain * sqrt(6 / (fan_in + fan_out))``.

    Glorot and Bengio (2010), equation 16. Shape: ``[out, in, …]``.
    """
    bound = gain * math.sqrt(6 / math.fsum(_fans(shape)))
    return _leaf(
        random.uniform(shape, low=-bound, high=bound, dtype=dtype, device=device), requires_grad
    )


@explained
def xavier_normal(
    shape: Shape,
    gain: float = 1.0,
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Draw from the normal distribution with ``std = gain * sqrt(2 / (fan_in + fan_out))``.

    Glorot and Bengio (2010), equation 12. Shape: ``[out, in, …]``.
    """
    std = gain * math.sqrt(2 / math.fsum(_fans(shape)))
    return _leaf(random.normal(shape, std=std, dtype=dtype, device=device), requires_grad)


@explained
def kaiming_uniform(
    shape: Shape,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Draw uniformly from -b to b with ``b = gain * sqrt(3 / fan)``.

    He et al. (2015), equation 14. ``nonlinearity`` is the activation after the layer (see
    ``calculate_gain``), and ``a`` the negative slope of a leaky ReLU. ``mode`` is ``"fan_in"`` or
    ``"fan_out"``. Shape: ``[out, in, …]``.
    """
    bound = math.sqrt(3) * _kaiming_std(shape, a, mode, nonlinearity)
    return _leaf(
        random.uniform(shape, low=-bound, high=bound, dtype=dtype, device=device), requires_grad
    )


@explained
def kaiming_normal(
    shape: Shape,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Draw from the normal distribution with ``std = gain / sqrt(fan)``.

    Arguments as for ``kaiming_uniform``.
    """
    std = _kaiming_std(shape, a, mode, nonlinearity)
    return _leaf(random.normal(shape, std=std, dtype=dtype, device=device), requires_grad)


@explained
def orthogonal(
    shape: Shape,
    gain: float = 1.0,
    *,
    dtype: AnyDType = F32,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a matrix whose rows (or columns, if fewer) are orthogonal with norm ``gain``.

    Initialization of Saxe et al. (2013). The distribution is uniform: the matrix is a product of
    random Householder reflections (Stewart, 1980, "The efficient generation of random orthogonal
    matrices"), which takes five operations per row or column. Axes after the second are flattened
    into the columns. Shape: ``[out, in, …]``. Raises ``ShapeMismatch`` for fewer than two axes and
    for a shape without elements.
    """
    sizes = normal_shape(shape)
    rows, columns = sizes[0] if sizes else 0, math.prod(sizes[1:])
    if len(sizes) < 2 or not rows * columns:
        raise ShapeMismatch(f"{list(sizes)} must be a shape [out, in, …] with elements")
    wanted = as_dtype(dtype)
    exact = F64 if wanted is F64 else F32
    few, many = min(rows, columns), max(rows, columns)
    diagonal = creation.eye(few, many, dtype=exact, device=device)
    drawn = triu(random.normal((few, many), dtype=exact, device=device))
    signs = sign(sum(multiply(drawn, diagonal), axis=1, keepdims=True))
    away = multiply(signs, vector_norm(drawn, axis=1, keepdims=True))
    mirrors = add(drawn, multiply(diagonal, away))
    mirrors = divide(mirrors, vector_norm(mirrors, axis=1, keepdims=True))
    twice = multiply(matrix_transpose(mirrors), -2)
    product = diagonal
    for row in reversed(range(few)):
        shares = matmul(product, twice[:, row : row + 1])
        product = add(product, multiply(shares, mirrors[row : row + 1]))
    product = multiply(product, multiply(signs, -gain))
    made = reshaped(product if rows <= columns else matrix_transpose(product), sizes)
    return _leaf(astype(made, wanted), requires_grad)


def _leaf(x: Tensor, requires_grad: bool) -> Tensor:
    return x.requires_grad_() if requires_grad else x


def _kaiming_std(shape: Shape, slope: float, mode: str, nonlinearity: str) -> float:
    modes = dict(zip(("fan_in", "fan_out"), _fans(shape), strict=True))
    if mode not in modes:
        raise UsageError(f"mode must be 'fan_in' or 'fan_out', not {mode!r}")
    return calculate_gain(nonlinearity, slope) / math.sqrt(modes[mode])


def _fans(shape: Shape) -> tuple[int, int]:
    """Return ``fan_in`` and ``fan_out``: inputs per output, and outputs per input."""
    sizes = normal_shape(shape)
    if len(sizes) < 2 or not math.prod(sizes):
        raise ShapeMismatch(
            f"{list(sizes)} must be the shape of a weight, [out, in, …], with elements"
        )
    area = math.prod(sizes[2:])
    return sizes[1] * area, sizes[0] * area


def _matrix_shape(shape: Shape) -> tuple[int, int]:
    sizes = normal_shape(shape)
    if len(sizes) != 2:
        raise ShapeMismatch(f"{list(sizes)} must be the shape of a matrix [out, in]")
    return sizes[0], sizes[1]


def _erfinv(x: Tensor) -> Tensor:
    # The result is infinite at -1 and 1; the caller clips it.
    distance = -log(multiply(subtract(1, x), add(x, 1)))
    middle = _polynomial(subtract(distance, 2.5), ERFINV_MIDDLE)
    tails = _polynomial(subtract(sqrt(clip(distance, min=0)), 3), ERFINV_TAILS)
    return multiply(where(less(distance, 5), middle, tails), x)


def _polynomial(x: Tensor, factors: Sequence[float]) -> Tensor:
    value = add(multiply(x, factors[0]), factors[1])
    for factor in factors[2:]:
        value = add(multiply(value, x), factor)
    return value
