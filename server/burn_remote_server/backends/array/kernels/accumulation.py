"""Running sums, products and extremes along an axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import Array, Kernel, KernelFamily

__all__ = ["NumericAccumulation"]


class NumericAccumulation(KernelFamily):
    """Running sums, products and extremes. Integers wrap around; after a NaN all is NaN."""

    family = "Numeric"

    def table(self) -> Mapping[str, Kernel]:
        return {
            "CumSum": self.cum_sum,
            "CumProd": self.cum_prod,
            "CumMin": self.cum_min,
            "CumMax": self.cum_max,
        }

    def cum_sum(self, input: Array, *, axis: int, out: TensorSpec) -> Array:
        """Return the running sums along an axis."""
        return self.xp.cumsum(input, axis=axis, dtype=input.dtype)

    def cum_prod(self, input: Array, *, axis: int, out: TensorSpec) -> Array:
        """Return the running products along an axis."""
        return self.xp.cumprod(input, axis=axis, dtype=input.dtype)

    def cum_min(self, input: Array, *, axis: int, out: TensorSpec) -> Array:
        """Return the running minima along an axis."""
        return self._running(self.xp.minimum, input, axis)

    def cum_max(self, input: Array, *, axis: int, out: TensorSpec) -> Array:
        """Return the running maxima along an axis."""
        return self._running(self.xp.maximum, input, axis)

    def _running(self, function: Any, tensor: Array, axis: int) -> Array:
        return function.accumulate(tensor, axis=axis)
