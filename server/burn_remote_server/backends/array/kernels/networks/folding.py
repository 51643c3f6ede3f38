"""Reductions over windows, one axis after the other.

A maximum or sum over a window of ``h * w`` taps takes ``h + w`` passes over strided views, without
a copy of any window. Windows may be far larger than the input, since padding may be large. If there
are fewer windows than taps, each window is one pass, so passes never outnumber outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from burn_remote_server.backends.array.kernels.networks.module_kernels import Array, ModuleKernels
from burn_remote_server.backends.array.kernels.networks.windows import Axis

__all__ = ["AxisTap", "Folding", "along"]


class AxisTap(NamedTuple):
    """One tap along an axis, with the windows in which this tap lies inside the input.

    ``fresh`` are the windows in which it is the first tap inside the input, ``seen`` the others;
    each comes with the elements under the tap.
    """

    tap: int
    fresh: tuple[slice, slice]
    seen: tuple[slice, slice]


def along(axis: int, part: slice) -> tuple[slice, ...]:
    """Return an index that selects ``part`` along ``axis`` and everything along other axes."""
    return (*(slice(None),) * axis, part)


def taps_of(window: Axis) -> Iterator[AxisTap]:
    """Yield the taps that are inside the input for at least one window."""
    # From tap to tap, the range of windows that have the tap inside the input moves towards the
    # first window. So earlier taps have reached exactly the windows from ``lowest`` on.
    lowest = window.outputs
    for index in range(window.kernel):
        reached, _ = window.tap(index)
        if reached.stop > reached.start:
            border = min(max(lowest, reached.start), reached.stop)
            fresh, seen = window.tap(index, 0, border), window.tap(index, border)
            yield AxisTap(index, fresh, (_moved(seen[0], border), seen[1]))
            lowest = min(lowest, reached.start)


def windows_of(window: Axis, outputs: Array) -> Iterator[tuple[int, slice]]:
    """Yield each window that covers elements, and these elements; none if ``outputs`` is empty."""
    if outputs.size:
        for number in range(window.outputs):
            elements = window.window(number)
            if elements.stop > elements.start:
                yield number, elements


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


class Folding(ModuleKernels):
    """Folds over windows, and their adjoint."""

    def _fold(
        self,
        x: Array,
        axis: int,
        window: Axis,
        combine: Callable[..., Array],
        reduce: Callable[..., Array],
        empty: float,
    ) -> Array:
        """Combine the taps of each window along ``axis`` with ``combine``.

        ``empty`` is the result of a window without taps inside the input. ``reduce(array, axis=…)``
        is the same reduction over a whole axis.
        """
        shape = (*x.shape[:axis], window.outputs, *x.shape[axis + 1 :])
        if not x.size or window.outputs < window.kernel:
            out = self.xp.full(shape, empty, dtype=x.dtype)
            for number, elements in windows_of(window, out):
                out[along(axis, slice(number, number + 1))] = reduce(
                    x[along(axis, elements)], axis=axis, keepdims=True
                )
            return out
        if window.inside:
            views = [x[along(axis, window.tap(tap)[1])] for tap in range(window.kernel)]
            if len(views) == 1:
                return views[0]
            out = combine(views[0], views[1])
            for view in views[2:]:
                combine(out, view, out=out)
            return out
        out = self.xp.full(shape, empty, dtype=x.dtype)
        for _, fresh, seen in taps_of(window):
            out[along(axis, fresh[0])] = x[along(axis, fresh[1])]
            part = out[along(axis, seen[0])]
            combine(part, x[along(axis, seen[1])], out=part)
        return out

    def _unfold_sum(self, grad: Array, axis: int, window: Axis) -> Array:
        """Sum ``grad`` for each element along ``axis``, over the windows that contain the element.

        This is the adjoint of folding with a sum.
        """
        shape = (*grad.shape[:axis], window.size, *grad.shape[axis + 1 :])
        out = self.xp.zeros(shape, grad.dtype)
        if not grad.size or window.outputs < window.kernel:
            for number, elements in windows_of(window, grad):
                out[along(axis, elements)] += grad[along(axis, slice(number, number + 1))]
            return out
        for index in range(window.kernel):
            reached, elements = window.tap(index)
            out[along(axis, elements)] += grad[along(axis, reached)]
        return out
