"""How do quantized tensors cross between this program and a device?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from burn_remote.arguments.arrays import as_array
from burn_remote.arguments.axes import sendable_shape
from burn_remote.chosen_device import checked_device, default_device
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.dtypes import F32, DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.quantization import (
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
    from burn_remote.device import Device

__all__ = ["QuantizedArray", "quantized_tensor", "read_quantized"]


class QuantizedArray(NamedTuple):
    """A quantized tensor on this side: it stands for ``values * scales``.

    ``values`` are int8 of the tensor's shape; ``scales`` float32, of shape ``(1,)`` or one for each
    block along each axis.
    """

    values: Array
    scales: Array

    def dequantized(self) -> Array:
        """Return the numbers, float32, of the shape of ``values``."""
        scales = self.scales
        if scales.ndim == self.values.ndim:
            for axis, (size, count) in enumerate(zip(self.values.shape, scales.shape, strict=True)):
                scales = np.repeat(scales, size // count if count else 0, axis)
        product: Array = self.values.astype(np.float32) * scales
        return product.reshape(self.values.shape)


@explained
def quantized_tensor(
    values: Any, scales: Any, scheme: QuantScheme, /, *, device: Device | None = None
) -> Tensor:
    """Send integers and their scales: a tensor that was quantized elsewhere.

    ``values`` have the tensor's shape and are in the scheme's range; ``scales`` are one number, or
    one for each block. Raises ``ShapeMismatch``, ``UsageError`` for values out of range, and
    ``Unsupported`` for a scheme with which Burn 0.21 does not compute.
    """
    if not isinstance(scheme, QuantScheme):
        raise UsageError(f"a scheme is one of quant_scheme(…), not {scheme!r}")
    integers, numbers = as_array(values, None), as_array(scales, F32)
    check_computable(scheme)
    check_blocks(sendable_shape(integers.shape), scheme)
    expected = scales_shape(integers.shape, scheme)
    if numbers.size != math.prod(expected):
        raise ShapeMismatch(f"scales has {numbers.size} numbers, not {math.prod(expected)}")
    least, most = VALUE_RANGES[scheme.value]
    if integers.dtype.kind not in "iu" or (
        integers.size and not (integers.min() >= least and integers.max() <= most)
    ):
        raise UsageError(f"values of {scheme.value} are integers from {least} to {most}")
    body = _packed(np.ascontiguousarray(integers, np.int8).reshape(-1), scheme)
    content = body.tobytes() + numbers.astype("<f4").tobytes()
    data = TensorData(content, integers.shape, DType.quantized(scheme))
    chosen = default_device() if device is None else checked_device(device)
    return Tensor(chosen.client.register_tensor_data(data))


@explained
def read_quantized(x: Tensor, /) -> QuantizedArray:
    """Wait for a quantized tensor's integers and scales.

    Raises ``DTypeMismatch`` for another tensor, and ``Unsupported`` for a scheme of which Burn 0.21
    does not say what the bytes mean.
    """
    scheme = x.dtype.scheme
    if scheme is None:
        raise DTypeMismatch(f"{x.handle.spec} is not quantized; x.numpy() reads it")
    check_computable(scheme)
    data = x.handle.client.read_tensor_async(x.handle).result()
    content = np.frombuffer(data.bytes, np.uint8)
    shape = scales_shape(x.shape, scheme)
    end = content.size - SCALE_BYTES * math.prod(shape)
    values = _unpacked(content[:end], x.size, scheme).reshape(x.shape)
    scales = content[end:].copy().view("<f4").astype(np.float32)
    return QuantizedArray(values, scales.reshape(shape))


def _packed(values: Array, scheme: QuantScheme) -> Array:
    """Return integers (int8, flat) as the bytes that hold them."""
    if not is_packed(scheme):
        return values.view(np.uint8)
    bits = VALUE_BITS[scheme.value]
    lanes = 8 // bits  # words are little-endian: the lanes of a byte follow one another
    padded = np.zeros(-(-values.size * bits // 32) * 4 * lanes, np.uint8)
    padded[: values.size] = values.view(np.uint8) & ((1 << bits) - 1)
    shifted = padded.reshape(-1, lanes) << np.arange(0, 8, bits, dtype=np.uint8)
    packed: Array = np.bitwise_or.reduce(shifted, axis=1)
    return packed


def _unpacked(content: Array, count: int, scheme: QuantScheme) -> Array:
    """Return the integers (int8, flat) that bytes hold, in either form that Burn writes."""
    words = -(-count * VALUE_BITS[scheme.value] // 32)
    if not is_packed(scheme) or content.size == count != 4 * words:
        return content[:count].view(np.int8).copy()
    bits = VALUE_BITS[scheme.value]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    values = (content[:, None] >> shifts).reshape(-1)[:count]
    signed: Array = (values << (8 - bits)).view(np.int8) >> (8 - bits)
    return signed
