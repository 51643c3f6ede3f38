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

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.array_dtypes import BFLOAT16
from burn_remote_server.backends.cupy.blas import capturing
from burn_remote_server.backends.cupy.new_arrays import new_array

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


# Products whose arguments are kept, about 1 KB each, and batches, up to 32 KB each.
MAX_GEMMS: Final = 4096
MAX_BATCHED_GEMMS: Final = 512


def round_to_tf32(is_allowed: bool) -> None:
    """Set whether products of ``float32`` may round their operands to TF32, in this process."""
    _core.set_compute_type(_FLOAT32, _CUPY_TF32 if is_allowed else _CUPY_DEFAULT)
    sums = _TF32_SUMS if is_allowed else _FULL_SUMS
    _GEMM_TYPES[_FLOAT32] = _gemm_types(0, sums, np.float32)
    _gemm_of.cache_clear()
    _batched_gemms_of.cache_clear()


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
    if out is not None and not _Layout.of(out).is_by_rows:
        out[...] = matmul(lhs, rhs)
        return out
    gemms = _batched_gemms_of(
        lhs.dtype, lhs.shape, lhs.strides, rhs.shape, rhs.strides,
        None if out is None else out.strides,
    )  # fmt: skip
    if gemms is None:
        out[...] = matmul(lhs, rhs)
        return out
    if out is None:
        out = new_array(gemms.shape, lhs.dtype)
    if gemms.is_zero:
        out[...] = 0
        return out
    if gemms.copies_lhs:
        lhs = _copied(lhs, gemms.lhs_shape)
    if gemms.copies_rhs:
        rhs = _copied(rhs, gemms.rhs_shape)
    blas = capturing()
    multiply = _strided_batched if blas is None else blas.gemm_strided_batched
    left, right, target = lhs.data.ptr, rhs.data.ptr, out.data.ptr
    for call in gemms.calls:
        multiply(
            *gemms.sizes, right + call.rhs_offset, *call.of_rhs, left + call.lhs_offset,
            *call.of_lhs, target + call.out_offset, *call.of_out,
        )  # fmt: skip
    return out


def _copied(array: Any, shape: Shape) -> Any:
    """Return a C-ordered copy of an array that is broadcast to a shape."""
    return cupy.ascontiguousarray(cupy.broadcast_to(array, shape))


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
    out = new_array(gemm.shape, lhs.dtype)
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


class _Layout(NamedTuple):
    """The shape and the strides of an array whose elements have ``item`` bytes."""

    shape: Shape
    strides: Shape
    item: int

    @classmethod
    def of(cls, array: Any) -> _Layout:
        return cls(array.shape, array.strides, array.itemsize)

    @classmethod
    def in_c_order(cls, shape: Shape, item: int) -> _Layout:
        strides = [item]
        for size in reversed(shape[1:]):
            strides.append(strides[-1] * max(1, size))
        return cls(shape, tuple(reversed(strides)), item)

    @property
    def is_by_rows(self) -> bool:
        """Whether each row of the matrices is contiguous, and the rows do not overlap."""
        rows, columns = self.shape[-2:]
        step, item = self.strides[-2:]
        return (
            (columns == 1 or item == self.item)
            and (rows == 1 or step >= columns * self.item)
            and min(self.strides) >= 0
        )

    @property
    def turned(self) -> _Layout:
        """The layout with the matrices transposed."""
        shape, strides = self.shape, self.strides
        return _Layout(
            (*shape[:-2], shape[-1], shape[-2]),
            (*strides[:-2], strides[-1], strides[-2]),
            self.item,
        )

    @property
    def row_step(self) -> int:
        """The elements between consecutive rows."""
        rows, columns = self.shape[-2:]
        return max(1, columns if rows == 1 else self.strides[-2] // self.item)

    def batch_step(self, axis: int) -> int:
        """Return the elements between matrices along a batch axis, counted from the last."""
        if len(self.shape) - 2 + axis < 0 or self.shape[axis - 2] == 1:
            return 0
        return self.strides[axis - 2] // self.item


class _Operand(NamedTuple):
    """An array whose matrices are row-major or column-major, as cuBLAS requires.

    ``step`` is the leading dimension: elements between consecutive rows, or columns.
    ``is_copied``: the array must be copied to this layout first.
    """

    layout: _Layout
    is_transposed: bool
    step: int
    is_copied: bool


class _BatchedGemm(NamedTuple):
    """The arguments of ``cublasGemmStridedBatchedEx`` that differ between calls.

    The offsets are in bytes.
    """

    rhs_offset: int
    of_rhs: tuple[int, ...]
    lhs_offset: int
    of_lhs: tuple[int, ...]
    out_offset: int
    of_out: tuple[int, ...]


class _BatchedGemms(NamedTuple):
    """How to multiply two batches: first copy what must be copied, then call cuBLAS.

    ``is_zero``: the matrices have no elements to multiply.
    """

    shape: Shape
    is_zero: bool
    copies_lhs: bool
    lhs_shape: Shape
    copies_rhs: bool
    rhs_shape: Shape
    sizes: tuple[int, ...]
    calls: tuple[_BatchedGemm, ...]


@lru_cache(MAX_BATCHED_GEMMS)
def _batched_gemms_of(
    dtype: Any,
    lhs_shape: Shape,
    lhs_strides: Shape,
    rhs_shape: Shape,
    rhs_strides: Shape,
    out_strides: Shape | None,
) -> _BatchedGemms | None:
    """Return how to multiply; finding it out takes longer than calling cuBLAS.

    ``out_strides`` are those of an array by rows, or ``None`` for an array in C order. Returns
    ``None`` if writing to such an array would take too many calls.
    """
    batch = np.broadcast_shapes(lhs_shape[:-2], rhs_shape[:-2])
    shape = (*batch, lhs_shape[-2], rhs_shape[-1])
    item = dtype.itemsize
    out = _Layout.in_c_order(shape, item)
    if out_strides is not None:
        out = _Layout(shape, out_strides, item)
    lhs = _operand(_Layout(lhs_shape, lhs_strides, item))
    rhs = _operand(_Layout(rhs_shape, rhs_strides, item))
    is_zero = not lhs_shape[-1]
    calls: list[_BatchedGemm] = []
    if math.prod(shape) and not is_zero:
        found = _batched_calls(dtype, lhs, rhs, out, batch)
        if found is None:
            lhs, rhs = (
                _operand(_Layout.in_c_order((*batch, *each[-2:]), item), is_copied=True)
                for each in (lhs_shape, rhs_shape)
            )
            found = _batched_calls(dtype, lhs, rhs, out, batch)
        if found is None:
            return None
        calls = found
    # cuBLAS is column-major: it sees all arrays transposed, and the product is transposed too.
    sizes = (
        int(rhs.is_transposed), int(lhs.is_transposed), shape[-1], shape[-2], lhs_shape[-1],
        _GEMM_TYPES[dtype].one.ctypes.data,
    )  # fmt: skip
    return _BatchedGemms(
        shape, is_zero, lhs.is_copied, lhs.layout.shape, rhs.is_copied, rhs.layout.shape,
        sizes, tuple(calls),
    )  # fmt: skip


def _operand(layout: _Layout, *, is_copied: bool = False) -> _Operand:
    """Return how cuBLAS reads an array, or a copy of it."""
    if layout.is_by_rows:
        return _Operand(layout, False, layout.row_step, is_copied)
    if layout.turned.is_by_rows:
        return _Operand(layout, True, layout.turned.row_step, is_copied)
    whole = _Layout.in_c_order(layout.shape, layout.item)
    return _Operand(whole, False, whole.row_step, True)


def _batched_calls(
    dtype: Any, lhs: _Operand, rhs: _Operand, out: _Layout, batch: Shape
) -> list[_BatchedGemm] | None:
    """Return the calls for a batch, or ``None`` if there would be more than ``MAX_CALLS``."""
    axes = _batch_axes(batch, lhs.layout, rhs.layout, out)
    # cuBLAS iterates over the longest axis, Python over the others.
    longest = max(axes, key=lambda axis: axis[0], default=(1, 0, 0, 0))
    others = list(axes)
    if axes:
        others.remove(longest)
    if math.prod(size for size, *_ in others) > MAX_CALLS:
        return None
    types, item = _GEMM_TYPES[dtype], dtype.itemsize
    count, lhs_step, rhs_step, out_step = longest
    found = []
    for places in product(*(range(size) for size, *_ in others)):
        lhs_at, rhs_at, out_at = (
            item * sum(place * axis[number] for place, axis in zip(places, others, strict=True))
            for number in (1, 2, 3)
        )
        left = (types.elements, lhs.step, lhs_step, types.zero.ctypes.data)
        result = (types.elements, out.row_step, out_step, count, types.sums, _DEFAULT_ALGORITHM)
        right = (types.elements, rhs.step, rhs_step)
        found.append(_BatchedGemm(rhs_at, right, lhs_at, left, out_at, result))
    return found


def _gemm(*arguments: int) -> None:
    cublas.gemmEx(cupy.cuda.device.get_cublas_handle(), *arguments)


def _strided_batched(*arguments: int) -> None:
    cublas.gemmStridedBatchedEx(cupy.cuda.device.get_cublas_handle(), *arguments)


def _batch_axes(batch: Shape, *layouts: _Layout) -> list[tuple[int, int, int, int]]:
    """Return the batch axes, merged where possible: each with its size and each array's strides."""
    found: list[list[int]] = []
    for number, size in enumerate(batch):
        if size == 1:
            continue
        steps = [layout.batch_step(number - len(batch)) for layout in layouts]
        if found and all(
            before == size * step for before, step in zip(found[-1][1:], steps, strict=True)
        ):
            found[-1] = [found[-1][0] * size, *steps]
        else:
            found.append([size, *steps])
    return [(size, first, second, third) for size, first, second, third in found]
