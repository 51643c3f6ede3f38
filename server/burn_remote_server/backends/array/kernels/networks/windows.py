"""The windows of a convolution or a pooling, and their positions on its input.

Sizes are those of Burn 0.21. They follow Dumoulin & Visin, "A guide to convolution arithmetic for
deep learning" (arXiv:1603.07285), except in ceil mode, where Burn keeps a last window that starts
in the padding or past the end; other libraries drop it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final

import numpy as np

from burn_remote_protocol.tensors import MAX_ELEMENTS
from burn_remote_server.backends.array.kernels.networks.checks import check_positive, refuse
from burn_remote_server.backends.array.kernels.networks.module_kernels import Table

__all__ = ["Axis", "Position", "Windows"]

# Longer lists of taps are not cached. At 400 bytes per tap, this bounds the cache to about 200 MB.
KEPT_TAPS: Final = 512

# A tap's index, the windows with the tap inside the input, the elements under it: one per axis.
Position = tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]


@dataclass(frozen=True, slots=True)
class Axis:
    """The windows along one axis of an input of ``size``.

    There are ``outputs`` windows, ``stride`` apart, each of ``kernel`` taps that are ``dilation``
    apart. The first window starts ``padding`` before the input.
    """

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    outputs: int

    def tap(self, index: int, first: int = 0, last: int | None = None) -> tuple[slice, slice]:
        """Return the windows whose tap ``index`` is inside the input, and the elements under it.

        Only the windows ``first..last`` are considered, and they count from ``first``. Both results
        are empty if there are none.
        """
        last = self.outputs if last is None else last
        shift = index * self.dilation - self.padding
        low = max(first, -(shift // self.stride))
        high = min(last, (self.size - 1 - shift) // self.stride + 1)
        if low >= high:
            return slice(0, 0), slice(0, 0)
        start = low * self.stride + shift
        stop = (high - 1) * self.stride + shift + 1
        return slice(low - first, high - first), slice(start, stop, self.stride)

    def window(self, number: int) -> slice:
        """Return the input's elements under a window, empty if it lies outside the input."""
        taps = self._taps_inside(number)
        if not taps:
            return slice(0, 0)
        start, step = number * self.stride - self.padding, self.dilation
        return slice(start + taps[0] * step, start + taps[-1] * step + 1, step)

    def reaching(self, first: int, last: int) -> Iterable[int]:
        """Return the taps, in order, that may be inside the input for windows ``first..last``.

        Returns all taps if they are not more than these windows, otherwise only taps that are
        inside for one of them.
        """
        if self.kernel <= last - first:
            return range(self.kernel)
        found: list[int] = []
        for number in reversed(range(first, last)):
            taps = self._taps_inside(number)
            found += range(max(taps.start, found[-1] + 1 if found else 0), taps.stop)
        return found

    def _taps_inside(self, window: int) -> range:
        start = window * self.stride - self.padding
        low = max(0, -(start // self.dilation))
        return range(low, min(self.kernel, (self.size - 1 - start) // self.dilation + 1))

    @property
    def inside(self) -> bool:
        """Whether every tap of every window lies inside the input."""
        reach = (self.outputs - 1) * self.stride + (self.kernel - 1) * self.dilation
        return self.padding == 0 and reach < self.size

    def counts(self, include_padding: bool) -> Table:
        """Return the number of each window's taps inside the input, or inside the padded input."""
        margin = self.padding if include_padding else 0
        starts = np.arange(self.outputs) * self.stride - self.padding
        first = np.maximum(-((starts + margin) // self.dilation), 0)
        last = np.minimum((self.size + margin - 1 - starts) // self.dilation + 1, self.kernel)
        counts: Table = np.maximum(last - first, 0)
        return counts


class Windows(tuple[Axis, ...]):
    """The windows over all spatial axes, outermost first."""

    __slots__ = ()

    @classmethod
    def of(
        cls,
        operation: str,
        sizes: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        *,
        ceil_mode: bool = False,
    ) -> Windows:
        """Return the windows over an input of ``sizes``.

        Raises ``ShapeMismatch`` for a stride, dilation or kernel below 1, for negative padding, for
        any of these above ``MAX_ELEMENTS``, and for a kernel that does not fit into the padded
        input.
        """
        check_positive(operation, "kernel_size", kernel)
        check_positive(operation, "stride", stride)
        check_positive(operation, "dilation", dilation)
        if min(padding, default=0) < 0:
            raise refuse(operation, "padding", tuple(padding), "values of at least 0")
        if max((*kernel, *stride, *padding, *dilation), default=0) > MAX_ELEMENTS:
            # Positions of windows would exceed 64 bits.
            seen = (*kernel, *stride, *padding, *dilation)
            raise refuse(operation, "a size", seen, f"values of at most {MAX_ELEMENTS:,}")
        axes = []
        for size, taps, step, pad, gap in zip(
            sizes, kernel, stride, padding, dilation, strict=True
        ):
            room = size + 2 * pad - gap * (taps - 1) - 1
            if room < 0:
                padded = [n + 2 * p for n, p in zip(sizes, padding, strict=True)]
                expected = f"to fit into the padded input {padded} at dilation {list(dilation)}"
                raise refuse(operation, "kernel_size", tuple(kernel), expected)
            windows = (-(-room // step) if ceil_mode else room // step) + 1
            axes.append(Axis(size, taps, step, pad, gap, windows))
        return cls(axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The input's size along each axis."""
        return tuple(axis.size for axis in self)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The number of windows along each axis."""
        return tuple(axis.outputs for axis in self)

    @property
    def kernel(self) -> tuple[int, ...]:
        """The number of taps along each axis."""
        return tuple(axis.kernel for axis in self)

    @property
    def taps(self) -> int:
        """The number of taps in a window."""
        return math.prod(self.kernel)

    @property
    def inside(self) -> bool:
        """Whether all windows lie inside the input."""
        return all(axis.inside for axis in self)

    def positions(self, first: int, last: int) -> Iterable[Position]:
        """List each tap with the windows that have it inside the input, and the elements under it.

        Only windows ``first..last`` of the outermost axis count. Taps that are in the padding for
        all of them are omitted.
        """
        if self.taps > KEPT_TAPS:
            return _placed(self, first, last)
        return _kept(self, first, last)


# More entries than a program has layers. The list of a 3x3 layer takes 30 µs to make, and 4 KB.
@lru_cache(maxsize=1024)
def _kept(windows: Windows, first: int, last: int) -> tuple[Position, ...]:
    return tuple(_placed(windows, first, last))


def _placed(windows: Windows, first: int, last: int) -> Iterator[Position]:
    per_axis = []
    for depth, axis in enumerate(windows):
        rows = (first, last) if depth == 0 else (0, axis.outputs)
        placed = ((index, *axis.tap(index, *rows)) for index in axis.reaching(*rows))
        per_axis.append([tap for tap in placed if tap[1].stop > tap[1].start])
    for taps in product(*per_axis):
        index, outputs, elements = zip(*taps, strict=True)
        yield index, outputs, elements
