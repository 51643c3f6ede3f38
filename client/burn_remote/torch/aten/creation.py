"""Tensors made of shapes and numbers, and random numbers.

``device`` is a ``burn_remote`` device; functions that take a tensor default to the tensor's device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import cast, default_float
from burn_remote.torch.aten.shapes import view_as_complex, view_as_real
from burn_remote.torch.aten.table import aten
from burn_remote.torch.dtypes import dtype_from_torch
from burn_remote_protocol.dtypes import DType

__all__: list[str] = []

Tensor = br.Tensor


def _dtype(dtype: Any, default: DType | None = None) -> DType:
    return (default or default_float()) if dtype is None else dtype_from_torch(dtype)


def _natural(*numbers: Any) -> DType:
    """Return the dtype that PyTorch gives to a tensor of these Python numbers."""
    kinds = {type(one) for one in numbers}
    if complex in kinds:
        return br.complex64
    if float in kinds:
        return default_float()
    return br.bool if kinds == {bool} else br.int64


@aten("_efficientzerotensor", "empty.memory_format", "zeros")
def zeros(size: Sequence[int], *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return br.zeros(tuple(size), dtype=_dtype(dtype), device=device)


@aten("ones")
def ones(size: Sequence[int], *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return br.ones(tuple(size), dtype=_dtype(dtype), device=device)


@aten("full")
def full(
    size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    ours = _dtype(dtype, _natural(fill_value))
    return br.full(tuple(size), _as(ours, fill_value), dtype=ours, device=device)


def _as(dtype: DType, number: Any) -> Any:
    """Convert a number as PyTorch does when it fills a tensor."""
    if dtype.is_bool:
        return bool(number)
    if dtype.is_integer:
        return int(number)
    if dtype.is_complex:
        return complex(number)
    return number if type(number) is complex else float(number)


@aten("zeros_like", "empty_like")
def zeros_like(x: Tensor, *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return br.zeros(x.shape, dtype=_dtype(dtype, x.dtype), device=device or x.device)


@aten("ones_like")
def ones_like(x: Tensor, *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return br.ones(x.shape, dtype=_dtype(dtype, x.dtype), device=device or x.device)


@aten("full_like")
def full_like(
    x: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    ours = _dtype(dtype, x.dtype)
    return br.full(x.shape, _as(ours, fill_value), dtype=ours, device=device or x.device)


@aten("new_zeros", "new_empty")
def new_zeros(
    x: Tensor, size: Sequence[int], *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    return br.zeros(tuple(size), dtype=_dtype(dtype, x.dtype), device=device or x.device)


@aten("new_ones")
def new_ones(
    x: Tensor, size: Sequence[int], *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    return br.ones(tuple(size), dtype=_dtype(dtype, x.dtype), device=device or x.device)


@aten("new_full")
def new_full(
    x: Tensor,
    size: Sequence[int],
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    **layout: Any,
) -> Tensor:
    ours = _dtype(dtype, x.dtype)
    return br.full(tuple(size), _as(ours, fill_value), dtype=ours, device=device or x.device)


@aten("fill.Scalar", "fill.Tensor")
def fill(x: Tensor, value: Any) -> Tensor:
    if type(value) is Tensor:
        return br.broadcast_to(converted_to(value, x.dtype), x.shape)
    return br.full(x.shape, _as(x.dtype, value), dtype=x.dtype, device=x.device)


@aten("zero")
def zero(x: Tensor) -> Tensor:
    return br.zeros_like(x)


@aten("copy")
def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    source = source if source.device == x.device else source.to(x.device)
    if source.dtype.is_complex and not x.dtype.is_complex:
        source = br.real(source)
    return br.broadcast_to(converted_to(source, x.dtype), x.shape)


@aten("arange")
def arange(end: Any, *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return arange_step(0, end, 1, dtype=dtype, device=device)


@aten("arange.start")
def arange_start(
    start: Any, end: Any, *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    return arange_step(start, end, 1, dtype=dtype, device=device)


@aten("arange.start_step")
def arange_step(
    start: Any,
    end: Any,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    **layout: Any,
) -> Tensor:
    ours = _dtype(dtype, _natural(start, end, step))
    if all(type(one) is int for one in (start, end, step)) and ours.is_integer:
        return br.arange(start, end, step, dtype=ours, device=device)
    count = max(math.ceil((end - start) / step), 0)
    counted = br.arange(count, dtype=br.float64, device=device)
    return converted_to(counted * float(step) + float(start), ours)


@aten("linspace")
def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    ours = _dtype(dtype)
    made = br.linspace(float(start), float(end), steps, dtype=br.float64, device=device)
    return converted_to(made, ours)


@aten("eye")
def eye(n: int, *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return br.eye(n, dtype=_dtype(dtype), device=device)


@aten("eye.m")
def eye_m(n: int, m: int, *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return br.eye(n, m, dtype=_dtype(dtype), device=device)


@aten("scalar_tensor")
def scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    ours = _dtype(dtype)
    return br.full((), _as(ours, value), dtype=ours, device=device)


@aten("rand")
def rand(size: Sequence[int], *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return br.random.uniform(tuple(size), dtype=_dtype(dtype), device=device)


@aten("randn")
def randn(size: Sequence[int], *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return br.random.normal(tuple(size), dtype=_dtype(dtype), device=device)


@aten("randint")
def randint(
    high: int, size: Sequence[int], *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    return randint_low(0, high, size, dtype=dtype, device=device)


@aten("randint.low")
def randint_low(
    low: int,
    high: int,
    size: Sequence[int],
    *,
    dtype: Any = None,
    device: Any = None,
    **layout: Any,
) -> Tensor:
    drawn = br.random.integers(low, high, tuple(size), device=device)
    return cast(drawn, dtype)


@aten("randperm")
def randperm(n: int, *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return cast(br.random.permutation(n, device=device), dtype)


@aten("rand_like")
def rand_like(x: Tensor, *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return br.random.uniform(x.shape, dtype=_dtype(dtype, x.dtype), device=device or x.device)


@aten("randn_like")
def randn_like(x: Tensor, *, dtype: Any = None, device: Any = None, **layout: Any) -> Tensor:
    return br.random.normal(x.shape, dtype=_dtype(dtype, x.dtype), device=device or x.device)


def _check_floating(name: str, x: Tensor) -> None:
    if not x.dtype.is_floating and not x.dtype.is_complex:
        raise NotImplementedError(f"{name} draws floats and complex numbers, not {x.dtype}")


@aten("uniform")
def uniform(x: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Any = None) -> Tensor:
    _check_floating("uniform_", x)
    if x.dtype.is_complex:
        return view_as_complex(uniform(view_as_real(x), from_, to))
    return br.random.uniform(x.shape, low=from_, high=to, dtype=x.dtype, device=x.device)


@aten("normal_functional")
def normal(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    _check_floating("normal_", x)
    if x.dtype.is_complex:
        # The variance is the sum of those of both parts.
        return view_as_complex(normal(view_as_real(x), 0.0, std / math.sqrt(2))) + mean
    return br.random.normal(x.shape, mean=mean, std=std, dtype=x.dtype, device=x.device)


@aten("bernoulli", "bernoulli.p", "bernoulli.Tensor")
def bernoulli(x: Tensor, p: Any = None, *, generator: Any = None) -> Tensor:
    chance: Any = x if p is None else p
    if type(chance) is not Tensor:
        return br.random.bernoulli(x.shape, chance, dtype=x.dtype, device=x.device)
    wide = chance if chance.dtype.is_floating else converted_to(chance, br.float32)
    drawn = br.random.uniform(x.shape, dtype=wide.dtype, device=x.device)
    return converted_to(br.less(drawn, wide), x.dtype)


@aten("exponential")
def exponential(x: Tensor, lambd: float = 1.0, *, generator: Any = None) -> Tensor:
    drawn = br.random.uniform(x.shape, dtype=x.dtype, device=x.device)
    return br.log1p(-drawn) * (-1.0 / lambd)


@aten("random.from")
def random_from(x: Tensor, from_: int, to: int | None, *, generator: Any = None) -> Tensor:
    if x.dtype.is_complex:
        raise NotImplementedError(f"random_ draws integers and floats, not {x.dtype}")
    high = 2**53 if to is None else to
    return converted_to(br.random.integers(from_, high, x.shape, device=x.device), x.dtype)


@aten("random.to")
def random_to(x: Tensor, to: int, *, generator: Any = None) -> Tensor:
    return random_from(x, 0, to)


@aten("random")
def random(x: Tensor, *, generator: Any = None) -> Tensor:
    """Draw integers from 0 to the largest that the dtype represents with all smaller ones.

    Those of 64 bits are below 2^53.
    """
    return random_from(x, 0, _COUNTS.get(x.dtype, 2**53))


# The numbers that ``random_`` draws from, where there are fewer than 2^53.
_COUNTS = {
    br.bool: 2,
    br.uint8: 2**8,
    br.int8: 2**7,
    br.int16: 2**15,
    br.int32: 2**31,
    br.float32: 2**24 + 1,
    br.float16: 2**11 + 1,
    br.bfloat16: 2**8 + 1,
}


@aten("native_dropout")
def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x, br.ones_like(x, dtype=br.bool)
    drawn = br.random.uniform(x.shape, dtype=br.float32, device=x.device)
    mask = drawn >= p
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * converted_to(mask, x.dtype) * scale, mask


@aten("native_dropout_backward")
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * converted_to(mask, grad.dtype) * scale


@aten("multinomial")
def multinomial(
    x: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Tensor:
    """Draw indices: with replacement by inverting the cumulative sums, else by exponential races.

    In a race, the indices with the largest ``x / exponential noise`` win.
    """
    if not replacement or num_samples == 1:
        drawn = br.random.uniform(x.shape, dtype=x.dtype, device=x.device)
        keys = x / -br.log1p(-drawn)
        keys = br.mask_fill(keys, x <= 0, -1.0)
        return br.topk(keys, num_samples, x.ndim - 1)[1]
    total = br.cumulative_sum(x, axis=x.ndim - 1)
    drawn = br.random.uniform((*x.shape[:-1], num_samples), dtype=x.dtype, device=x.device)
    drawn = drawn * total[..., -1:]
    below = br.expand_dims(total, x.ndim) <= br.expand_dims(drawn, x.ndim - 1)
    found = br.sum(converted_to(below, br.int64), axis=x.ndim - 1)
    return br.clip(found, max=x.shape[-1] - 1)


@aten("tril_indices")
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    mask = np.tri(row, col, offset, dtype=bool)
    return br.tensor(np.stack(np.nonzero(mask)), dtype=_dtype(dtype, br.int64), device=device)


@aten("triu_indices")
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    mask = ~np.tri(row, col, offset - 1, dtype=bool)
    return br.tensor(np.stack(np.nonzero(mask)), dtype=_dtype(dtype, br.int64), device=device)
