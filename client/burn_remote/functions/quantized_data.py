"""Sending and reading quantized tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from burn_remote.arguments.arrays import as_array
from burn_remote.arguments.axes import sendable_shape
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.default_device import default_device
from burn_remote.functions.device_class import checked_device
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.dtypes import F32, DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.quantized_storage import (
    SCALE_BYTES,
    VALUE_BITS,
    VALUE_RANGES,
    check_blocks,
    check_computable,
    is_packed,
    scales_shape,
)
from burn_remote_protocol.tensors import TensorData

if TYPE_CHECKING:
    from burn_remote.arguments.arrays import Array
    from burn_remote.functions.device_class import AnyDevice

__all__ = ["QuantizedArray", "quantized_tensor", "read_quantized"]


class QuantizedArray(NamedTuple):
    """The elements of a quantized tensor as NumPy arrays; they represent ``values * scales``.

    ``values`` are int8 with the tensor's shape. ``scales`` are float32 with shape ``(1,)``, or with
    one number per block along each axis.
    """

    values: Array
    scales: Array

    def dequantized(self) -> Array:
        """Return ``values * scales`` as float32 with the shape of ``values``."""
        scales = self.scales
        if scales.ndim == self.values.ndim:
            for axis, (size, count) in enumerate(zip(self.values.shape, scales.shape, strict=True)):
                scales = np.repeat(scales, size // count if count else 0, axis)
        product: Array = self.values.astype(np.float32) * scales
        return product.reshape(self.values.shape)


@explained
def quantized_tensor(
    values: Any, scales: Any, scheme: QuantScheme, /, *, device: AnyDevice | None = None
) -> Tensor:
    """Make a quantized tensor of integers and scales that were computed elsewhere.

    ``values`` have the tensor's shape and lie in the scheme's range; ``scales`` hold one number per
    tensor or per block. Raises ``ShapeMismatch``, ``UsageError`` for values out of range, and
    ``Unsupported`` for a scheme that Burn 0.21 cannot compute with.
    """
    if not isinstance(scheme, QuantScheme):
        raise UsageError(f"a scheme is made by quant_scheme(…), not {scheme!r}")
    integers, numbers = as_array(values, None), as_array(scales, F32)
    check_computable(scheme)
    check_blocks(sendable_shape(integers.shape), scheme)
    expected = scales_shape(integers.shape, scheme)
    if numbers.size != math.prod(expected):
        raise ShapeMismatch(f"scales must hold {math.prod(expected)} numbers, not {numbers.size}")
    least, most = VALUE_RANGES[scheme.value]
    if integers.dtype.kind not in "iu" or (
        integers.size and not (integers.min() >= least and integers.max() <= most)
    ):
        seen = f"an array of {integers.dtype}"
        if integers.dtype.kind in "iu":
            seen = f"from {integers.min()} to {integers.max()}"
        raise UsageError(
            f"values of {scheme.value} must be integers from {least} to {most}, not {seen}"
        )
    body = _packed(np.ascontiguousarray(integers, np.int8).reshape(-1), scheme)
    content = body.tobytes() + numbers.astype("<f4").tobytes()
    data = TensorData(content, integers.shape, DType.quantized(scheme))
    chosen = default_device() if device is None else checked_device(device)
    return Tensor(chosen.runners.register_tensor_data(data))


@explained
def read_quantized(x: Tensor, /) -> QuantizedArray:
    """Wait for a quantized tensor's integers and scales.

    Raises ``DTypeMismatch`` if the tensor is not quantized, and ``Unsupported`` for a scheme whose
    byte layout Burn 0.21 does not define.
    """
    scheme = x.dtype.scheme
    if scheme is None:
        raise DTypeMismatch(f"{x.handle.spec} is not quantized; read it with x.numpy()")
    check_computable(scheme)
    data = x.handle.client.read_tensor_async(x.handle).result()
    content = np.frombuffer(data.bytes, np.uint8)
    shape = scales_shape(x.shape, scheme)
    end = content.size - SCALE_BYTES * math.prod(shape)
    values = _unpacked(content[:end], x.size, scheme).reshape(x.shape)
    scales = content[end:].copy().view("<f4").astype(np.float32)
    return QuantizedArray(values, scales.reshape(shape))


def _packed(values: Array, scheme: QuantScheme) -> Array:
    """Encode flat int8 integers to bytes, packed if the scheme is."""
    if not is_packed(scheme):
        return values.view(np.uint8)
    bits = VALUE_BITS[scheme.value]
    lanes = 8 // bits  # 32-bit little-endian words, so lanes are consecutive in each byte
    padded = np.zeros(-(-values.size * bits // 32) * 4 * lanes, np.uint8)
    padded[: values.size] = values.view(np.uint8) & ((1 << bits) - 1)
    shifted = padded.reshape(-1, lanes) << np.arange(0, 8, bits, dtype=np.uint8)
    packed: Array = np.bitwise_or.reduce(shifted, axis=1)
    return packed


def _unpacked(content: Array, count: int, scheme: QuantScheme) -> Array:
    """Decode bytes to ``count`` flat int8 integers, from either layout that Burn writes."""
    words = -(-count * VALUE_BITS[scheme.value] // 32)
    if not is_packed(scheme) or content.size == count != 4 * words:
        return content[:count].view(np.int8).copy()
    bits = VALUE_BITS[scheme.value]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    values = (content[:, None] >> shifts).reshape(-1)[:count]
    signed: Array = (values << (8 - bits)).view(np.int8) >> (8 - bits)
    return signed
