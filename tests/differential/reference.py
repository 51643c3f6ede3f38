"""The reference: what operations mean, in NumPy. Low precision is computed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from differential.drawing import COMPLEX, FLOATS
from support.exact_rounding import exact_cast
from support.kernels import BFLOAT16, Array

__all__ = [
    "converted",
    "convolved",
    "in_double",
    "in_float64",
    "interpolated",
    "mean_squared_error",
    "pooled",
    "quantized",
    "rounded_once",
    "shifted",
    "truncated_quotient",
]  # fmt: skip

LOW = (np.dtype(np.float16), BFLOAT16)

# The dtypes whose numbers float32 represents exactly, so that NumPy rounds them to the 16-bit
# formats only once. Wider numbers need exact arithmetic, which rounds them once too.
_SINGLE = {np.dtype(dtype) for dtype in ("f2", "f4", "i1", "u1", "i2", "u2", "?")} | {BFLOAT16}


def _first_dtype(arguments: tuple[Any, ...]) -> Any:
    return next(a.dtype for a in arguments if isinstance(a, np.ndarray) and a.dtype in FLOATS)


def rounded_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute float16 and bfloat16 in float32 and round the result to the first tensor's dtype."""

    def computed(*arguments: Any) -> Any:
        floats = [a.dtype for a in arguments if isinstance(a, np.ndarray) and a.dtype in LOW]
        if not floats:
            return function(*arguments)
        result = function(*[_as(a, np.float32, LOW) for a in arguments])
        is_float = result.dtype == np.float32
        return np.asarray(result).astype(floats[0]) if is_float else result

    return computed


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute in float64 and round the result to the dtype of the first floating-point tensor."""

    def computed(*arguments: Any) -> Any:
        dtype = _first_dtype(arguments)
        return np.asarray(function(*[_as(a, np.float64, FLOATS) for a in arguments])).astype(dtype)

    return computed


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute in double precision and round to the precision of the first tensor.

    A complex result of float16 and bfloat16 is complex64.
    """

    def computed(*arguments: Any) -> Any:
        first = next(
            a.dtype for a in arguments if isinstance(a, np.ndarray) and a.dtype in FLOATS + COMPLEX
        )
        wide = [_as(_as(a, np.float64, FLOATS), np.complex128, COMPLEX) for a in arguments]
        result = np.asarray(function(*wide))
        is_double = first in (np.dtype("f8"), np.dtype("c16"))
        if result.dtype == np.complex128:
            return result.astype("c16" if is_double else "c8")
        if result.dtype == np.float64:
            narrow = np.dtype("f4") if first in COMPLEX else first
            return result if is_double else result.astype(narrow)
        return result

    return computed


def _as(argument: Any, dtype: Any, dtypes: Any) -> Any:
    is_one = isinstance(argument, np.ndarray) and argument.dtype in dtypes
    return argument.astype(dtype) if is_one else argument


def mean_squared_error(x: Array, number: int) -> Array:
    """Return the mean squared distance to a number.

    Each step is rounded, that of float16 and bfloat16 to float32, so squares can overflow.
    """
    wide = x.astype(np.float32) if x.dtype in LOW else x
    distance = np.asarray(rounded_once(lambda x: x - x.dtype.type(number))(wide))
    squares = np.asarray(rounded_once(np.square)(distance))
    return np.asarray(in_float64(np.mean)(squares)).astype(x.dtype)


def converted(x: Array, target: Any) -> Array:
    """Return elements as Rust's ``as`` converts them."""
    to_integers = x.dtype in FLOATS and target.kind in "iu"
    if to_integers or (target in LOW and x.dtype not in _SINGLE):
        return exact_cast(x, target)
    return (x != 0) if target.kind == "b" else x.astype(target)


def truncated_quotient(x: Array, y: Array) -> Array:
    """Return quotients of integers rounded towards zero, from Python's integers."""
    pairs = np.broadcast(x, y)
    whole = [abs(int(a)) // abs(int(b)) * (1 if (a < 0) == (b < 0) else -1) for a, b in pairs]
    limits = np.iinfo(x.dtype)
    span = int(limits.max) - int(limits.min) + 1
    wrapped = [(value - int(limits.min)) % span + int(limits.min) for value in whole]
    return np.array(wrapped, x.dtype).reshape(pairs.shape)


def shifted(x: Array, by: Array | int, left: bool) -> Array:
    """Return shifted bits; a shift by at least the width gives 0, or -1 for negative numbers.

    A shift by a negative number is one by more than the width.
    """
    limits = np.iinfo(x.dtype)
    by = np.where((np.asarray(by) < 0) | (np.asarray(by) > 64), np.asarray(64, x.dtype), by)
    span = int(limits.max) - int(limits.min) + 1
    pairs = np.broadcast(x, by)
    bits = [int(a) << int(b) if left else int(a) >> int(b) for a, b in pairs]
    wrapped = [(value - int(limits.min)) % span + int(limits.min) for value in bits]
    return np.array(wrapped, x.dtype).reshape(pairs.shape)


def pooled(x: Array, kind: str, size: int, stride: int, padding: int) -> Array:
    """Return the maximum or the mean (padding counted) of the windows of ``[n, c, h, w]``."""
    border = -np.inf if kind == "max" else 0.0
    edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    framed = np.pad(x, edges, constant_values=border)
    windows = np.lib.stride_tricks.sliding_window_view(framed, (size, size), (2, 3))
    chosen = windows[:, :, ::stride, ::stride]
    return np.asarray(chosen.max((-1, -2)) if kind == "max" else chosen.mean((-1, -2)))


def convolved(x: Array, weight: Array, stride: int, padding: int, dilation: int) -> Array:
    """Return the convolution of ``[n, c, h, w]`` by ``[filters, c, kh, kw]``, tap by tap."""
    framed = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    height, width = (
        (framed.shape[2 + axis] - dilation * (weight.shape[2 + axis] - 1) - 1) // stride + 1
        for axis in (0, 1)
    )
    out = np.zeros((x.shape[0], weight.shape[0], height, width))
    for row in range(weight.shape[2]):
        for column in range(weight.shape[3]):
            rows = slice(row * dilation, row * dilation + stride * (height - 1) + 1, stride)
            columns = slice(column * dilation, column * dilation + stride * (width - 1) + 1, stride)
            part = framed[:, :, rows, columns]
            out += np.einsum("nchw,fc->nfhw", part, weight[:, :, row, column])
    return out


def interpolated(x: Array, height: int, width: int) -> Array:
    """Return the nearest elements of ``[n, c, h, w]`` in another size."""
    rows = np.minimum(np.arange(height) * x.shape[2] // height, x.shape[2] - 1)
    columns = np.minimum(np.arange(width) * x.shape[3] // width, x.shape[3] - 1)
    return x[:, :, rows][:, :, :, columns]


def quantized(x: Array, block: int | None) -> Array:
    """Quantize float32 numbers as ``Q8S`` and dequantize them; ties round away from zero."""
    flat = x.reshape(-1, x.size if block is None else block).astype(np.float64)
    largest = np.abs(flat).max(axis=1, keepdims=True)
    scale = np.maximum(largest.astype(np.float32) / np.float32(127), np.finfo(np.float32).tiny)
    steps = flat.astype(np.float32) * (np.float32(1) / scale)
    whole = np.trunc(np.abs(steps * np.float32(2)) + 1) // 2 * np.sign(steps)
    return np.asarray(np.clip(whole, -127, 127).astype(np.float32) * scale).reshape(x.shape)


def erf(x: Array) -> Array:
    """Return the error function, from the C library."""
    return np.array([math.erf(value) for value in x.reshape(-1)]).reshape(x.shape)
