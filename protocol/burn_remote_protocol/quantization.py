"""How many bytes do the elements of a quantized tensor take?

Burn writes the values, then the scales as ``float32``. Values are one byte each, or packed into
whole 32-bit words; sub-byte values travel either way, so a length is checked against both.
"""

from __future__ import annotations

import math
from typing import Final

from burn_remote_protocol.dtypes import QuantScheme
from burn_remote_protocol.tensors import Shape

__all__ = ["VALUE_BITS", "byte_lengths", "scales_shape"]

VALUE_BITS: Final = {
    "Q8F": 8, "Q8S": 8, "E5M2": 8, "E4M3": 8, "Q4F": 4, "Q4S": 4, "E2M1": 4, "Q2F": 2, "Q2S": 2,
}  # fmt: skip

SCALE_BYTES: Final = 4
WORD_BITS: Final = 32


def scales_shape(shape: Shape, scheme: QuantScheme) -> Shape:
    """Return the shape of the scales: ``(1,)``, or the number of blocks along each dimension.

    Blocks cover the innermost dimensions; a block reaching over an edge still has its scale.
    """
    if scheme.level is None:
        return (1,)
    block = scheme.level[: len(shape)]
    block = (1,) * (len(shape) - len(block)) + block
    return tuple(-(-size // step) for size, step in zip(shape, block, strict=True))


def byte_lengths(shape: Shape, scheme: QuantScheme) -> tuple[int, ...]:
    """Return the lengths that values and scales of a tensor may have together, plain one first."""
    size = math.prod(shape)
    scales = SCALE_BYTES * math.prod(scales_shape(shape, scheme))
    words = -(-size * VALUE_BITS[scheme.value] // WORD_BITS)
    packed = words * WORD_BITS // 8
    return (size + scales,) if scheme.store == "Native" else (size + scales, packed + scales)
