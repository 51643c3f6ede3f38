"""Functions that apply to each element: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import burn_remote as br
import burn_remote.functional as F
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import (
    as_floats,
    cast,
    factor_for,
    filled_like,
    in_common,
    number_for,
    result_dtype,
)
from burn_remote.torch.aten.table import aten, implement
from burn_remote_protocol.errors import UsageError

__all__ = ["log_of_sum"]

Tensor = br.Tensor

_FLOAT_FUNCTIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "acos": br.acos,
    "acosh": br.acosh,
    "asin": br.asin,
    "asinh": br.asinh,
    "atan": br.atan,
    "atanh": br.atanh,
    "cos": br.cos,
    "cosh": br.cosh,
    "erf": br.erf,
    "exp": br.exp,
    "exp2": br.exp2,
    "expm1": br.expm1,
    "log": br.log,
    "log10": br.log10,
    "log1p": br.log1p,
    "log2": br.log2,
    "reciprocal": br.reciprocal,
    "rsqrt": br.rsqrt,
    "sigmoid": lambda x: 1 / (1 + br.exp(0 - x)) if x.dtype.is_complex else F.sigmoid(x),
    "sin": br.sin,
    "sinh": br.sinh,
    "sqrt": br.sqrt,
    "tan": br.tan,
    "tanh": br.tanh,
}


def _of_floats(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        if not x.dtype.is_floating:
            (x,) = as_floats(x)
        return function(x)

    return apply


for _name, _function in _FLOAT_FUNCTIONS.items():
    implement(_name, _of_floats(_function))


def _of_rounding(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x) if x.dtype.is_floating else x


for _name, _function in (
    ("ceil", br.ceil),
    ("floor", br.floor),
    ("round", br.round),
    ("trunc", br.trunc),
):
    implement(_name, _of_rounding(_function))


@aten("round.decimals")
def round_decimals(x: Tensor, *, decimals: int) -> Tensor:
    scale = 10.0 ** abs(decimals)
    return br.round(x * scale) / scale if decimals >= 0 else br.round(x / scale) * scale


@aten("neg")
def neg(x: Tensor) -> Tensor:
    return converted_to(0 - x, x.dtype) if x.dtype.is_integer else br.negative(x)


@aten("abs")
def absolute(x: Tensor) -> Tensor:
    return x if x.dtype.is_bool else br.abs(x)


@aten("sgn", "sign")
def sign(x: Tensor) -> Tensor:
    if x.dtype.is_bool:
        return x
    if x.dtype.is_floating:  # 0 for NaN, as in PyTorch
        return br.mask_fill(br.sign(x), br.isnan(x), 0.0)
    return br.sign(x)


implement("logical_not", br.logical_not)
implement("bitwise_not", br.bitwise_invert)
implement("relu", lambda x: F.relu(x) if x.dtype.is_floating else br.clip(x, min=0))
implement("isnan", lambda x: br.isnan(x) if _has_nan(x) else br.zeros_like(x, dtype=br.bool))
implement("isinf", lambda x: br.isinf(x) if _has_nan(x) else br.zeros_like(x, dtype=br.bool))
implement("isfinite", lambda x: br.isfinite(x) if _has_nan(x) else br.ones_like(x, dtype=br.bool))
implement("signbit", lambda x: br.signbit(x) if x.dtype.is_floating else _negative(x))


def _has_nan(x: Tensor) -> bool:
    return x.dtype.is_floating or x.dtype.is_complex


def _negative(x: Tensor) -> Tensor:
    return br.zeros_like(x) if x.dtype.is_bool else br.less(x, 0)


def _number(value: Any, tensor: Any) -> Any:
    """Convert a bool that is combined with a tensor of numbers to an integer."""
    return int(value) if type(value) is bool and not tensor.dtype.is_bool else value


def _both(x: Any, y: Any) -> tuple[Any, Any]:
    """Convert operands to their common dtype. At least one of them is a tensor."""
    if type(x) is Tensor and type(y) is Tensor:
        return (x, y) if x.dtype is y.dtype else in_common(x, y)
    x, y = in_common(x, y)
    return (x, _number(y, x)) if type(x) is Tensor else (_number(x, y), y)


def _scaled(x: Any, y: Any, alpha: Any) -> Any:
    """Return ``y * alpha`` for operands of a common dtype."""
    if alpha == 1:
        return y
    dtype = (x if type(x) is Tensor else y).dtype
    if isinstance(alpha, float) and not (dtype.is_floating or dtype.is_complex):
        raise UsageError(
            f"For integral input tensors, argument alpha must not be a floating point number; it "
            f"is {alpha}, and the tensors are combined in {dtype}"
        )
    return y * alpha if type(y) is not Tensor or not y.dtype.is_bool else y


@aten("add.Tensor", "add.Scalar")
def add(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    x, y = _both(x, y)
    scaled = y if alpha == 1 else _scaled(x, y, alpha)
    if type(x) is Tensor and x.dtype.is_bool:
        return br.logical_or(*_bools(x, y)) if alpha else x
    return br.add(x, scaled)


def _bools(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    if type(x) is not Tensor:
        x = filled_like(y, bool(x), dtype=br.bool)
    if type(y) is not Tensor:
        y = filled_like(x, bool(y), dtype=br.bool)
    return x, y


@aten("sub.Tensor", "sub.Scalar")
def sub(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    x, y = _both(x, y)
    return br.subtract(x, y if alpha == 1 else _scaled(x, y, alpha))


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    return sub(y, x, alpha)


@aten("mul.Tensor", "mul.Scalar")
def mul(x: Any, y: Any) -> Tensor:
    x, y = _both(x, y)
    if type(x) is Tensor and x.dtype.is_bool:
        return br.logical_and(*_bools(x, y))
    return br.multiply(x, y)


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(x: Any, y: Any) -> Tensor:
    return br.divide(*as_floats(x, y))


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return div(x, y)
    x, y = _both(x, y)
    if rounding_mode == "floor":
        return br.floor_divide(x, y)
    dtype = (x if type(x) is Tensor else y).dtype
    return br.trunc(br.divide(x, y)) if dtype.is_floating else br.trunc_divide(x, y)


@aten("floor_divide", "floor_divide.Scalar")
def floor_divide(x: Any, y: Any) -> Tensor:
    return br.floor_divide(*_both(x, y))


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(x: Any, y: Any) -> Tensor:
    return br.remainder(*_both(x, y))


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(x: Any, y: Any) -> Tensor:
    x, y = _both(x, y)
    size = br.abs(y) if type(y) is Tensor else abs(y)
    if not x.dtype.is_floating:
        return x - br.trunc_divide(x, y) * y
    # The remainder of the absolute values is exact, and the result has the sign of x.
    return br.copysign(br.remainder(br.abs(x), size), x)


@aten("maximum")
def maximum(x: Tensor, y: Tensor) -> Tensor:
    x, y = _both(x, y)
    return br.logical_or(x, y) if x.dtype.is_bool else br.maximum(x, y)


@aten("minimum")
def minimum(x: Tensor, y: Tensor) -> Tensor:
    x, y = _both(x, y)
    return br.logical_and(x, y) if x.dtype.is_bool else br.minimum(x, y)


def _ignoring_nan(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that takes the other element where one is NaN."""

    def choose(x: Tensor, y: Tensor) -> Tensor:
        x, y = _both(x, y)
        chosen = function(x, y)
        if not x.dtype.is_floating:
            return chosen
        return br.where(br.isnan(x), y, br.where(br.isnan(y), x, chosen))

    return choose


implement("fmax", _ignoring_nan(maximum))
implement("fmin", _ignoring_nan(minimum))


for _name, _compare in (
    ("eq", br.equal),
    ("ne", br.not_equal),
    ("lt", br.less),
    ("le", br.less_equal),
    ("gt", br.greater),
    ("ge", br.greater_equal),
):

    def _comparison(x: Any, y: Any, compare: Callable[..., Tensor] = _compare) -> Tensor:
        x, y = _both(x, y)
        if type(x) is Tensor and x.dtype.is_bool:
            x, y = _bools(x, y)
            if compare not in (br.equal, br.not_equal):
                x, y = converted_to(x, br.uint8), converted_to(y, br.uint8)
        return compare(x, y)

    implement(f"{_name}.Tensor", _comparison)
    implement(f"{_name}.Scalar", _comparison)

for _name, _logic in (
    ("logical_and", br.logical_and),
    ("logical_or", br.logical_or),
    ("logical_xor", br.logical_xor),
):
    implement(_name, _logic)

for _name, _bits in (
    ("bitwise_and", br.bitwise_and),
    ("bitwise_or", br.bitwise_or),
    ("bitwise_xor", br.bitwise_xor),
    ("bitwise_left_shift", br.bitwise_left_shift),
    ("bitwise_right_shift", br.bitwise_right_shift),
):

    def _bitwise(x: Any, y: Any, function: Callable[..., Tensor] = _bits) -> Tensor:
        x, y = _both(x, y)
        if (x if type(x) is Tensor else y).dtype.is_bool:
            x, y = _bools(x, y)
        return function(x, y)

    for _kind in ("Tensor", "Scalar", "Scalar_Tensor", "Tensor_Scalar"):
        implement(f"{_name}.{_kind}", _bitwise)


@aten("atan2")
def atan2(x: Tensor, y: Tensor) -> Tensor:
    return br.atan2(*as_floats(x, y))


def log_of_sum(x: Tensor, y: Tensor) -> Tensor:
    """Return ``log(exp(x) + exp(y))`` of floats or complex numbers."""
    if not x.dtype.is_complex:
        return br.logaddexp(x, y)
    x, y = br.broadcast_arrays(x, y)
    is_first = br.real(x) >= br.real(y)
    larger, smaller = br.where(is_first, x, y), br.where(is_first, y, x)
    return larger + br.log1p(br.exp(smaller - larger))


for _name, _float_pair in (
    ("hypot", br.hypot),
    ("copysign.Tensor", br.copysign),
    ("logaddexp", log_of_sum),
    ("nextafter", br.nextafter),
):

    def _pair(x: Any, y: Any, function: Callable[..., Tensor] = _float_pair) -> Tensor:
        return function(*as_floats(x, y))

    implement(_name, _pair)


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(x: Any, y: Any) -> Tensor:
    if type(y) is not Tensor:
        if y == 2 and (type(y) is int or x.dtype.is_floating or x.dtype.is_complex):
            return x * x if not x.dtype.is_bool else br.pow(converted_to(x, br.int64), 2)
        if y == 1 and type(y) is int and not x.dtype.is_bool:
            return x
        if y == 0.5 and x.dtype.is_floating:
            return br.sqrt(x)
    x, y = _both(x, y)
    if type(x) is Tensor and type(y) is int and x.dtype.is_floating:
        y = float(y)
    return br.pow(x, y)


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    condition = converted_to(condition, br.bool)
    x, y = in_common(x, y)
    if type(x) is not Tensor and type(y) is not Tensor:
        dtype = result_dtype(x, y)
        return br.where(
            condition, filled_like(condition, x, (), dtype), filled_like(condition, y, (), dtype)
        )
    return br.where(condition, x, y)


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    if type(value) is Tensor:
        return br.where(mask, converted_to(value, x.dtype), x)
    return br.mask_fill(x, mask, number_for(value, x.dtype))


@aten("clamp", "clamp.Tensor")
def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    dtype = result_dtype(x, min, max)
    x = converted_to(x, dtype)
    if not dtype.is_bool:
        min, max = (int(bound) if type(bound) is bool else bound for bound in (min, max))
    if type(min) is Tensor or type(max) is Tensor:
        if min is not None:
            x = maximum(x, _of(min, dtype))
        return x if max is None else minimum(x, _of(max, dtype))
    if min is not None and max is not None and min > max:
        return br.full_like(x, max) if not x.dtype.is_floating else x * 0 + max
    if any(bound is not None and math.isnan(bound) for bound in (min, max)):
        return br.full_like(x, math.nan)
    return br.clip(x, min, max)


def _of(bound: Any, dtype: Any) -> Any:
    return converted_to(bound, dtype) if type(bound) is Tensor else bound


@aten("clamp_min", "clamp_min.Tensor")
def clamp_min(x: Tensor, min: Any) -> Tensor:
    return clamp(x, min, None)


@aten("clamp_max", "clamp_max.Tensor")
def clamp_max(x: Tensor, max: Any) -> Tensor:
    return clamp(x, None, max)


@aten("addcmul")
def addcmul(x: Tensor, y: Tensor, z: Tensor, *, value: Any = 1) -> Tensor:
    x, y, z = in_common(x, y, z)
    product = y * z
    value = factor_for(value, product.dtype)
    return x + (product if value == 1 else product * value)


@aten("addcdiv")
def addcdiv(x: Tensor, y: Tensor, z: Tensor, *, value: Any = 1) -> Tensor:
    if not any(one.dtype.is_floating or one.dtype.is_complex for one in (y, z)):
        raise UsageError(
            "Integer division with addcdiv is no longer supported; use "
            "x + value * torch.trunc(tensor1 / tensor2) or x + value * tensor1 / tensor2"
        )
    x, y, z = as_floats(x, y, z)
    return x + (y if value == 1 else y * value) / z


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    if not (x.dtype.is_floating or x.dtype.is_complex):
        raise UsageError(f"lerp takes tensors of floating-point numbers, not of {x.dtype}")
    if end.dtype is not x.dtype:
        raise UsageError(f"lerp expects an end of the dtype {x.dtype}, not {end.dtype}")
    if type(weight) is Tensor:
        return br.where(
            br.abs(weight) < 0.5, x + weight * (end - x), end - (end - x) * (1 - weight)
        )
    return x + (end - x) * weight if abs(weight) < 0.5 else end - (end - x) * (1 - weight)


@aten("gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


@aten("gelu_backward")
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return br.gradients.gelu_backward(x, grad)
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    square = x * x
    tanh = br.tanh((square * cubic + 1) * x * root)
    slope = (1 - tanh * tanh) * ((square * (3 * cubic) + 1) * root)
    return grad * ((tanh + 1) * 0.5 + x * slope * 0.5)


@aten("silu")
def silu(x: Tensor) -> Tensor:
    return x / (1 + br.exp(0 - x)) if x.dtype.is_complex else F.silu(x)


@aten("threshold_backward")
def threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    if threshold == 0 and x.dtype is grad.dtype and x.shape == grad.shape and x.dtype.is_floating:
        return br.gradients.relu_backward(x, grad)
    return br.mask_fill(grad, x <= threshold, 0)


@aten("sigmoid_backward")
def sigmoid_backward(grad: Tensor, output: Tensor) -> Tensor:
    if output.dtype.is_complex:
        return grad * br.conj(output * (1 - output))
    return br.gradients.sigmoid_backward(output, grad)


@aten("tanh_backward")
def tanh_backward(grad: Tensor, output: Tensor) -> Tensor:
    slope = 1 - output * output
    return grad * (br.conj(slope) if slope.dtype.is_complex else slope)


@aten("leaky_relu")
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return F.leaky_relu(x, negative_slope)


@aten("_to_copy")
def to_copy(x: Tensor, *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    """Convert, and move to a device. Our tensors have no layout, so ``layout`` has no effect."""
    moved = x if device is None else x.to(device)
    return cast(moved, dtype)


@aten("clone", "contiguous", "lift_fresh", "lift_fresh_copy")
def clone(x: Tensor, memory_format: Any = None) -> Tensor:
    return x


@aten("complex")
def complex_from_parts(real: Tensor, imaginary: Tensor) -> Tensor:
    return br.complex(*in_common(real, imaginary))


@aten("conj_physical", "_conj")
def conj(x: Tensor) -> Tensor:
    return br.conj(x) if x.dtype.is_complex else x


@aten("angle")
def angle(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        return br.angle(x)
    (wide,) = as_floats(x)
    result = br.where(wide < 0, filled_like(wide, math.pi), filled_like(wide, 0.0))
    return br.where(br.isnan(wide), wide, result)


@aten("__lshift__.Scalar", "__lshift__.Tensor")
def left_shift(x: Tensor, y: Any) -> Tensor:
    return br.bitwise_left_shift(x, y)


@aten("__rshift__.Scalar", "__rshift__.Tensor")
def right_shift(x: Tensor, y: Any) -> Tensor:
    return br.bitwise_right_shift(x, y)


@aten("frexp.Tensor")
def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mantissas from 0.5 to 1 with the sign of ``x``, and exponents of 2 (int32)."""
    exponents = br.zeros(x.shape, dtype=br.int32, device=x.device)
    is_number = br.logical_and(br.isfinite(x), br.not_equal(x, 0))
    size = br.where(is_number, br.abs(converted_to(x, br.float64)), 0.5)
    # Products with powers of 2 are exact. In the end, sizes are from 0.5 to 2.
    for shift in (1023, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
        power = 2.0**shift
        is_large, is_small = size >= power, size < 1 / power
        size = br.where(is_large, size / power, br.where(is_small, size * power, size))
        exponents = br.where(
            is_large, exponents + shift, br.where(is_small, exponents - shift, exponents)
        )
    is_large = size >= 1
    size = br.where(is_large, size / 2, size)
    exponents = br.where(is_large, exponents + 1, exponents)
    return br.where(is_number, br.copysign(converted_to(size, x.dtype), x), x), exponents


@aten("hardshrink_backward", "softshrink_backward")
def shrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    return br.mask_fill(grad, br.abs(x) <= lambd, 0)
