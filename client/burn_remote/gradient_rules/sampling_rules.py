"""Gradients of grid sampling, interpolation and Fourier transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from burn_remote.autodiff.rule_table import joint
from burn_remote.dispatch.operators import Operator, reshaped, upload
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.casting import NOT, astype
from burn_remote.functions.elementwise import abs, floor, sign
from burn_remote.functions.gathering import gather, scatter
from burn_remote.functions.logic import greater, less, logical_and, logical_or
from burn_remote.functions.manipulation import broadcast_to, stack
from burn_remote.functions.selection import clip, mask_fill
from burn_remote.functions.statistics import sum
from burn_remote.gradient_rules.spreading import full, resized, zeros
from burn_remote_protocol.dtypes import F64, I64
from burn_remote_protocol.operations.families import floats, sampling
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.autodiff.rule_table import PastCall
    from burn_remote.functions.tensor import Tensor
    from burn_remote_protocol.dtypes import DType

INTERPOLATE: Final = Operator(sampling.INTERPOLATE)
INTERPOLATE_BACKWARD: Final = Operator(sampling.INTERPOLATE_BACKWARD)
RFFT: Final = Operator(sampling.RFFT)
IRFFT: Final = Operator(sampling.IRFFT)

# -- Grid sampling --------------------------------------------------------------------------------


class _Points(NamedTuple):
    """Positions in pixels along one axis, ``[batch, rows, columns]``, and their derivatives.

    ``slope`` is the derivative of the position with respect to the grid's coordinate.
    """

    position: Tensor
    slope: Tensor


class _Corner(NamedTuple):
    """Pixels next to the points: their places in a flattened image, and their contributions.

    ``weight`` is the pixel's share in the result. ``to_x`` and ``to_y`` are the derivatives of the
    share with respect to the position. All are ``[batch, rows, columns]``.
    """

    places: Tensor
    weight: Tensor
    to_x: Tensor | None
    to_y: Tensor | None


@joint(floats.GRID_SAMPLE2D, uses=("tensor", "grid"))
def _of_grid_sample(call: PastCall) -> dict[str, Tensor]:
    (grad,), x, grid = call.grads, call["tensor"], call["grid"]
    found: dict[str, Tensor] = {}
    if 0 in grad.shape:
        return {"tensor": zeros(grad, x.handle.spec), "grid": zeros(grad, grid.handle.spec)}
    # The operation computes in float64, too.
    wide, images = astype(grad, F64), _flat(astype(x, F64))
    columns = _placed(call, astype(grid[..., 0], F64), x.shape[3])
    rows = _placed(call, astype(grid[..., 1], F64), x.shape[2])
    corners = _corners(call, columns.position, rows.position, x.shape)
    if call.needs("tensor"):
        pixels = zeros(wide, TensorSpec(images.shape, F64))
        for corner in corners:
            shares = multiply(wide, _by_channel(corner.weight))
            pixels = scatter(pixels, 2, _indices(corner, x.shape), _flat(shares), update="add")
        found["tensor"] = astype(reshaped(pixels, x.shape), x.dtype)
    if call.needs("grid"):
        found["grid"] = _to_grid(wide, images, corners, columns, rows, grid.dtype)
    return found


def _to_grid(
    grad: Tensor,
    images: Tensor,
    corners: list[_Corner],
    columns: _Points,
    rows: _Points,
    dtype: DType,
) -> Tensor:
    to_x = to_y = zeros(grad, columns.position.handle.spec)
    for corner in corners:
        if corner.to_x is None or corner.to_y is None:
            continue
        shape = (*images.shape[:2], *corner.places.shape[1:])
        pixels = reshaped(gather(images, 2, _indices(corner, shape)), shape)
        gain = sum(multiply(pixels, grad), axis=1)
        to_x = add(to_x, multiply(gain, corner.to_x))
        to_y = add(to_y, multiply(gain, corner.to_y))
    both = [multiply(to_x, columns.slope), multiply(to_y, rows.slope)]
    return astype(stack(both, axis=3), dtype)


def _flat(images: Tensor) -> Tensor:
    return reshaped(images, (*images.shape[:2], images.shape[2] * images.shape[3]))


def _by_channel(x: Tensor) -> Tensor:
    return reshaped(x, (x.shape[0], 1, *x.shape[1:]))


def _indices(corner: _Corner, shape: tuple[int, ...]) -> Tensor:
    count = corner.places.shape[1] * corner.places.shape[2]
    single = reshaped(corner.places, (shape[0], 1, count))
    return broadcast_to(single, (shape[0], shape[1], count))


def _placed(call: PastCall, coordinate: Tensor, size: int) -> _Points:
    """Convert coordinates to positions in pixels, as the operation does."""
    is_aligned, padding = call.parameters["align_corners"], call.parameters["padding_mode"]
    scale = (size - 1) / 2 if is_aligned else size / 2
    position = subtract(multiply(add(coordinate, 1), scale), 0.0 if is_aligned else 0.5)
    slope = full(coordinate, coordinate.handle.spec, scale)
    if padding == "Border":
        is_inside = logical_and(greater(position, 0), less(position, size - 1))
        # Infinities and NaN sample the middle.
        is_finite = less(abs(position), np.inf)
        position = mask_fill(position, NOT.unary(is_finite), (size - 1) / 2)
        return _Points(clip(position, 0, size - 1), mask_fill(slope, NOT.unary(is_inside), 0))
    if padding == "Reflection":
        return _reflected(position, slope, size, is_aligned)
    return _Points(position, slope)


def _reflected(position: Tensor, slope: Tensor, size: int, is_aligned: bool) -> _Points:
    low, high = (0.0, size - 1.0) if is_aligned else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        middle = full(position, position.handle.spec, low)
        return _Points(middle, zeros(position, position.handle.spec))
    offset = subtract(position, low)
    distance = abs(offset)
    turns = floor(divide(distance.detach(), 2 * span))
    rest = subtract(subtract(distance, multiply(turns, 2 * span)), span)
    direction = multiply(sign(offset.detach()), negative(sign(rest.detach())))
    return _Points(add(subtract(span, abs(rest)), low), multiply(slope, direction))


def _corners(call: PastCall, column: Tensor, row: Tensor, shape: tuple[int, ...]) -> list[_Corner]:
    """Return the pixels that the points sample; pixels outside the image contribute 0."""
    if call.parameters["mode"] == "Nearest":
        whole = full(column, column.handle.spec, 1)
        return [_corner(call, _rounded(column), _rounded(row), shape, whole, None, None)]
    left, top = floor(column.detach()), floor(row.detach())
    right_share, bottom_share = subtract(column, left), subtract(row, top)
    left_share, top_share = subtract(1, right_share), subtract(1, bottom_share)
    right, bottom = add(left, 1), add(top, 1)
    return [
        _corner(
            call, left, top, shape, multiply(left_share, top_share), negative(top_share),
            negative(left_share),
        ),
        _corner(
            call, right, top, shape, multiply(right_share, top_share), top_share,
            negative(right_share),
        ),
        _corner(
            call, left, bottom, shape, multiply(left_share, bottom_share), negative(bottom_share),
            left_share,
        ),
        _corner(
            call, right, bottom, shape, multiply(right_share, bottom_share), bottom_share,
            right_share,
        ),
    ]  # fmt: skip


def _corner(
    call: PastCall,
    column: Tensor,
    row: Tensor,
    shape: tuple[int, ...],
    weight: Tensor,
    to_x: Tensor | None,
    to_y: Tensor | None,
) -> _Corner:
    height, width = shape[2:]
    columns, rows = clip(column, 0, width - 1), clip(row, 0, height - 1)
    index = astype(add(multiply(rows, width), columns), I64)
    if call.parameters["padding_mode"] != "Zeros":
        return _Corner(index, weight, to_x, to_y)
    outside = logical_or(
        logical_or(less(column, 0), greater(column, width - 1)),
        logical_or(less(row, 0), greater(row, height - 1)),
    )
    kept = [None if x is None else mask_fill(x, outside, 0) for x in (to_x, to_y)]
    return _Corner(index, mask_fill(weight, outside, 0), *kept)


def _rounded(position: Tensor) -> Tensor:
    """Round to the nearest integer, halves away from zero, as the operation does."""
    position = position.detach()
    return multiply(sign(position), floor(add(abs(position), 0.5)))


# -- Interpolation --------------------------------------------------------------------------------


def _resizing(call: PastCall) -> tuple[tuple[int, ...], tuple[str, bool]]:
    options = (call.parameters["mode"], call.parameters["align_corners"])
    return tuple(call.parameters["output_size"]), options


@joint(sampling.INTERPOLATE, uses=("x",))
def _of_interpolation(call: PastCall) -> dict[str, Tensor]:
    return {"x": INTERPOLATE_BACKWARD.apply((call["x"], call.grads[0]), _resizing(call))}


@joint(sampling.INTERPOLATE_BACKWARD)
def _of_interpolation_backward(call: PastCall) -> dict[str, Tensor]:
    return {"grad": INTERPOLATE.apply((call.grads[0],), _resizing(call))}


# -- Fourier transforms ---------------------------------------------------------------------------


@joint(sampling.RFFT)
def _of_rfft(call: PastCall) -> dict[str, Tensor]:
    """Apply the adjoint: the inverse transform without the weights of ``_multiplicity``."""
    spec, axis = call.spec("signal"), call.parameters["dim"]
    samples = call.parameters["n"] or spec.shape[axis]
    like = next(grad for grad in call.grads if grad is not None)
    shape = (*spec.shape[:axis], samples // 2 + 1, *spec.shape[axis + 1 :])
    real, imaginary = [
        zeros(like, TensorSpec(shape, spec.dtype)) if grad is None else grad for grad in call.grads
    ]
    counts = _multiplicity(like, samples, axis)
    parts = (divide(real, counts), divide(imaginary, counts))
    signal = multiply(IRFFT.apply(parts, (axis, samples)), samples)
    return {"signal": resized(signal, axis, spec.shape[axis])}


@joint(sampling.IRFFT)
def _of_irfft(call: PastCall) -> dict[str, Tensor]:
    (grad,), axis = call.grads, call.parameters["dim"]
    samples, bins = grad.shape[axis], call.spec("input_re").shape[axis]
    parts = RFFT.apply_all((grad,), (axis, None))
    counts = divide(_multiplicity(grad, samples, axis), samples)
    real, imaginary = [resized(multiply(part, counts), axis, bins) for part in parts]
    return {"input_re": real, "input_im": imaginary}


def _multiplicity(like: Tensor, samples: int, axis: int) -> Tensor:
    """Return how many of all frequencies each nonnegative one stands for: 2, or 1 at the ends."""
    counts = np.full(samples // 2 + 1, 2.0)
    counts[0] = 1.0
    if samples % 2 == 0:
        counts[-1] = 1.0
    shape = (1,) * axis + counts.shape + (1,) * (len(like.shape) - axis - 1)
    return astype(upload(like, counts.reshape(shape)), like.dtype)
