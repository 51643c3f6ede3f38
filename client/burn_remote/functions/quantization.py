"""How do floating-point tensors become quantized ones, and back?

A quantized tensor holds small integers and, for the whole of it or for each block, a scale: it
stands for their products. It takes a quarter of the memory of float32, or less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.arguments.numbers import whole_number
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
from burn_remote_protocol.quantization import (
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

__all__ = ["quant_scheme", "quantize"]

QUANTIZE: Final = Operator(floats.QUANTIZE)

# What Burn's wire can say: up to five sizes, each a byte.
MAX_BLOCK_AXES: Final = 5
MAX_BLOCK_SIZE: Final = 255


@explained
def quant_scheme(
    value: str = "Q8S", *, block: int | Sequence[int] | None = None, packed: bool | None = None
) -> QuantScheme:
    """Return how to quantize.

    ``value`` is the kind of integers: ``Q8S`` from -127 to 127, ``Q8F`` from -128 to 127, ``Q4S``
    ±7, ``Q4F`` -8 to 7, ``Q2S`` ±1, ``Q2F`` -2 to 1. ``block`` is how many elements of the last
    axis share a scale, or how many along each of the last axes, from 1 to 255; without it the whole
    tensor does. ``packed``: several 4- or 2-bit values to a byte, as they are by default.

    Raises ``UsageError``.
    """
    if not isinstance(value, str) or value not in VALUE_RANGES:
        raise UsageError(f"value={value!r} is none of {', '.join(VALUE_RANGES)}")
    sizes = None if block is None else _block_sizes(block)
    if packed is None:
        packed = VALUE_BITS[value] < 8
    return QuantScheme(value, "F32", ("PackedU32", 0) if packed else "Native", sizes, "Symmetric")


def _block_sizes(block: int | Sequence[int]) -> tuple[int, ...]:
    several = block if isinstance(block, list | tuple) else (block,)
    if not 1 <= len(several) <= MAX_BLOCK_AXES:
        raise UsageError(f"block={block!r} is not one to {MAX_BLOCK_AXES} sizes")
    what = f"a size in block={block!r}"
    return tuple([whole_number(what, size, 1, MAX_BLOCK_SIZE) for size in several])


@explained
def quantize(
    x: Tensor, scheme: QuantScheme | None = None, /, *, scales: Tensor | None = None
) -> Tensor:
    """Return floating-point numbers as multiples of scales.

    ``scheme`` is one of ``quant_scheme(…)``, ``Q8S`` for the whole tensor if there is none.
    ``scales`` has one number for the tensor or for each block; without it the largest number of
    each becomes the largest value, NaN being none. The result has the shape of ``x`` and the dtype
    ``DType.quantized(scheme)``; NaN becomes 0, infinity the largest value.

    Raises ``ShapeMismatch`` for blocks that do not fit into the axes or another number of scales,
    ``DTypeMismatch`` unless ``x`` is floating-point, and ``Unsupported`` for a scheme with which
    Burn 0.21 does not compute.
    """
    scheme = scheme or quant_scheme()
    if not isinstance(scheme, QuantScheme):
        raise UsageError(f"a scheme is one of quant_scheme(…), not {scheme!r}")
    check_computable(scheme)
    if not x.dtype.is_floating:
        raise DTypeMismatch(f"only floating-point numbers are quantized, not {x.handle.spec}")
    if scales is None:
        check_blocks(x.shape, scheme)
        scales = _scales(x, scheme)
    return QUANTIZE.apply((x, scales), (scheme,))


def _scales(x: Tensor, scheme: QuantScheme) -> Tensor:
    """Return the scale of each block: of its largest number, spread over the range of values.

    As burn-flex 0.21 does (``ops/qtensor.rs``, ``quantize_dynamic``).
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
    # Exact, as half of each range is: the scales have the bits of 2 * largest / (most - least).
    return divide(largest, (most - least) / 2)
