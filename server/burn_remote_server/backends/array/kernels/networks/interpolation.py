"""Resizing of images.

Every mode resamples one axis after the other. Output ``o`` of ``n`` is at the input position
``(o + 1/2) * size / n - 1/2``, or with aligned corners at ``o * (size - 1) / (n - 1)``. The modes
weight the inputs around that position as in Burn:

- Nearest: the input at ``floor(o * size / n)``, regardless of ``align_corners``.
- NearestExact: the input at ``floor((o + 1/2) * size / n)``, regardless of ``align_corners``.
- Bilinear: two neighbours with linear weights; positions before the first input use the first.
- Bicubic: four neighbours, weighted by Keys' kernel with a = -3/4 ("Cubic convolution interpolation
  for digital image processing", 1981); positions outside use the edge's input.
- Lanczos3: six neighbours, weighted by ``sinc(t) * sinc(t / 3)`` (Duchon, "Lanczos filtering in one
  and two dimensions", 1979), without those outside; the weights are scaled to a sum of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np

from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.axis_resampling import (
    AxisMap,
    AxisMapping,
    kept,
)
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_positive,
    check_rank,
    check_shape,
)
from burn_remote_server.backends.array.kernels.networks.correlation import AXES
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    Kernel,
    Shape,
    Table,
)

__all__ = ["Interpolation"]

# Number of inputs per output.
TAPS: Final[Mapping[str, int]] = {
    "Nearest": 1,
    "NearestExact": 1,
    "Bilinear": 2,
    "Bicubic": 4,
    "Lanczos3": 6,
}


class Interpolation(AxisMapping):
    """Interpolation and its gradient.

    ``x`` is ``[batch, channels, height, width]``. Outputs are linear in ``x``, so the gradient is
    the transposed map.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {
            "Interpolate": self.interpolate,
            "InterpolateBackward": self.interpolate_backward,
        }

    def interpolate(
        self, x: Array, *, output_size: Shape, mode: str, align_corners: bool, out: TensorSpec
    ) -> Array:
        """Return ``x`` resized to ``output_size``."""
        _check("Interpolate", x, output_size, mode)
        if not x.size:  # no batch or channel: the output may be large, but has no elements either
            return self.xp.zeros((*x.shape[:2], *output_size), x.dtype)
        sizes = dict(enumerate(zip(x.shape[2:], output_size, strict=True), start=2))
        # The axis that shrinks most goes first, which leaves less work for the other.
        for axis in sorted(sizes, key=lambda axis: sizes[axis][1] / sizes[axis][0]):
            size, outputs = sizes[axis]
            make = partial(_map, size, outputs, mode, align_corners)
            x = self._resampled(make, TAPS[mode], x, axis, outputs)
        return x

    def interpolate_backward(
        self,
        x: Array,
        grad: Array,
        *,
        output_size: Shape,
        mode: str,
        align_corners: bool,
        out: TensorSpec,
    ) -> Array:
        """Return the gradient with respect to ``x``; only the shape of ``x`` is used."""
        _check("InterpolateBackward", x, output_size, mode)
        check_shape("InterpolateBackward", "grad", grad, (*x.shape[:2], *output_size))
        if not x.size:
            return self.xp.zeros(x.shape, grad.dtype)
        sizes = dict(enumerate(zip(x.shape[2:], output_size, strict=True), start=2))
        for axis in sorted(sizes, key=lambda axis: sizes[axis][0] / sizes[axis][1]):
            size, outputs = sizes[axis]
            make = partial(_map, size, outputs, mode, align_corners)
            grad = self._spread_back(make, TAPS[mode], grad, axis, size)
        return grad


def _check(operation: str, x: Array, output_size: Shape, mode: str) -> None:
    check_rank(operation, "x", x, 4, AXES[2])
    check_positive(operation, "spatial size of x", x.shape[2:])
    check_positive(operation, "output_size", output_size)
    if mode not in _MODES:
        known = ", ".join(_MODES)
        raise OperationFailed(f"{operation}: mode is {mode!r}, expected one of {known}")


@kept
def _map(size: int, outputs: int, mode: str, align_corners: bool, first: int, last: int) -> AxisMap:
    """Return the map of outputs ``first..last`` of ``outputs``."""
    return _MODES[mode](size, outputs, align_corners, np.arange(first, last, dtype=np.float64))


def _places(size: int, outputs: int, align_corners: bool, numbers: Table) -> Table:
    if align_corners:
        return numbers * ((size - 1) / max(outputs - 1, 1))
    return (numbers + 0.5) * (size / outputs) - 0.5


def _nearest(size: int, outputs: int, align_corners: bool, numbers: Table) -> AxisMap:
    # In integers: ``size / outputs`` may round down, and so miss the input at an exact multiple.
    places = numbers.astype(np.int64) * size // outputs
    return AxisMap.of_taps(size, places[:, None], None)


def _nearest_exact(size: int, outputs: int, align_corners: bool, numbers: Table) -> AxisMap:
    places = (2 * numbers.astype(np.int64) + 1) * size // (2 * outputs)
    return AxisMap.of_taps(size, places[:, None], None)


def _bilinear(size: int, outputs: int, align_corners: bool, numbers: Table) -> AxisMap:
    places = np.maximum(_places(size, outputs, align_corners, numbers), 0.0)
    low = np.floor(places)
    upper = places - low
    sources = np.stack([low, np.minimum(low + 1, size - 1)], axis=1).astype(np.int64)
    return AxisMap.of_taps(size, sources, np.stack([1 - upper, upper], axis=1))


def _bicubic(size: int, outputs: int, align_corners: bool, numbers: Table) -> AxisMap:
    sources, distances = _neighbours(_places(size, outputs, align_corners, numbers), -1, 2)
    near = np.abs(distances)
    a = -0.75
    inner = ((a + 2) * near - (a + 3)) * near * near + 1
    outer = ((a * near - 5 * a) * near + 8 * a) * near - 4 * a
    weights = np.where(near < 1, inner, np.where(near < 2, outer, 0.0))
    return AxisMap.of_taps(size, np.clip(sources, 0, size - 1), weights)


def _lanczos3(size: int, outputs: int, align_corners: bool, numbers: Table) -> AxisMap:
    sources, distances = _neighbours(_places(size, outputs, align_corners, numbers), -2, 3)
    weights = np.where(np.abs(distances) < 3, np.sinc(distances) * np.sinc(distances / 3), 0.0)
    weights = np.where((sources >= 0) & (sources < size), weights, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    return AxisMap.of_taps(size, sources, weights / np.where(total == 0, 1.0, total))


def _neighbours(places: Table, first: int, last: int) -> tuple[Table, Table]:
    """Return the inputs ``first..last`` relative to each position, and their distances from it."""
    sources = np.floor(places)[:, None] + np.arange(first, last + 1)
    return sources.astype(np.int64), places[:, None] - sources


_MODES: Mapping[str, Callable[[int, int, bool, Table], AxisMap]] = {
    "Nearest": _nearest,
    "NearestExact": _nearest_exact,
    "Bilinear": _bilinear,
    "Bicubic": _bicubic,
    "Lanczos3": _lanczos3,
}
