"""Searches: elements that are not 0, distinct elements, and places in sorted vectors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import Array, Kernel, KernelFamily

__all__ = ["SearchKernels"]


class SearchKernels(KernelFamily):
    """Searches whose callers declare the sizes that depend on the elements.

    A wrong size is an error of the operation. NaN equals no element, so each NaN is distinct. NaN
    is ordered last. -0.0 equals 0.0.
    """

    family = "Search"

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Nonzero": self.nonzero,
            "UniqueOrder": self.unique_order,
            "Unique": self.unique,
            "SearchSorted": self.search_sorted,
        }

    def nonzero(self, input: Array, *, count: int, out: TensorSpec) -> Array:
        """Return the indices of elements that are not 0, in C order: ``[dimensions, count]``."""
        xp = self.xp
        # Count first: the indices of a wrong size could take more memory than was declared.
        self._check(int(xp.count_nonzero(input)), count, "elements that are not 0")
        return xp.stack(xp.nonzero(input)).astype(np.int64, copy=False)

    def unique_order(
        self, input: Array, *, out: tuple[TensorSpec, TensorSpec]
    ) -> tuple[Array, Array]:
        """Return the indices that sort a vector stably, and the number of distinct elements."""
        xp = self.xp
        order = xp.argsort(input, kind="stable").astype(np.int64, copy=False)
        starts = self._starts(input[order])
        return order, xp.sum(starts, dtype=np.int64).reshape(1)

    def unique(
        self, input: Array, order: Array, *, count: int, out: tuple[TensorSpec, ...]
    ) -> tuple[Array, Array, Array]:
        """Return the first indices of distinct elements, inverse indices, and counts."""
        xp, size = self.xp, input.size
        if size and not 0 <= int(xp.min(order)) <= int(xp.max(order)) < size:
            raise UsageError("the order of elements has an index out of range")
        starts = self._starts(input[order])
        (places,) = xp.nonzero(starts)
        self._check(int(places.size), count, "distinct elements")
        inverse = xp.zeros(size, np.int64)  # zeros, because an invalid order may not fill it all
        inverse[order] = xp.cumsum(starts, dtype=np.int64) - 1
        ends = xp.concatenate([places[1:], xp.full(min(count, 1), size, dtype=places.dtype)])
        return order[places], inverse, (ends - places).astype(np.int64, copy=False)

    def search_sorted(
        self, ordered: Array, values: Array, *, right: bool, out: TensorSpec
    ) -> Array:
        """Return the index before which each value keeps a vector sorted."""
        side = "right" if right else "left"
        return self.xp.searchsorted(ordered, values, side=side).astype(np.int64, copy=False)

    def _starts(self, ordered: Array) -> Array:
        """Return whether elements of a sorted vector differ from those before them."""
        starts = self.xp.ones(ordered.size, np.bool_)
        starts[1:] = ordered[1:] != ordered[:-1]
        return starts

    def _check(self, found: int, declared: int, what: str) -> None:
        if found != declared:
            raise UsageError(f"there are {found:,} {what}, but the size {declared:,} was given")
