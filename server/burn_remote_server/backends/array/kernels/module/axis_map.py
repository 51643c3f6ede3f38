"""Resampling of one axis, each output a weighted sum of a few inputs, and the adjoint of that.

Adaptive pooling and every mode of interpolation are such maps along one axis after the other. The
map is a list of taps, not a matrix: a matrix would multiply infinities by its zeros. Long axes are
mapped in blocks of outputs, so that the lists stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from itertools import pairwise
from typing import Final

import numpy as np

from burn_remote_server.backends.array.kernels.module.module_kernels import (
    Array,
    ModuleKernels,
    Shape,
    Table,
    blocks,
)

__all__ = ["AxisMap", "AxisMapping", "MakeMap", "kept"]


# Elements of an axis before and after, up to which its map is kept: a program can fill 150 MB with
# kept maps.
KEPT_ELEMENTS: Final = 2**12

# Entries of the map of one block. Some ten arrays of 8 bytes per entry are alive while a map is
# made and applied, so this bounds them to about 10 MiB.
BLOCK_ENTRIES: Final = 2**16

# Returns the map of outputs ``first..last`` (counted from ``first``).
MakeMap = Callable[[int, int], "AxisMap"]


@dataclass(frozen=True, slots=True, eq=False)
class AxisMap:
    """``entries`` triples: output ``targets[e]`` gets ``weights[e]`` times input ``sources[e]``.

    The arrays are NumPy's and sorted by target; ``weights`` of ``None`` are all one.
    """

    inputs: int
    outputs: int
    targets: Table
    sources: Table
    weights: Table | None

    @classmethod
    def of_taps(cls, inputs: int, sources: Table, weights: Table | None) -> AxisMap:
        """Make a map from tables ``[outputs, taps]`` of sources and weights; taps with a source
        outside ``0..inputs`` are left out."""
        outputs, taps = sources.shape
        targets = np.repeat(np.arange(outputs), taps)
        kept = ((sources >= 0) & (sources < inputs)).reshape(-1)
        flat = None if weights is None else weights.reshape(-1)[kept]
        return cls(inputs, outputs, targets[kept], sources.reshape(-1)[kept], flat)

    @property
    def transposed(self) -> AxisMap:
        """The adjoint: sources get what their targets hold, weighted alike."""
        order = np.argsort(self.sources, kind="stable")
        weights = None if self.weights is None else self.weights[order]
        return AxisMap(self.outputs, self.inputs, self.sources[order], self.targets[order], weights)

    def rounds(self) -> list[tuple[Table, Table, Table | None]]:
        """Return the entries as rounds in which no target occurs twice: targets, sources,
        weights."""
        rank = np.arange(self.targets.size) - np.searchsorted(self.targets, self.targets)
        order = np.argsort(rank, kind="stable")
        borders = np.flatnonzero(np.diff(rank[order], prepend=-1, append=self.targets.size))
        found = []
        for first, last in pairwise(borders.tolist()):
            chosen = order[first:last]
            weights = None if self.weights is None else self.weights[chosen]
            found.append((self.targets[chosen], self.sources[chosen], weights))
        return found

    def borders(self) -> Table:
        """Return where the entries of each target begin, and where the last ones end."""
        return np.flatnonzero(np.diff(self.targets, prepend=-1, append=self.outputs))

    def narrowed(self) -> tuple[int, AxisMap]:
        """Return the first source, and the map of only the sources between the first and last."""
        low, high = int(self.sources.min()), int(self.sources.max())
        return low, replace(self, inputs=high + 1 - low, sources=self.sources - low)


def kept(make: Callable[..., AxisMap]) -> Callable[..., AxisMap]:
    """Return ``make(inputs, outputs, …)`` that keeps the maps of short axes."""
    keep = lru_cache(maxsize=256)(make)

    @wraps(make)
    def kept_or_made(inputs: int, outputs: int, *options: Hashable) -> AxisMap:
        chosen = keep if inputs + outputs <= KEPT_ELEMENTS else make
        return chosen(inputs, outputs, *options)

    return kept_or_made


class AxisMapping(ModuleKernels):
    """Applies maps to arrays."""

    def _resampled(self, make: MakeMap, taps: int, x: Array, axis: int, outputs: int) -> Array:
        """Return ``x`` with ``axis`` mapped to ``outputs``, ``taps`` entries each at most."""
        at_once = max(1, BLOCK_ENTRIES // taps)
        if outputs <= at_once:
            return self._apply(make(0, outputs), x, axis)
        out = self.xp.empty((*x.shape[:axis], outputs, *x.shape[axis + 1 :]), x.dtype)
        before = (slice(None),) * axis
        for first, last in blocks(outputs, at_once):
            low, table = make(first, last).narrowed()
            part = x[(*before, slice(low, low + table.inputs))]
            out[(*before, slice(first, last))] = self._apply(table, part, axis)
        return out

    def _spread_back(self, make: MakeMap, taps: int, grad: Array, axis: int, inputs: int) -> Array:
        """Return the adjoint of ``_resampled``: each of ``inputs`` gets what its outputs hold."""
        outputs = grad.shape[axis]
        at_once = max(1, BLOCK_ENTRIES // taps)
        if outputs <= at_once:
            return self._apply(make(0, outputs).transposed, grad, axis)
        out = self.xp.zeros((*grad.shape[:axis], inputs, *grad.shape[axis + 1 :]), grad.dtype)
        before = (slice(None),) * axis
        for first, last in blocks(outputs, at_once):
            low, table = make(first, last).narrowed()
            part = grad[(*before, slice(first, last))]
            reached = slice(low, low + table.inputs)
            out[(*before, reached)] += self._apply(table.transposed, part, axis)
        return out

    def _apply(self, table: AxisMap, x: Array, axis: int) -> Array:
        """Return ``x`` with ``axis`` mapped; an output without any input is zero."""
        shape = (*x.shape[:axis], table.outputs, *x.shape[axis + 1 :])
        if not x.size or not table.targets.size:
            return self.xp.zeros(shape, x.dtype)
        borders = table.borders()
        # Rounds are as many as the most entries of a target. Of few targets each is one sum, so
        # there are about as many steps as the root of the entries at most.
        if len(borders) - 1 < int(np.diff(borders).max()):
            by_target = [slice(first, last) for first, last in pairwise(borders.tolist())]
            return self._summed(table, by_target, x, axis, shape)
        before = (slice(None),) * axis
        spread = (-1, *(1,) * (x.ndim - axis - 1))
        out = None
        for targets, sources, weights in table.rounds():
            part = self.xp.take(x, self._to_device(sources), axis=axis)
            if weights is not None:
                part *= self._to_device(weights, x.dtype).reshape(spread)
            if out is None and len(targets) == table.outputs:
                out = part
                continue
            if out is None:
                out = self.xp.zeros(shape, x.dtype)
            if len(targets) == table.outputs:
                out += part
            else:
                out[(*before, self._to_device(targets))] += part
        return out

    def _summed(
        self, table: AxisMap, by_target: list[slice], x: Array, axis: int, shape: Shape
    ) -> Array:
        before = (slice(None),) * axis
        spread = (-1, *(1,) * (x.ndim - axis - 1))
        out = self.xp.zeros(shape, x.dtype)
        for entries in by_target:
            part = self.xp.take(x, self._to_device(table.sources[entries]), axis=axis)
            if table.weights is not None:
                part *= self._to_device(table.weights[entries], x.dtype).reshape(spread)
            out[(*before, int(table.targets[entries.start]))] = part.sum(axis=axis)
        return out
