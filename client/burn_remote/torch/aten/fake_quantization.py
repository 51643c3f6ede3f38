"""Fake quantization: elements rounded to those that integers with a scale can represent."""

from __future__ import annotations

from typing import Any

import numpy as np

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.table import aten

__all__: list[str] = []

Tensor = br.Tensor


def _quantized(
    x: Tensor, scale: Any, inverse: Any, zero_point: Any, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Return the rounded elements, and whether each was in the range."""
    # As PyTorch, which computes 16-bit floats in float32.
    level = (x if x.dtype is br.float64 else converted_to(x, br.float32)) * inverse
    if isinstance(zero_point, Tensor) and zero_point.dtype.is_floating:
        level = br.round(level + zero_point)
    else:
        level = br.round(level) + zero_point
    is_inside = br.logical_and(level >= low, level <= high)
    # Without channels, PyTorch multiplies in float32, also for elements in float64.
    kept = br.clip(level, float(low), float(high))
    kept = kept if isinstance(scale, Tensor) and scale.ndim else converted_to(kept, br.float32)
    return converted_to((kept - zero_point) * scale, x.dtype), is_inside


@aten("fake_quantize_per_tensor_affine_cachemask")
def fake_quantize(
    x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    single = np.float32(scale)
    inverse = float(np.float32(1) / single)
    return _quantized(x, float(single), inverse, float(zero_point), quant_min, quant_max)


@aten("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def fake_quantize_if_enabled(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    fake_quant_enabled: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor]:
    single, level = (br.reshape(one, (-1,))[0] for one in (scale, zero_point))
    found, is_inside = _quantized(x, single, 1 / single, level, quant_min, quant_max)
    is_off = br.equal(br.reshape(fake_quant_enabled, (-1,))[0], 0)
    return br.where(is_off, x, found), br.logical_or(is_inside, is_off)


@aten("fake_quantize_per_channel_affine_cachemask")
def fake_quantize_channels(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    shape = [1] * x.ndim
    shape[axis] = -1
    scale, zero_point = br.reshape(scale, shape), br.reshape(zero_point, shape)
    return _quantized(x, scale, 1 / scale, zero_point, quant_min, quant_max)
