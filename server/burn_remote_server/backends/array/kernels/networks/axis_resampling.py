"""Resampling along one axis, where each output is a weighted sum of a few inputs, and its adjoint.

Adaptive pooling and interpolation apply such maps to one axis after the other. A map is a list of
taps, not a matrix: a matrix product would multiply infinite inputs by zeros. Long axes are mapped
in blocks of outputs, which bounds the length of the lists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from itertools import pairwise
from typing import Final

import numpy as np

from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    ModuleKernels,
    Shape,
    Table,
    blocks,
)

__all__ = ["AxisMap", "AxisMapping", "MakeMap", "kept"]


# Maps of longer axes are not cached. This limit bounds the cache to about 150 MB.
KEPT_ELEMENTS: Final = 2**12

# Entries of the map of one block. Some ten arrays of 8 bytes per entry are alive while a map is
# made and applied, so this bounds them to about 10 MiB.
BLOCK_ENTRIES: Final = 2**16

# Returns the map of outputs ``first..last``, which it numbers from 0.
MakeMap = Callable[[int, int], "AxisMap"]


@dataclass(frozen=True, slots=True, eq=False)
class AxisMap:
    """A sparse linear map of one axis: adds ``weights[e] * input[sources[e]]`` to ``targets[e]``.

    The arrays are NumPy's and sorted by target; ``weights`` of ``None`` are all 1.
    """

    inputs: int
    outputs: int
    targets: Table
    sources: Table
    weights: Table | None

    @classmethod
    def of_taps(cls, inputs: int, sources: Table, weights: Table | None) -> AxisMap:
        """Make a map from tables ``[outputs, taps]`` of sources and weights.

        Taps with a source outside ``0..inputs`` are dropped.
        """
        outputs, taps = sources.shape
        targets = np.repeat(np.arange(outputs), taps)
        kept = ((sources >= 0) & (sources < inputs)).reshape(-1)
        flat = None if weights is None else weights.reshape(-1)[kept]
        return cls(inputs, outputs, targets[kept], sources.reshape(-1)[kept], flat)

    @property
    def transposed(self) -> AxisMap:
        """The adjoint: targets and sources exchanged, with the same weights."""
        order = np.argsort(self.sources, kind="stable")
        weights = None if self.weights is None else self.weights[order]
        return AxisMap(self.outputs, self.inputs, self.sources[order], self.targets[order], weights)

    def rounds(self) -> list[tuple[Table, Table, Table | None]]:
        """Split the entries into rounds in which no target occurs twice.

        Returns the targets, sources and weights of each round.
        """
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
        """Return the position of each target's first entry, and the number of entries."""
        return np.flatnonzero(np.diff(self.targets, prepend=-1, append=self.outputs))

    def narrowed(self) -> tuple[int, AxisMap]:
        """Return the first source used, and the map relative to it without unused outer sources."""
        low, high = int(self.sources.min()), int(self.sources.max())
        return low, replace(self, inputs=high + 1 - low, sources=self.sources - low)


def kept(make: Callable[..., AxisMap]) -> Callable[..., AxisMap]:
    """Cache the maps of short axes that ``make(inputs, outputs, …)`` returns."""
    keep = lru_cache(maxsize=256)(make)

    @wraps(make)
    def kept_or_made(inputs: int, outputs: int, *options: Hashable) -> AxisMap:
        chosen = keep if inputs + outputs <= KEPT_ELEMENTS else make
        return chosen(inputs, outputs, *options)

    return kept_or_made


class AxisMapping(ModuleKernels):
    """Application of axis maps to arrays."""

    def _resampled(self, make: MakeMap, taps: int, x: Array, axis: int, outputs: int) -> Array:
        """Return ``x`` with ``axis`` mapped to ``outputs`` of at most ``taps`` entries each."""
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
        """Apply the adjoint of ``_resampled``."""
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
        """Return ``x`` with ``axis`` mapped; an output without entries is zero."""
        shape = (*x.shape[:axis], table.outputs, *x.shape[axis + 1 :])
        if not x.size or not table.targets.size:
            return self.xp.zeros(shape, x.dtype)
        borders = table.borders()
        # There are as many rounds as the largest number of entries of one target. With few targets,
        # summing per target takes fewer steps. Either way, the number of steps is at most about the
        # square root of the number of entries.
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
