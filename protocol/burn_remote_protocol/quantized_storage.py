"""How many bytes do the elements of a quantized tensor take, and which values may they have?

Burn writes the values, then the scales as ``float32`` (burn-std 0.21, ``tensor/quantization.rs``).
Values are one byte each, or packed into whole 32-bit words; sub-byte values travel either way, so a
length is checked against both. One of them is how a tensor is stored, and sent by us.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from burn_remote_protocol.dtypes import QuantScheme
from burn_remote_protocol.errors import ShapeMismatch, Unsupported

if TYPE_CHECKING:
    from burn_remote_protocol.tensors import Shape

__all__ = [
    "SCALE_BYTES",
    "VALUE_BITS",
    "VALUE_RANGES",
    "block_sizes",
    "byte_lengths",
    "check_blocks",
    "check_computable",
    "is_packed",
    "scales_shape",
    "stored_bytes",
]  # fmt: skip

VALUE_BITS: Final = {
    "Q8F": 8, "Q8S": 8, "E5M2": 8, "E4M3": 8, "Q4F": 4, "Q4S": 4, "E2M1": 4, "Q2F": 2, "Q2S": 2,
}  # fmt: skip

# The smallest and the largest integer of each value type (cubecl-common, ``QuantValue::range``).
# Burn 0.21 names floating-point values too, and computes with none of them.
VALUE_RANGES: Final = {
    "Q8F": (-128, 127), "Q8S": (-127, 127), "Q4F": (-8, 7), "Q4S": (-7, 7), "Q2F": (-2, 1),
    "Q2S": (-1, 1),
}  # fmt: skip

SCALE_BYTES: Final = 4
WORD_BITS: Final = 32


def block_sizes(shape: Shape, scheme: QuantScheme) -> Shape:
    """Return how many elements along each axis share a scale: all, or those of a block."""
    if scheme.level is None:
        return shape
    block = scheme.level[: len(shape)]
    return (1,) * (len(shape) - len(block)) + block


def check_blocks(shape: Shape, scheme: QuantScheme) -> None:
    """Raise ``ShapeMismatch`` unless whole blocks cover every axis.

    Backends of Burn 0.21 divide what does not fit in ways of their own, so no two would agree.
    """
    for axis, (size, block) in enumerate(zip(shape, block_sizes(shape, scheme), strict=True)):
        if block and size % block:
            raise ShapeMismatch(
                f"blocks of {block} do not fit into axis {axis} of shape {list(shape)}; take "
                "blocks that do, or dequantize first"
            )


def check_computable(scheme: QuantScheme) -> None:
    """Raise ``Unsupported`` unless Burn 0.21 says what the values are and where in their words."""
    if scheme.value in VALUE_RANGES and scheme.store in ("Native", ("PackedU32", 0)):
        return
    raise Unsupported(
        f"{scheme.value} values stored as {scheme.store} can be uploaded, read and moved, but only "
        f"{', '.join(VALUE_RANGES)} can be computed with, a byte each (Native) or packed along the "
        "innermost axis (PackedU32, 0)"
    )


def is_packed(scheme: QuantScheme) -> bool:
    """Whether values are stored several to a byte."""
    return scheme.store != "Native" and VALUE_BITS[scheme.value] < 8


def stored_bytes(shape: Shape, scheme: QuantScheme) -> int:
    """Return the bytes of values and scales as they are stored: packed where there is a gain."""
    return byte_lengths(shape, scheme)[-1 if is_packed(scheme) else 0]


def scales_shape(shape: Shape, scheme: QuantScheme) -> Shape:
    """Return the shape of the scales: ``(1,)``, or the number of blocks along each dimension.

    Blocks cover the innermost dimensions; a block reaching over an edge still has its scale.
    """
    if scheme.level is None:
        return (1,)
    blocks = block_sizes(shape, scheme)
    return tuple(-(-size // step) for size, step in zip(shape, blocks, strict=True))


def byte_lengths(shape: Shape, scheme: QuantScheme) -> tuple[int, ...]:
    """Return the lengths that values and scales of a tensor may have together, plain one first."""
    size = math.prod(shape)
    scales = SCALE_BYTES * math.prod(scales_shape(shape, scheme))
    words = -(-size * VALUE_BITS[scheme.value] // WORD_BITS)
    packed = words * WORD_BITS // 8
    return (size + scales,) if scheme.store == "Native" else (size + scales, packed + scales)
