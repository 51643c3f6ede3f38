"""Matrix products by cuBLAS, also while a stream captures: batches in one call, for any strides.

For batches of ``float16``, CuPy computes in ``float32``, slower than with ``float32`` arrays. It
refuses ``bfloat16``, and passes broadcast batches as tables of pointers. cuBLAS has a strided call
for all these cases.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import Any, Final, NamedTuple

import cupy
import numpy as np
from cupy import _core
from cupy.cuda import cublas

from burn_remote_server.backends.array.core.array_dtypes import BFLOAT16
from burn_remote_server.backends.cupy.blas import capturing

__all__ = ["matmul", "plain_matmul", "round_to_tf32"]


class _GemmTypes(NamedTuple):
    """cuBLAS's constants for a dtype and its accumulator, and the accumulator's 1 and 0."""

    elements: int
    sums: int
    one: Any
    zero: Any


def _gemm_types(elements: int, sums: int, dtype: Any) -> _GemmTypes:
    return _GemmTypes(elements, sums, np.ones(1, dtype), np.zeros(1, dtype))


# cuBLAS's compute types for float32: with full precision, and with operands rounded to TF32.
_FLOAT32: Final = np.dtype(np.float32)
_FULL_SUMS: Final = 68
_TF32_SUMS: Final = 77
# CuPy's numbers for the same choice in its own products.
_CUPY_DEFAULT: Final = 1
_CUPY_TF32: Final = 7

_GEMM_TYPES: Final = {
    np.dtype(np.float16): _gemm_types(2, 68, np.float32),
    BFLOAT16: _gemm_types(14, 68, np.float32),
    _FLOAT32: _gemm_types(0, _FULL_SUMS, np.float32),
    np.dtype(np.float64): _gemm_types(1, 70, np.float64),
}
_DEFAULT_ALGORITHM: Final = -1
_TENSOR_ALGORITHM: Final = 99

# Most calls of cuBLAS for a batch that one stride cannot describe. Each launch takes about 10 µs. A
# batch that needs more calls is copied first, and then needs one.
MAX_CALLS: Final = 64


# Products whose arguments are kept, about 1 KB each.
MAX_GEMMS: Final = 4096


class _Matrix(NamedTuple):
    """An array whose matrices are row-major or column-major, as cuBLAS requires."""

    array: Any
    is_transposed: bool
    step: int  # leading dimension: elements between consecutive rows, or columns


def round_to_tf32(is_allowed: bool) -> None:
    """Set whether products of ``float32`` may round their operands to TF32, in this process."""
    _core.set_compute_type(_FLOAT32, _CUPY_TF32 if is_allowed else _CUPY_DEFAULT)
    sums = _TF32_SUMS if is_allowed else _FULL_SUMS
    _GEMM_TYPES[_FLOAT32] = _gemm_types(0, sums, np.float32)
    _gemm_of.cache_clear()


def matmul(lhs: Any, rhs: Any, out: Any = None) -> Any:
    """Return the matrix products over the last two axes; the axes before them broadcast."""
    is_plain = lhs.ndim <= 2 and rhs.ndim <= 2 and out is None
    if (
        is_plain
        or lhs.dtype not in _GEMM_TYPES
        or lhs.dtype != rhs.dtype
        or min(lhs.ndim, rhs.ndim) < 2
    ):
        return plain_matmul(lhs, rhs) if out is None else cupy.matmul(lhs, rhs, out=out)
    batch = np.broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
    shape = (*batch, lhs.shape[-2], rhs.shape[-1])
    target = out
    if out is None or not _is_by_rows(out):
        target = cupy.empty(shape, lhs.dtype)
    if not lhs.shape[-1]:
        target[...] = 0
    elif target.size:
        _multiply(_laid_out(lhs), _laid_out(rhs), target, batch)
    if out is None or out is target:
        return target
    out[...] = target
    return out


def plain_matmul(lhs: Any, rhs: Any) -> Any:
    """Return the matrix product of arrays with at most two axes.

    On an H100, this takes 9 to 17 µs of the host's time, and ``cupy.matmul`` takes 24 to 31 µs.
    """
    gemm = _gemm_of(lhs.dtype, lhs.shape, lhs.strides, rhs.dtype, rhs.shape, rhs.strides)
    if gemm is None:
        return cupy.matmul(lhs, rhs)
    if gemm.copies_lhs:
        lhs = cupy.ascontiguousarray(lhs.T)
    if gemm.copies_rhs:
        rhs = cupy.ascontiguousarray(rhs)
    out = cupy.ndarray(gemm.shape, lhs.dtype)
    blas = capturing()
    multiply = _gemm if blas is None else blas.gemm
    multiply(
        *gemm.sizes, rhs.data.ptr, *gemm.of_rhs, lhs.data.ptr, *gemm.of_lhs, out.data.ptr,
        *gemm.of_out,
    )  # fmt: skip
    return out


class _Gemm(NamedTuple):
    """The arguments of ``cublasGemmEx`` before, between and after the addresses.

    ``copies_lhs`` and ``copies_rhs``: the matrix is in neither C nor Fortran order and must be
    copied first. The left matrix is copied in Fortran order, the right one in C order.
    """

    shape: tuple[int, int]
    copies_lhs: bool
    copies_rhs: bool
    sizes: tuple[int, ...]
    of_rhs: tuple[int, ...]
    of_lhs: tuple[int, ...]
    of_out: tuple[int, ...]


@lru_cache(MAX_GEMMS)
def _gemm_of(
    lhs_dtype: Any,
    lhs_shape: tuple[int, ...],
    lhs_strides: tuple[int, ...],
    rhs_dtype: Any,
    rhs_shape: tuple[int, ...],
    rhs_strides: tuple[int, ...],
) -> _Gemm | None:
    """Return the arguments that CuPy passes (``tensordot_core_v11``), so the algorithm is the same.

    Returns ``None`` for arrays for which CuPy does not call cuBLAS, or raises an error.
    """
    if (
        len(lhs_shape) != 2
        or len(rhs_shape) != 2
        or lhs_shape[1] != rhs_shape[0]
        or lhs_dtype not in _GEMM_TYPES
        or lhs_dtype != rhs_dtype
        or not math.prod((*lhs_shape, *rhs_shape))
        or lhs_shape[0] == rhs_shape[1] == 1
    ):
        return None
    (rows, inner), columns, item = lhs_shape, rhs_shape[1], lhs_dtype.itemsize
    lhs_is_turned = not _is_dense(lhs_shape, lhs_strides, item)
    copies_lhs = lhs_is_turned and not _is_dense(lhs_shape[::-1], lhs_strides[::-1], item)
    lhs_step = max(lhs_strides[0] // item, inner)
    if lhs_is_turned:
        lhs_step = rows if copies_lhs else lhs_strides[1] // item
    rhs_is_turned = _is_dense(rhs_shape[::-1], rhs_strides[::-1], item)
    copies_rhs = not rhs_is_turned and not _is_dense(rhs_shape, rhs_strides, item)
    rhs_step = columns if copies_rhs else rhs_strides[0] // item
    if rhs_is_turned:
        rhs_step = max(rhs_strides[1] // item, inner)
    types = _GEMM_TYPES[lhs_dtype]
    elements = types.elements
    return _Gemm(
        (rows, columns),
        copies_lhs,
        copies_rhs,
        (int(rhs_is_turned), int(lhs_is_turned), columns, rows, inner, types.one.ctypes.data),
        (elements, rhs_step),
        (elements, lhs_step, types.zero.ctypes.data),
        (elements, columns, types.sums, _TENSOR_ALGORITHM),
    )


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> bool:
    """Whether an array is in C order; axes of one element may have any stride."""
    expected = item
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _multiply(lhs: _Matrix, rhs: _Matrix, out: Any, batch: tuple[int, ...]) -> None:
    axes = _batch_axes(batch, lhs.array, rhs.array, out)
    # cuBLAS iterates over the longest axis, Python over the others.
    longest = max(axes, key=lambda axis: axis[0], default=(1, 0, 0, 0))
    others = list(axes)
    if axes:
        others.remove(longest)
    if math.prod(size for size, *_ in others) > MAX_CALLS:
        whole = [
            _laid_out(cupy.ascontiguousarray(cupy.broadcast_to(a, (*batch, *a.shape[-2:]))))
            for a in (lhs.array, rhs.array)
        ]
        _multiply(whole[0], whole[1], out, batch)
        return
    for places in product(*(range(size) for size, *_ in others)):
        offsets = [
            sum(place * axis[1 + number] for place, axis in zip(places, others, strict=True))
            for number in range(3)
        ]
        _call(lhs, rhs, out, longest, offsets)


def _call(
    lhs: _Matrix, rhs: _Matrix, out: Any, axis: tuple[int, int, int, int], offsets: list[int]
) -> None:
    rows, inner = lhs.array.shape[-2:]
    columns = rhs.array.shape[-1]
    types = _GEMM_TYPES[out.dtype]
    width = out.dtype.itemsize
    count, lhs_step, rhs_step, out_step = axis
    # cuBLAS is column-major: it sees all arrays transposed, and the product is transposed too.
    blas = capturing()
    multiply = _strided_batched if blas is None else blas.gemm_strided_batched
    multiply(
        int(rhs.is_transposed), int(lhs.is_transposed), columns, rows, inner, types.one.ctypes.data,
        rhs.array.data.ptr + offsets[1] * width, types.elements, rhs.step, rhs_step,
        lhs.array.data.ptr + offsets[0] * width, types.elements, lhs.step, lhs_step,
        types.zero.ctypes.data,
        out.data.ptr + offsets[2] * width, types.elements, _row_step(out), out_step,
        count, types.sums, _DEFAULT_ALGORITHM,
    )  # fmt: skip


def _gemm(*arguments: int) -> None:
    cublas.gemmEx(cupy.cuda.device.get_cublas_handle(), *arguments)


def _strided_batched(*arguments: int) -> None:
    cublas.gemmStridedBatchedEx(cupy.cuda.device.get_cublas_handle(), *arguments)


def _batch_axes(batch: tuple[int, ...], *arrays: Any) -> list[tuple[int, int, int, int]]:
    """Return the batch axes, merged where possible: each with its size and each array's strides."""
    found: list[list[int]] = []
    for number, size in enumerate(batch):
        if size == 1:
            continue
        steps = [_batch_step(array, number - len(batch)) for array in arrays]
        if found and all(
            before == size * step for before, step in zip(found[-1][1:], steps, strict=True)
        ):
            found[-1] = [found[-1][0] * size, *steps]
        else:
            found.append([size, *steps])
    return [(size, first, second, third) for size, first, second, third in found]


def _batch_step(array: Any, axis: int) -> int:
    """Return the elements between matrices along a batch axis, counted from the last."""
    if array.ndim - 2 + axis < 0 or array.shape[axis - 2] == 1:
        return 0
    return int(array.strides[axis - 2] // array.itemsize)


def _is_by_rows(array: Any) -> bool:
    rows, columns = array.shape[-2:]
    step, item = array.strides[-2:]
    return bool(
        (columns == 1 or item == array.itemsize)
        and (rows == 1 or step >= columns * array.itemsize)
        and min(array.strides, default=0) >= 0
    )


def _row_step(array: Any) -> int:
    rows, columns = array.shape[-2:]
    return max(1, columns if rows == 1 else int(array.strides[-2] // array.itemsize))


def _laid_out(array: Any) -> _Matrix:
    """Return the array, or a contiguous copy, in a layout that cuBLAS can read."""
    if _is_by_rows(array):
        return _Matrix(array, False, _row_step(array))
    turned = array.swapaxes(-1, -2)
    if _is_by_rows(turned):
        return _Matrix(array, True, _row_step(turned))
    whole = cupy.ascontiguousarray(array)
    return _Matrix(whole, False, _row_step(whole))
