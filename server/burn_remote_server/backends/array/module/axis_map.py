"""How is an axis resampled, each output a weighted sum of a few inputs, and how is that undone?

Adaptive pooling and every mode of interpolation are such maps along one axis after the other. The
map is a list of taps, not a matrix: a matrix would multiply infinities by its zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burn_remote_server.backends.array.module.subject import Array, Subject, Table

__all__ = ["AxisMap", "AxisMapping"]


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
        if not self.targets.size:
            return []
        starts = np.searchsorted(self.targets, self.targets)
        rank = np.arange(self.targets.size) - starts
        found = []
        for number in range(int(rank.max()) + 1):
            chosen = rank == number
            weights = None if self.weights is None else self.weights[chosen]
            found.append((self.targets[chosen], self.sources[chosen], weights))
        return found


class AxisMapping(Subject):
    """Applies maps to arrays."""

    def _apply(self, table: AxisMap, x: Array, axis: int) -> Array:
        """Return ``x`` with ``axis`` mapped; an output without any input is zero."""
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
                shape = (*x.shape[:axis], table.outputs, *x.shape[axis + 1 :])
                out = self.xp.zeros(shape, x.dtype)
            if len(targets) == table.outputs:
                out += part
            else:
                out[(*before, self._to_device(targets))] += part
        if out is None:
            shape = (*x.shape[:axis], table.outputs, *x.shape[axis + 1 :])
            return self.xp.zeros(shape, x.dtype)
        return out
