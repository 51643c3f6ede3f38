"""How is an image sampled anew, and a signal taken apart into frequencies?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from burn_remote.arguments.axes import normal_axis
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.nn.convolution import per_axis
from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import floats, sampling

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["grid_sample", "interpolate", "irfft", "rfft"]

INTERPOLATE: Final = Operator(sampling.INTERPOLATE)
RFFT: Final = Operator(sampling.RFFT)
IRFFT: Final = Operator(sampling.IRFFT)
GRID_SAMPLE2D: Final = Operator(floats.GRID_SAMPLE2D)

# The names of PyTorch (and Burn's last), and those of the wire.
MODES: Final = {
    "nearest": "Nearest",
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
    """Scale images ``[batch, channels, height, width]``, or signals ``[batch, channels, length]``.

    Give the new ``size``, or the factor. ``mode`` is ``"nearest"``, ``"bilinear"`` (``"linear"``
    for signals), ``"bicubic"`` or ``"lanczos3"``; ``align_corners`` keeps the corner elements
    where they are. Raises ``UsageError`` and ``ShapeMismatch``.
    """
    spatial = input.ndim - 2
    if spatial not in (1, 2):
        raise ShapeMismatch(f"{input.handle.spec} is neither images (4 axes) nor signals (3 axes)")
    if mode not in MODES:
        raise UsageError(f"mode={mode!r} is none of {', '.join(MODES)}")
    target = _target_size(input.shape[2:], size, scale_factor)
    options = (MODES[mode], align_corners)
    if spatial == 2:
        return INTERPOLATE.apply((input,), (target, options))
    image = reshaped(input, (*input.shape[:2], 1, input.shape[2]))
    scaled = INTERPOLATE.apply((image,), ((1, *target), options))
    return reshaped(scaled, (*input.shape[:2], *target))


@explained
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Take images ``[batch, channels, height, width]`` at points ``[batch, rows, columns, 2]``.

    A point has x and y from -1 to 1, corner to corner. ``mode`` is as for ``interpolate``;
    outside are zeros, the border, or its reflection. Gives ``[batch, channels, rows, columns]``.
    """
    if mode not in MODES:
        raise UsageError(f"mode={mode!r} is none of {', '.join(MODES)}")
    if padding_mode not in PADDING_MODES:
        raise UsageError(f"padding_mode={padding_mode!r} is none of {', '.join(PADDING_MODES)}")
    options = (MODES[mode], PADDING_MODES[padding_mode], align_corners)
    return GRID_SAMPLE2D.apply((input, grid), (options,))


@explained
def rfft(input: Tensor, n: int | None = None, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Return the frequencies of real samples along an axis, real parts and imaginary parts.

    ``n`` samples are taken, by default all: ``[…, samples, …]`` to ``[…, n // 2 + 1, …]`` twice.
    """
    real, imaginary = RFFT.apply_all((input,), (normal_axis(dim, input.ndim), n))
    return real, imaginary


@explained
def irfft(real: Tensor, imaginary: Tensor, n: int | None = None, dim: int = -1) -> Tensor:
    """Return the real samples that have these frequencies along an axis, the inverse of ``rfft``.

    There are ``n`` of them, by default ``2 * (frequencies - 1)``.
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
        raise UsageError("give either size or scale_factor")
    factors = factor if isinstance(factor, Sequence) else [factor] * len(size)
    if len(factors) != len(size):
        raise ShapeMismatch(f"{list(factors)} are no factors for {len(size)} spatial axes")
    if not all(0 < times < math.inf for times in factors):
        raise UsageError(f"scale_factor={factor} must be above 0 and finite")
    return tuple([int(length * times) for length, times in zip(size, factors, strict=True)])
