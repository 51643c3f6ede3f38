"""Storage of quantized tensors, and operations on them.

A quantized tensor is stored as bytes: the values, packed several to a byte if the scheme says so,
then the scales. Uploads, reads and moves copy these bytes; kernels compute on dequantized numbers.
Rounding, limits and scales are those of burn-flex 0.21, Burn's CPU backend (``ops/qtensor.rs``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from burn_remote_protocol.dtypes import F32, I8, DType, QuantScheme
from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.operations.families.base import MASK_FILL
from burn_remote_protocol.operations.families.floats import DEQUANTIZE, QUANTIZE
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.quantized_storage import (
    SCALE_BYTES,
    VALUE_BITS,
    VALUE_RANGES,
    block_sizes,
    byte_lengths,
    check_blocks,
    check_computable,
    is_packed,
    scales_shape,
)
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.core.kernel_forms import Array, Run

__all__ = ["bind_quantized", "is_quantized", "moves_integers", "stored"]


FLOAT32: Final = np.dtype("<f4")
SMALLEST_SCALE: Final = np.finfo(np.float32).smallest_normal


def is_quantized(signature: Signature) -> bool:
    """Whether an operation has a quantized input or output, or quantizes or dequantizes."""
    if signature.row in (QUANTIZE, DEQUANTIZE):
        return True
    specs = (*(use.spec for use in signature.input_uses), *signature.outputs)
    return any(spec.dtype.scheme is not None for spec in specs)


def bind_quantized(xp: Any, signature: Signature, bind: Callable[[Signature], Run]) -> Run:
    """Return the kernel of an operation on quantized tensors.

    An operation that only moves values with a single scale (family Base) moves integers and keeps
    the scale. All others dequantize to ``float32`` and compute new scales for quantized results.

    Raises ``Unsupported`` for values that Burn 0.21 cannot compute with.
    """
    inputs, outputs = signature.call.inputs, signature.outputs
    for spec in _listed((*inputs, *outputs)):
        _check(spec)
    if signature.row is QUANTIZE:
        return lambda tensor, scales: _quantized(xp, tensor, scales, outputs[0])
    if signature.row is DEQUANTIZE:
        dtype = array_dtype(outputs[0].dtype)
        return lambda held: _numbers(xp, held, inputs[0]).astype(dtype, copy=False)
    if moves_integers(signature):
        run = bind(_with_dtype(signature, I8))

        def move(held: Array, *others: Any) -> Array:
            values, scales = _unpacked(xp, held, inputs[0])
            return _packed(xp, run(values, *others), scales, outputs[0].dtype.scheme)

        return move
    compute = bind(_with_dtype(signature, F32))

    def run_on_numbers(*tensors: Any) -> Any:
        results = compute(
            *[_seen(xp, one, spec) for one, spec in zip(tensors, inputs, strict=True)]
        )
        if type(results) is not tuple:
            return _kept(xp, results, outputs[0])
        return tuple(_kept(xp, one, spec) for one, spec in zip(results, outputs, strict=True))

    return run_on_numbers


def stored(elements: np.ndarray[Any, Any], spec: TensorSpec) -> np.ndarray[Any, Any]:
    """Convert the uploaded bytes of a quantized tensor to their stored form.

    Burn writes values one per byte or packed, whatever the scheme's store says, and pads to whole
    words. If both forms have the same length (four values), the bytes are packed, as Burn assumes
    when it reads them (``QuantizedBytes::into_vec_i8``). Raises ``ShapeMismatch`` for any other
    length.
    """
    scheme = _scheme(spec)
    if elements.size not in byte_lengths(spec.shape, scheme):
        raise ShapeMismatch(f"{spec} does not have {elements.size:,} bytes")
    if elements.size == spec.nbytes:
        return elements
    end = elements.size - _scales_count(spec) * SCALE_BYTES
    body, scales = elements[:end], elements[end:]
    if not is_packed(scheme):
        return np.concatenate([body[: spec.size], scales])
    packed: np.ndarray[Any, Any] = _packed(
        np, body.view(np.int8), scales.copy().view(FLOAT32), scheme
    )
    return packed


def _with_dtype(signature: Signature, dtype: DType) -> Signature:
    """Return an operation with ``dtype`` in place of its quantized dtypes."""

    def changed(argument: Any) -> Any:
        if type(argument) is tuple:
            return tuple(map(changed, argument))
        if isinstance(argument, TensorUse) and argument.spec.dtype.scheme is not None:
            return argument._replace(spec=argument.spec._replace(dtype=dtype))
        return argument

    return replace(signature, arguments=changed(signature.arguments))


def _listed(specs: Any) -> list[TensorSpec]:
    """Return the specs of all present inputs, with lists flattened."""
    found: list[TensorSpec] = []
    for spec in specs:
        if type(spec) is TensorSpec:
            found.append(spec)
        elif spec is not None:
            found += spec
    return found


def _check(spec: TensorSpec) -> None:
    scheme = spec.dtype.scheme
    if scheme is None:
        return
    check_computable(scheme)
    check_blocks(spec.shape, scheme)


def _scales_count(spec: TensorSpec) -> int:
    return math.prod(scales_shape(spec.shape, _scheme(spec)))


def _scheme(spec: TensorSpec) -> QuantScheme:
    assert spec.dtype.scheme is not None
    return spec.dtype.scheme


# -- between bytes, integers and numbers ------------------------------------------------------


def _unpacked(xp: Any, held: Array, spec: TensorSpec) -> tuple[Array, Array]:
    """Return the values (``int8``, in the tensor's shape) and the scales (``float32``, flat)."""
    scheme, count = _scheme(spec), _scales_count(spec) * SCALE_BYTES
    body = held[: held.size - count]
    scales = held[held.size - count :].copy().view(FLOAT32)
    if not is_packed(scheme):
        return body.view(np.int8).reshape(spec.shape), scales
    bits = VALUE_BITS[scheme.value]
    lanes = 8 // bits
    values = xp.empty((body.size, lanes), np.int8)
    for lane in range(lanes):
        # Shift left, then right as a signed number, which extends the sign.
        values[:, lane] = (body << (8 - bits * (lane + 1))).view(np.int8) >> (8 - bits)
    return values.reshape(-1)[: spec.size].reshape(spec.shape), scales


def _packed(xp: Any, values: Array, scales: Array, scheme: QuantScheme | None) -> Array:
    """Return values (``int8``) and scales in their stored form."""
    assert scheme is not None
    body = xp.ascontiguousarray(values).reshape(-1).view(np.uint8)
    if is_packed(scheme):
        bits = VALUE_BITS[scheme.value]
        lanes = 8 // bits
        padded = xp.zeros((-(-body.size * bits // 32) * 4, lanes), np.uint8)
        padded.reshape(-1)[: body.size] = body
        # Words are little-endian on the wire and on this machine, so bytes need no reordering.
        padded &= (1 << bits) - 1
        body = padded[:, 0]
        for lane in range(1, lanes):
            body = body | padded[:, lane] << lane * bits
    return xp.concatenate([body, xp.ascontiguousarray(scales).reshape(-1).view(np.uint8)])


def _in_blocks(array: Array, blocks: tuple[int, ...]) -> Array:
    """Split each axis into two: the block, and the position within it."""
    split = [
        part
        for size, block in zip(array.shape, blocks, strict=True)
        for part in (size // block if block else 0, block)
    ]
    return array.reshape(split)


def _beside_blocks(scales: Array, spec: TensorSpec) -> Array:
    """Reshape scales to broadcast against ``_in_blocks``."""
    if _scheme(spec).level is None:
        return scales.reshape((1,) * (2 * len(spec.shape)))
    return scales.reshape(
        [n for size in scales_shape(spec.shape, _scheme(spec)) for n in (size, 1)]
    )


def _numbers(xp: Any, held: Array, spec: TensorSpec) -> Array:
    """Dequantize: return values times scales as ``float32``."""
    values, scales = _unpacked(xp, held, spec)
    blocks = _in_blocks(values, block_sizes(spec.shape, _scheme(spec)))
    return (blocks * _beside_blocks(scales, spec)).reshape(spec.shape)


def _quantized(xp: Any, tensor: Array, scales: Array, spec: TensorSpec) -> Array:
    """Quantize: round to the nearest multiples of the scales, halves away from zero."""
    least, most = VALUE_RANGES[_scheme(spec).value]
    scales = scales.astype(FLOAT32, copy=False).reshape(-1)
    normal = xp.isfinite(scales) & (xp.abs(scales) >= SMALLEST_SCALE)
    scales = xp.where(normal, scales, SMALLEST_SCALE).astype(FLOAT32, copy=False)
    blocks = _in_blocks(tensor.astype(FLOAT32, copy=False), block_sizes(spec.shape, _scheme(spec)))
    halves = blocks * (FLOAT32.type(1) / _beside_blocks(scales, spec)) * FLOAT32.type(2)
    halves = xp.where(xp.isnan(halves), FLOAT32.type(0), xp.clip(halves, 2 * least, 2 * most))
    # Truncate to a whole number of halves, then round these away from zero. In integers, this is
    # exact.
    counted = halves.astype(np.int16)
    values = ((counted + (counted > 0)) >> 1).astype(np.int8).reshape(spec.shape)
    return _packed(xp, values, scales, _scheme(spec))


def _scales_of(xp: Any, tensor: Array, spec: TensorSpec) -> Array:
    """Return the scales that map the largest magnitude of each block to the largest value."""
    least, most = VALUE_RANGES[_scheme(spec).value]
    blocks = _in_blocks(xp.abs(tensor), block_sizes(spec.shape, _scheme(spec)))
    inner = tuple(range(1, blocks.ndim, 2))
    by_tensor = _scheme(spec).level is None
    # Ignore NaN; a block of NaN only gets the smallest scale.
    sizes = xp.where(xp.isnan(blocks), 0, blocks)
    largest = sizes.max(axis=None if by_tensor else inner, initial=0)
    # Dividing by half the range is exact. burn-flex doubles the numerator and divides by the whole
    # range, which gives the same bits unless it overflows.
    return xp.asarray(largest, dtype=FLOAT32).reshape(-1) / FLOAT32.type((most - least) / 2)


def _seen(xp: Any, tensor: Any, spec: Any) -> Any:
    """Dequantize a quantized input for a kernel; return any other input unchanged."""
    if type(spec) is tuple:
        return [_seen(xp, one, part) for one, part in zip(tensor, spec, strict=True)]
    return tensor if spec is None or spec.dtype.scheme is None else _numbers(xp, tensor, spec)


def _kept(xp: Any, result: Any, spec: TensorSpec) -> Any:
    """Quantize a kernel's result if it is declared as quantized; else return it unchanged."""
    if result is None or spec.dtype.scheme is None:
        return result
    return _quantized(xp, result, _scales_of(xp, result, spec), spec)


def moves_integers(signature: Signature) -> bool:
    """Whether an operation only moves the values of one tensor with a single scale."""
    (first, *_) = signature.call.inputs or (None,)
    if type(first) is not TensorSpec or signature.output_count != 1:
        return False
    scheme = first.dtype.scheme
    if scheme is None or scheme.level is not None or signature.row is MASK_FILL:
        return False  # the fill value is a floating-point number
    same = signature.outputs[0].dtype is first.dtype
    alone = all(use.spec.dtype.scheme is None for use in signature.input_uses[1:])
    return signature.row.family == "Base" and same and alone
