"""How do floating-point tensors become quantized ones, and back?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.casting import astype
from burn_remote.operators import Operator
from burn_remote_protocol.dtypes import F32, DType, QuantScheme
from burn_remote_protocol.operations.families import floats

if TYPE_CHECKING:
    from burn_remote.tensor import Tensor

__all__ = ["dequantize", "quantize"]

QUANTIZE: Final = Operator(floats.QUANTIZE)


def quantize(x: Tensor, scales: Tensor, scheme: QuantScheme, /) -> Tensor:
    """Return floating-point numbers as multiples of scales, stored as the scheme says.

    ``scales`` has one number for the tensor or for each block. The result has the shape of ``x``
    and the dtype ``DType.quantized(scheme)``. Raises ``ShapeMismatch`` and ``DTypeMismatch``.
    """
    return QUANTIZE.apply((x, scales), (scheme,))


def dequantize(x: Tensor, /, dtype: DType = F32) -> Tensor:
    """Return quantized numbers as floating-point ones; the same as ``x.astype(dtype)``."""
    return astype(x, dtype)
