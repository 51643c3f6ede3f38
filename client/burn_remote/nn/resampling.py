"""Interpolation and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.arguments.arrays import Array, numpy_dtype
from burn_remote.arguments.axes import normal_axis
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped, upload
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.arithmetic import add, multiply
from burn_remote.functions.casting import at_least_float32, converted_to
from burn_remote.nn.convolution import per_axis
from burn_remote.nn.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d
from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import base, layers, sampling

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["CUBIC", "interpolate", "irfft", "rfft"]

SELECT: Final = Operator(base.SELECT)
INTERPOLATE: Final = Operator(sampling.INTERPOLATE)
RFFT: Final = Operator(sampling.RFFT)
IRFFT: Final = Operator(sampling.IRFFT)

# PyTorch's name -> the wire's name; lanczos3 is Burn's addition.
MODES: Final = {
    "nearest": "Nearest",
    "nearest-exact": "NearestExact",
    "linear": "Bilinear",
    "bilinear": "Bilinear",
    "bicubic": "Bicubic",
    "lanczos3": "Lanczos3",
}
# Modes that take weighted sums of elements -> the first and the last of these, relative to the
# element at or before a point of the result.
TAPS: Final = {"Bilinear": (0, 1), "Bicubic": (-1, 2)}
# The parameter of cubic convolution (Keys, 1981) of PyTorch and Burn.
CUBIC: Final = -0.75


@explained
def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
    recompute_scale_factor: bool | None = None,
) -> Tensor:
    """Resize images ``[batch, channels, height, width]`` or signals ``[batch, channels, length]``.

    Either ``size`` or ``scale_factor`` is required. ``mode`` is ``"nearest"``,
    ``"nearest-exact"``, ``"bilinear"`` (``"linear"`` for signals), ``"bicubic"``, ``"lanczos3"`` or
    ``"area"``, which is an adaptive average pooling.
    ``align_corners`` aligns the centers of the corner elements. With ``scale_factor``, sizes are
    rounded down. Neighbouring elements of the result are ``1 / scale_factor`` elements of the input
    apart, as in PyTorch. With ``recompute_scale_factor=True``, and always with ``"lanczos3"``, the
    distance is the quotient of the sizes. Raises ``UsageError`` and ``ShapeMismatch``.
    """
    spatial = input.ndim - 2
    if spatial not in (1, 2):
        raise ShapeMismatch(
            f"input must be images (4 axes) or signals (3 axes), not {input.handle.spec}"
        )
    if mode not in MODES and mode != "area":
        raise UsageError(f"mode must be one of {', '.join(MODES)}, area, not {mode!r}")
    target = _target_size(input.shape[2:], size, scale_factor)
    if mode == "area":
        return (adaptive_avg_pool1d if spatial == 1 else adaptive_avg_pool2d)(input, target)
    options = (MODES[mode], align_corners)
    if scale_factor is not None and not recompute_scale_factor:
        factors = _factors(scale_factor, spatial)
        if _has_own_distances(input, target, factors, options):
            return _sampled(input, target, factors, options[0])
    resize = _resized_exactly if options[0] == "NearestExact" else _resized
    if spatial == 2:
        return resize(input, target, options)
    image = reshaped(input, (*input.shape[:2], 1, input.shape[2]))
    scaled = resize(image, (1, *target), options)
    return reshaped(scaled, (*input.shape[:2], *target))


def _resized(x: Tensor, target: tuple[int, ...], options: tuple[str, bool]) -> Tensor:
    return INTERPOLATE.apply((x,), (target, options))


# Burn added the mode "nearest-exact" in the same release as the row UNFOLD4D. So a session that has
# the row has the mode.
@preferring(layers.UNFOLD4D, _resized)
def _resized_exactly(x: Tensor, target: tuple[int, ...], options: tuple[str, bool]) -> Tensor:
    for axis, wanted in enumerate(target, start=2):
        size = x.shape[axis]
        if not size:
            return _resized(x, target, ("Nearest", False))  # raises the error
        places = (2 * np.arange(wanted) + 1) * size // (2 * wanted)
        x = SELECT.apply((x, upload(x, places)), (axis,))
    return x


def _has_own_distances(
    x: Tensor,
    target: tuple[int, ...],
    factors: Sequence[float],
    options: tuple[str, bool],
) -> bool:
    """Return whether points ``1 / factor`` apart differ from those that the operation computes.

    The operation computes the distance of neighbouring points as the quotient of the sizes.
    """
    mode, align_corners = options
    if mode == "Lanczos3" or (align_corners and mode in TAPS):
        return False
    sizes = x.shape[2:]
    if not x.dtype.is_floating or 0 in sizes or 0 in target:
        return False  # the row raises the error
    return any(
        length * times != wanted
        for length, times, wanted in zip(sizes, factors, target, strict=True)
    )


def _sampled(x: Tensor, target: tuple[int, ...], factors: Sequence[float], mode: str) -> Tensor:
    """Resize axis by axis: weighted sums of the elements next to each point of the result."""
    dtype, rank = x.dtype, x.ndim
    x = x if mode not in TAPS else at_least_float32(x)
    for axis, (wanted, times) in enumerate(zip(target, factors, strict=True), start=2):
        size = x.shape[axis]
        distance = 1 / times
        if _ignores_factor(mode, rank, size, wanted):
            distance = size / wanted
        taps = _taps(mode, size, (np.arange(wanted), distance))
        total: Tensor | None = None
        for places, weights in taps:
            part = SELECT.apply((x, upload(x, np.clip(places, 0, size - 1))), (axis,))
            if weights is not None:
                shape = (wanted,) + (1,) * (x.ndim - 1 - axis)
                column = weights.reshape(shape).astype(numpy_dtype(x.dtype))
                part = multiply(part, upload(x, column))
            total = part if total is None else add(total, part)
        assert total is not None, "every mode has a tap"
        x = total
    return converted_to(x, dtype)


def _ignores_factor(mode: str, rank: int, size: int, wanted: int) -> bool:
    """Return whether PyTorch's kernels for the CPU compute the distance from the sizes."""
    if mode == "Nearest" and rank == 4:  # the kernel for signals uses the factor
        return wanted in (size, 2 * size)
    return mode == "Bilinear" and wanted == size


# Of each tap: the positions of its elements, and their weights, ``None`` for 1.
Taps = list[tuple[Array, Array | None]]


def _taps(mode: str, size: int, points: tuple[Array, float]) -> Taps:
    """Return the taps of a resize along one axis of ``size`` elements.

    ``points`` are the numbers of the points of the result, from 0 on, and their distance in
    elements of the input.
    """
    counts, distance = points
    if mode not in TAPS:
        # In float32, as PyTorch computes positions: others could be rounded to a neighbour.
        half = np.float32(0.5 if mode == "NearestExact" else 0.0)
        at = (counts.astype(np.float32) + half) * np.float32(distance)
        return [(np.floor(at).astype(np.int64), None)]
    at = (counts + 0.5) * distance - 0.5
    if mode == "Bilinear":
        at = np.maximum(at, 0)
    low = np.floor(at)
    if mode == "Bilinear":
        low = np.minimum(low, size - 1)
    first, last = TAPS[mode]
    return [
        ((low + place).astype(np.int64), _weights(mode, np.abs(at - low - place)))
        for place in range(first, last + 1)
    ]


def _weights(mode: str, away: Array) -> Array:
    """Return the weights of elements whose distances from a point are ``away``."""
    if mode == "Bilinear":
        weights: Array = np.maximum(1 - away, 0)
        return weights
    near = ((CUBIC + 2) * away - (CUBIC + 3)) * away * away + 1
    far = ((away - 5) * away + 8) * away * CUBIC - 4 * CUBIC
    return np.where(away <= 1, near, far)


@explained
def rfft(input: Tensor, n: int | None = None, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Return the discrete Fourier transform of real samples along an axis.

    Returns the real and the imaginary parts of the nonnegative frequencies. ``n`` is the number of
    samples to use, by default all. Shapes: ``[…, samples, …]`` to two tensors
    ``[…, n // 2 + 1, …]``.
    """
    real, imaginary = RFFT.apply_all((input,), (normal_axis(dim, input.ndim), n))
    return real, imaginary


@explained
def irfft(real: Tensor, imaginary: Tensor, n: int | None = None, dim: int = -1) -> Tensor:
    """Return the inverse of ``rfft`` along an axis.

    ``n`` is the number of samples to return, by default ``2 * (frequencies - 1)``. Shapes: two
    tensors ``[…, frequencies, …]`` to ``[…, n, …]``.
    """
    return IRFFT.apply((real, imaginary), (normal_axis(dim, real.ndim), n))


def _target_size(
    size: tuple[int, ...],
    wanted: int | Sequence[int] | None,
    factor: float | Sequence[float] | None,
) -> tuple[int, ...]:
    if wanted is not None and factor is None:
        return per_axis(wanted, len(size))
    if wanted is not None or factor is None:
        raise UsageError("exactly one of size and scale_factor is required")
    factors = _factors(factor, len(size))
    if len(factors) != len(size):
        raise ShapeMismatch(
            f"scale_factor={list(factors)} must have {len(size)} numbers, one for each spatial axis"
        )
    if not all(0 < times < math.inf for times in factors):
        raise UsageError(f"scale_factor must be positive and finite, not {factor}")
    return tuple([int(length * times) for length, times in zip(size, factors, strict=True)])


def _factors(factor: float | Sequence[float], count: int) -> Sequence[float]:
    return factor if isinstance(factor, Sequence) else [factor] * count
