"""Resizing, padding and pooling that are separable by axes, as products with small matrices.

Along one axis, such an operation is a matrix ``[out, in]``, and its gradient the transposed matrix.
The matrices depend on sizes only; this process computes and uploads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import burn_remote as br
from burn_remote.nn.resampling import CUBIC
from burn_remote.torch.aten.table import aten, implement

__all__: list[str] = []

Tensor = br.Tensor
Matrix = np.ndarray[Any, Any]


def _applied(x: Tensor, matrices: Sequence[Matrix], *, transposed: bool = False) -> Tensor:
    """Multiply the last axes of ``x`` by a matrix each."""
    first = x.ndim - len(matrices)
    for at, matrix in enumerate(matrices):
        axis = first + at
        columns = matrix if transposed else matrix.T
        sent = br.tensor(np.ascontiguousarray(columns), dtype=x.dtype, device=x.device)
        moved = br.swapaxes(x, axis, x.ndim - 1)
        x = br.swapaxes(br.matmul(moved, sent), axis, x.ndim - 1)
    return x


def _of_taps(count: int, size: int, taps: Sequence[tuple[Matrix, Matrix]]) -> Matrix:
    matrix = np.zeros((count, size))
    for places, weights in taps:
        np.add.at(matrix, (np.arange(count), np.clip(places, 0, size - 1)), weights)
    return matrix


def _step(size: int, count: int, corners: bool, scale: float | None) -> float:
    """Return the distance of neighbouring outputs in elements of the input."""
    if corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / scale if scale else size / count


def _nearest(size: int, count: int, scale: float | None, half: float) -> Matrix:
    step = np.float32(_step(size, count, False, scale))
    places = np.floor((np.arange(count, dtype=np.float32) + np.float32(half)) * step)
    return _of_taps(count, size, [(places.astype(np.int64), np.ones(count))])


def _linear(size: int, count: int, corners: bool, scale: float | None) -> Matrix:
    step = _step(size, count, corners, scale)
    at = np.arange(count) * step if corners else (np.arange(count) + 0.5) * step - 0.5
    at = np.maximum(at, 0)
    low = np.minimum(np.floor(at).astype(np.int64), size - 1)
    part = at - low
    return _of_taps(count, size, [(low, 1 - part), (low + 1, part)])


def _cubic(size: int, count: int, corners: bool, scale: float | None) -> Matrix:
    step = _step(size, count, corners, scale)
    at = np.arange(count) * step if corners else (np.arange(count) + 0.5) * step - 0.5
    low = np.floor(at).astype(np.int64)
    taps = []
    for offset in (-1, 0, 1, 2):
        away = np.abs(at - (low + offset))
        near = ((CUBIC + 2) * away - (CUBIC + 3)) * away * away + 1
        far = ((away - 5) * away + 8) * away * CUBIC - 4 * CUBIC
        taps.append((low + offset, np.where(away <= 1, near, far)))
    return _of_taps(count, size, taps)


def _antialiased(width: int, weight: Callable[[Matrix], Matrix]) -> Callable[..., Matrix]:
    """Return the matrix of resizing with ``antialias=True``, as in Pillow.

    ``weight`` is the weight of an element at a distance, 0 from ``width / 2`` on. Where an image
    becomes smaller, distances are measured in elements of the result.
    """

    def matrix(size: int, count: int, corners: bool, scale: float | None) -> Matrix:
        step = _step(size, count, corners, scale)
        reach = max(step, 1.0)
        centers = step * (np.arange(count) + 0.5)
        weights = weight(np.abs(np.arange(size) + 0.5 - centers[:, None]) / reach)
        # As PyTorch, whose window begins and ends at whole elements.
        first = np.maximum(np.trunc(centers - width / 2 * reach + 0.5), 0)
        last = np.minimum(np.trunc(centers + width / 2 * reach + 0.5), size)
        places = np.arange(size)
        weights *= (places >= first[:, None]) & (places < last[:, None])
        total = weights.sum(axis=1, keepdims=True)
        found: Matrix = weights / np.where(total == 0, 1, total)
        return found

    return matrix


def _triangle(away: Matrix) -> Matrix:
    return np.maximum(1 - away, 0)


def _smooth(away: Matrix) -> Matrix:
    # The parameter -0.5 is Pillow's.
    near = (1.5 * away - 2.5) * away * away + 1
    far = ((-0.5 * away + 2.5) * away - 4) * away + 2
    return np.where(away < 1, near, np.where(away < 2, far, 0.0))


def _resized(matrix: Callable[..., Matrix]) -> Callable[..., Tensor]:
    """Return the function of a mode of resizing."""

    def forward(
        x: Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None
    ) -> Tensor:
        axes = zip(x.shape[2:], output_size, [*scales, None, None][:2], strict=True)
        return _applied(x, [matrix(size, n, align_corners, scale) for size, n, scale in axes])

    return forward


def _resizing(matrix: Callable[..., Matrix], *fixed: Any) -> Callable[..., Tensor]:
    """Return the backward function of a mode of resizing.

    ``fixed`` is the last argument of ``matrix`` in modes that have no ``align_corners``.
    """

    def backward(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *options: Any
    ) -> Tensor:
        spatial = len(output_size)
        given = list(options) if fixed else list(options[1:])
        scales = [*given, *[None] * spatial][:spatial]
        axes = zip(input_size[2:], output_size, scales, strict=True)
        if fixed:
            matrices = [matrix(size, count, scale, *fixed) for size, count, scale in axes]
        else:
            matrices = [matrix(size, count, options[0], scale) for size, count, scale in axes]
        return _applied(grad, matrices, transposed=True)

    return backward


for _spatial in (1, 2, 3):
    implement(f"upsample_nearest{_spatial}d_backward", _resizing(_nearest, 0.0))
    implement(f"_upsample_nearest_exact{_spatial}d_backward", _resizing(_nearest, 0.5))
implement("upsample_linear1d_backward", _resizing(_linear))
implement("upsample_bilinear2d_backward", _resizing(_linear))
implement("upsample_trilinear3d_backward", _resizing(_linear))
implement("upsample_bicubic2d_backward", _resizing(_cubic))
for _name, _matrix in (
    ("bilinear", _antialiased(2, _triangle)),
    ("bicubic", _antialiased(4, _smooth)),
):
    implement(f"_upsample_{_name}2d_aa", _resized(_matrix))
    implement(f"_upsample_{_name}2d_aa_backward", _resizing(_matrix))


@aten("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    matrices = []
    spatial = len(padding) // 2
    for at in range(spatial):
        left, right = padding[2 * (spatial - 1 - at) : 2 * (spatial - at)]
        size = x.shape[x.ndim - spatial + at]
        count = size + left + right
        matrices.append(_of_taps(count, size, [(np.arange(count) - left, np.ones(count))]))
    return _applied(grad, matrices, transposed=True)


def pooling_matrices(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> list[Matrix]:
    """Return the matrix ``[windows, elements]`` of each axis of an average pooling."""
    matrices = []
    for size, width, step, border in zip(sizes, kernel, stride, padding, strict=True):
        length = size + 2 * border - width
        count = (-(-length // step) if ceil_mode else length // step) + 1
        if ceil_mode and (count - 1) * step >= size + border:  # the window lies in the padding
            count -= 1
        matrix = np.zeros((count, size))
        for window in range(count):
            start = window * step - border
            end = min(start + width, size + border)
            inside = slice(max(start, 0), min(end, size))
            counted = end - start if count_include_pad else inside.stop - inside.start
            matrix[window, inside] = 1.0 if divisor else 1 / counted
        matrices.append(matrix)
    if divisor:
        matrices[0] = matrices[0] / divisor
    return matrices


def _sizes(sizes: Sequence[int], spatial: int) -> Sequence[int]:
    return tuple(sizes) * spatial if len(sizes) == 1 else sizes


def _average(x: Tensor, spatial: int, kernel_size: Sequence[int], *options: Any) -> list[Matrix]:
    """Return the matrices of an average pooling with the options of ``aten::avg_pool2d``."""
    stride, padding, *rest = options
    kernel = _sizes(kernel_size, spatial)
    steps = _sizes(stride, spatial) if stride else kernel
    sizes = x.shape[x.ndim - spatial :]
    return pooling_matrices(sizes, kernel, steps, _sizes(padding, spatial), *rest)


def _averaging(spatial: int) -> Callable[..., Tensor]:
    def pool(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        options = (stride, padding, ceil_mode, count_include_pad, divisor_override)
        return _applied(x, _average(x, spatial, kernel_size, *options))

    return pool


implement("avg_pool2d", _averaging(2))
implement("avg_pool3d", _averaging(3))


@aten("avg_pool2d_backward", "avg_pool3d_backward")
def avg_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    *options: Any,  # all those of avg_pool2d
) -> Tensor:
    spatial = len(kernel_size) if len(kernel_size) > 1 else x.ndim - 2
    return _applied(grad, _average(x, spatial, kernel_size, *options), transposed=True)
