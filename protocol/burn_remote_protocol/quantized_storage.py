"""The storage of quantized tensors: lengths in bytes, blocks, scales and value ranges.

Burn writes the values, then the scales as ``float32`` (burn-std 0.21, ``tensor/quantization.rs``).
Values take one byte each, or are packed into whole 32-bit words. Burn sends values of fewer than
eight bits in either form, so a received length may match either; we store and send only one form.
"""

from __future__ import annotations

import math
from typing import Final

from burn_remote_protocol.dtypes import QuantScheme
from burn_remote_protocol.errors import ShapeMismatch, Unsupported

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

Shape = tuple[int, ...]

VALUE_BITS: Final = {
    "Q8F": 8, "Q8S": 8, "E5M2": 8, "E4M3": 8, "Q4F": 4, "Q4S": 4, "E2M1": 4, "Q2F": 2, "Q2S": 2,
}  # fmt: skip

# The smallest and the largest integer of each value type (cubecl-common, ``QuantValue::range``).
# Burn 0.21 also defines floating-point values, but does not compute with them.
VALUE_RANGES: Final = {
    "Q8F": (-128, 127), "Q8S": (-127, 127), "Q4F": (-8, 7), "Q4S": (-7, 7), "Q2F": (-2, 1),
    "Q2S": (-1, 1),
}  # fmt: skip

SCALE_BYTES: Final = 4
WORD_BITS: Final = 32


def block_sizes(shape: Shape, scheme: QuantScheme) -> Shape:
    """Return how many elements along each axis share a scale: all of them, or a block."""
    if scheme.level is None:
        return shape
    block = scheme.level[: len(shape)]
    return (1,) * (len(shape) - len(block)) + block


def check_blocks(shape: Shape, scheme: QuantScheme) -> None:
    """Raise ``ShapeMismatch`` unless whole blocks cover every axis.

    Burn 0.21's backends disagree about the layout of incomplete blocks, so results would differ.
    """
    for axis, (size, block) in enumerate(zip(shape, block_sizes(shape, scheme), strict=True)):
        if block and size % block:
            raise ShapeMismatch(
                f"blocks of {block} do not fit into axis {axis} of shape {list(shape)}; take "
                "blocks that do, or dequantize first"
            )


def check_computable(scheme: QuantScheme) -> None:
    """Raise ``Unsupported`` unless Burn 0.21 defines how the scheme's values are packed."""
    if not scheme.is_in_0_21:
        raise Unsupported(
            f"{scheme} can be uploaded, read and moved, but only symmetric schemes with one level "
            "of scales can be computed with"
        )
    if scheme.value in VALUE_RANGES and scheme.store in ("Native", ("PackedU32", 0)):
        return
    raise Unsupported(
        f"{scheme.value} values stored as {scheme.store} can be uploaded, read and moved, but only "
        f"{', '.join(VALUE_RANGES)} can be computed with, one byte each (Native) or packed along "
        "the innermost axis (PackedU32, 0)"
    )


def is_packed(scheme: QuantScheme) -> bool:
    """Whether values are stored several to a byte."""
    return scheme.store != "Native" and VALUE_BITS[scheme.value] < 8


def stored_bytes(shape: Shape, scheme: QuantScheme) -> int:
    """Return the bytes of values and scales as stored; values are packed if that is shorter."""
    return byte_lengths(shape, scheme)[-1 if is_packed(scheme) else 0]


def scales_shape(shape: Shape, scheme: QuantScheme) -> Shape:
    """Return the shape of the scales: ``(1,)``, or the number of blocks along each dimension.

    Blocks cover the innermost dimensions; an incomplete block at an edge has a scale too. A scheme
    without scales has the shape ``(0,)``.
    """
    if scheme.param is None:
        return (0,)
    if scheme.level is None:
        return (1,)
    blocks = block_sizes(shape, scheme)
    return tuple(-(-size // step) for size, step in zip(shape, blocks, strict=True))


def byte_lengths(shape: Shape, scheme: QuantScheme) -> tuple[int, ...]:
    """Return the possible lengths of values and scales together; the unpacked one is first."""
    size = math.prod(shape)
    scales = SCALE_BYTES * math.prod(scales_shape(shape, scheme))
    if scheme.tensor_param is not None:
        scales += SCALE_BYTES
    words = -(-size * VALUE_BITS[scheme.value] // WORD_BITS)
    packed = words * WORD_BITS // 8
    return (size + scales,) if scheme.store == "Native" else (size + scales, packed + scales)
