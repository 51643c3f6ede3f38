"""Quantization of floating-point tensors.

A quantized tensor holds small integers, and one scale per tensor or per block. An element is the
product of its integer and its scale. The tensor takes about a quarter of the memory of float32, or
less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.arguments.numbers import whole_number
from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, filled, reshaped
from burn_remote.functions.arithmetic import divide
from burn_remote.functions.casting import astype
from burn_remote.functions.elementwise import isnan
from burn_remote.functions.selection import mask_fill
from burn_remote.functions.statistics import max_abs
from burn_remote_protocol.dtypes import F32, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, UsageError
from burn_remote_protocol.operations.families import floats
from burn_remote_protocol.quantized_storage import (
    VALUE_BITS,
    VALUE_RANGES,
    block_sizes,
    check_blocks,
    check_computable,
    scales_shape,
)
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from burn_remote.functions.tensor import Tensor

__all__ = ["fake_quantize", "quant_scheme", "quantize"]

QUANTIZE: Final = Operator(floats.QUANTIZE)

# Limits of Burn's wire format: at most five block sizes of one byte each.
MAX_BLOCK_AXES: Final = 5
MAX_BLOCK_SIZE: Final = 255


@explained
def quant_scheme(
    value: str = "Q8S", *, block: int | Sequence[int] | None = None, packed: bool | None = None
) -> QuantScheme:
    """Return a quantization scheme.

    ``value`` is the type of the integers: ``Q8S`` (-127 to 127), ``Q8F`` (-128 to 127), ``Q4S``
    (-7 to 7), ``Q4F`` (-8 to 7), ``Q2S`` (-1 to 1) or ``Q2F`` (-2 to 1). ``block`` is the number of
    elements along the last axis, or along each of the last axes, that share a scale, from 1 to 255;
    without it, the whole tensor shares one. ``packed`` stores several 4-bit or 2-bit values in one
    byte; this is the default for such values.

    Raises ``UsageError`` for invalid arguments.
    """
    if not isinstance(value, str) or value not in VALUE_RANGES:
        raise UsageError(f"value must be one of {', '.join(VALUE_RANGES)}, not {value!r}")
    sizes = None if block is None else _block_sizes(block)
    if packed is None:
        packed = VALUE_BITS[value] < 8
    return QuantScheme(value, "F32", ("PackedU32", 0) if packed else "Native", sizes, "Symmetric")


def _block_sizes(block: int | Sequence[int]) -> tuple[int, ...]:
    several = block if isinstance(block, list | tuple) else (block,)
    if not 1 <= len(several) <= MAX_BLOCK_AXES:
        raise UsageError(f"block must have 1 to {MAX_BLOCK_AXES} sizes, not {block!r}")
    what = f"each size in block={block!r}"
    return tuple([whole_number(what, size, 1, MAX_BLOCK_SIZE) for size in several])


@explained
def quantize(
    x: Tensor, scheme: QuantScheme | None = None, /, *, scales: Tensor | None = None
) -> Tensor:
    """Quantize a floating-point tensor: ``round(x / scales)``.

    ``scheme`` comes from ``quant_scheme(…)``; the default is ``Q8S`` with one scale per tensor.
    ``scales`` holds one number per tensor or per block; by default the largest absolute value of
    each, ignoring NaN, maps to the largest integer. The result has the shape of ``x`` and the dtype
    ``DType.quantized(scheme)``. NaN becomes 0, and infinity becomes the largest integer.

    Raises ``ShapeMismatch`` if the blocks do not divide the axes or the number of scales is wrong,
    ``DTypeMismatch`` unless ``x`` is floating-point, and ``Unsupported`` for a scheme that Burn
    0.21 cannot compute with.
    """
    scheme = scheme or quant_scheme()
    if not isinstance(scheme, QuantScheme):
        raise UsageError(f"a scheme is made by quant_scheme(…), not {scheme!r}")
    check_computable(scheme)
    if not x.dtype.is_floating:
        raise DTypeMismatch(f"only floating-point tensors can be quantized, not {x.handle.spec}")
    if scales is None:
        check_blocks(x.shape, scheme)
        scales = _scales(x, scheme)
    return QUANTIZE.apply((x, scales), (scheme,))


@explained
def fake_quantize(x: Tensor, scheme: QuantScheme | None = None, /) -> Tensor:
    """Round elements to the values of a quantized tensor, with the gradient of the identity.

    The result is ``quantize(x, scheme)``, dequantized to the shape and dtype of ``x``. Its gradient
    passes to ``x`` unchanged (the straight-through estimator: Y. Bengio, N. Léonard and
    A. Courville, 2013), so that training adapts weights to their quantization. Raises what
    ``quantize`` raises.
    """

    def rounded(x: Tensor) -> Tensor:
        return astype(quantize(x, scheme), x.dtype)

    @custom_vjp(lambda x: (rounded(x), None), lambda _, grad: grad)
    def straight_through(x: Tensor) -> Tensor:
        return rounded(x)

    return straight_through(x)


def _scales(x: Tensor, scheme: QuantScheme) -> Tensor:
    """Return the scale of each block: its largest absolute value over half the range of integers.

    Follows burn-flex 0.21 (``ops/qtensor.rs``, ``quantize_dynamic``).
    """
    if not x.size:
        spec = TensorSpec(scales_shape(x.shape, scheme), F32)
        return x.__class__(filled(x.handle.client, spec, 0))
    numbers = astype(x, F32)
    numbers = mask_fill(numbers, isnan(numbers), 0)
    if scheme.level is None:
        largest = max_abs(numbers).reshape(1)
    else:
        blocks = zip(x.shape, block_sizes(x.shape, scheme), strict=True)
        split = tuple(n for size, block in blocks for n in (size // block, block))
        largest = max_abs(reshaped(numbers, split), axis=tuple(range(1, len(split), 2)))
    least, most = VALUE_RANGES[scheme.value]
    # Half of each range is exact in float32, so the scales equal 2 * largest / (most - least) bit
    # for bit.
    return divide(largest, (most - least) / 2)
