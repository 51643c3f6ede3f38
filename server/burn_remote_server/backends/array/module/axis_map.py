"""How is an axis resampled, each output a weighted sum of a few inputs, and how is that undone?

Adaptive pooling and every mode of interpolation are such maps along one axis after the other. The
map is a list of taps, not a matrix: a matrix would multiply infinities by its zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import pairwise
from typing import Final

import numpy as np

from burn_remote_server.backends.array.module.subject import Array, Shape, Subject, Table

__all__ = ["AxisMap", "AxisMapping", "kept"]


# Elements of an axis before and after, up to which its map is kept. Larger: more memory than the
# 150 MB that a program can fill so. Smaller: the maps of large images are made at each call.
KEPT_ELEMENTS: Final = 2**12


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

    def by_target(self) -> list[slice]:
        """Return which entries each target has, but for those that have none."""
        borders = np.flatnonzero(np.diff(self.targets, prepend=-1, append=self.outputs))
        return [slice(first, last) for first, last in pairwise(borders.tolist())]


def kept(make: Callable[..., AxisMap]) -> Callable[..., AxisMap]:
    """Return ``make(inputs, outputs, …)`` that keeps the maps of short axes."""
    # Larger: more of the memory above. Smaller: the layers of one program push each other out.
    keep = lru_cache(maxsize=256)(make)

    @wraps(make)
    def kept_or_made(inputs: int, outputs: int, *options: Hashable) -> AxisMap:
        chosen = keep if inputs + outputs <= KEPT_ELEMENTS else make
        return chosen(inputs, outputs, *options)

    return kept_or_made


class AxisMapping(Subject):
    """Applies maps to arrays."""

    def _apply(self, table: AxisMap, x: Array, axis: int) -> Array:
        """Return ``x`` with ``axis`` mapped; an output without any input is zero."""
        shape = (*x.shape[:axis], table.outputs, *x.shape[axis + 1 :])
        if not x.size or not table.targets.size:
            return self.xp.zeros(shape, x.dtype)
        by_target = table.by_target()
        # Rounds are as many as the most entries of a target. Of few targets each is one sum, so
        # there are about as many steps as the root of the entries at most.
        if len(by_target) < max(entries.stop - entries.start for entries in by_target):
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
