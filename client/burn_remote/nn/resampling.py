"""Interpolation, grid sampling and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.arguments.axes import normal_axis
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped, upload
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.nn.convolution import per_axis
from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import base, floats, layers, sampling

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["grid_sample", "interpolate", "irfft", "rfft"]

SELECT: Final = Operator(base.SELECT)
INTERPOLATE: Final = Operator(sampling.INTERPOLATE)
RFFT: Final = Operator(sampling.RFFT)
IRFFT: Final = Operator(sampling.IRFFT)
GRID_SAMPLE2D: Final = Operator(floats.GRID_SAMPLE2D)

# PyTorch's name -> the wire's name; lanczos3 is Burn's addition.
MODES: Final = {
    "nearest": "Nearest",
    "nearest-exact": "NearestExact",
    "linear": "Bilinear",
    "bilinear": "Bilinear",
    "bicubic": "Bicubic",
    "lanczos3": "Lanczos3",
}
PADDING_MODES: Final = {"zeros": "Zeros", "border": "Border", "reflection": "Reflection"}


@explained
def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Tensor:
    """Resize images ``[batch, channels, height, width]`` or signals ``[batch, channels, length]``.

    Either ``size`` or ``scale_factor`` is required. ``mode`` is ``"nearest"``,
    ``"nearest-exact"``, ``"bilinear"`` (``"linear"`` for signals), ``"bicubic"`` or ``"lanczos3"``.
    ``align_corners`` aligns the centers of the corner elements. ``scale_factor`` only selects the
    size, which is rounded down; positions follow from the sizes, as in PyTorch with
    ``recompute_scale_factor=True``. Raises ``UsageError`` and ``ShapeMismatch``.
    """
    spatial = input.ndim - 2
    if spatial not in (1, 2):
        raise ShapeMismatch(
            f"input must be images (4 axes) or signals (3 axes), not {input.handle.spec}"
        )
    if mode not in MODES:
        raise UsageError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    target = _target_size(input.shape[2:], size, scale_factor)
    options = (MODES[mode], align_corners)
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


@explained
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Sample images at the points of a grid.

    Shapes: ``[batch, channels, height, width]``, grid ``[batch, rows, columns, 2]`` to ``[batch,
    channels, rows, columns]``. A point is ``(x, y)``; -1 and 1 are opposite edges of the image.
    ``mode`` is ``"bilinear"`` or ``"nearest"``. ``padding_mode`` for points outside is ``"zeros"``,
    ``"border"`` or ``"reflection"``.

    Two rules are Burn's, not PyTorch's. The nearest pixel of a point halfway between two pixels is
    the one farther from pixel 0. A point with infinite or NaN coordinates samples the middle of
    those axes with ``"border"``; otherwise, it gives NaN with ``"bilinear"``.

    Raises ``UsageError`` and ``ShapeMismatch``. For the modes ``"nearest-exact"``, ``"bicubic"``
    and ``"lanczos3"``, reading the result raises ``Unsupported``.
    """
    if mode not in MODES:
        raise UsageError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if padding_mode not in PADDING_MODES:
        raise UsageError(
            f"padding_mode must be one of {', '.join(PADDING_MODES)}, not {padding_mode!r}"
        )
    options = (MODES[mode], PADDING_MODES[padding_mode], align_corners)
    return GRID_SAMPLE2D.apply((input, grid), (options,))


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
    factors = factor if isinstance(factor, Sequence) else [factor] * len(size)
    if len(factors) != len(size):
        raise ShapeMismatch(
            f"scale_factor={list(factors)} must have {len(size)} numbers, one for each spatial axis"
        )
    if not all(0 < times < math.inf for times in factors):
        raise UsageError(f"scale_factor must be positive and finite, not {factor}")
    return tuple([int(length * times) for length, times in zip(size, factors, strict=True)])
