"""Largest and smallest elements along an axis, their positions, and sorting.

Of equal elements the first counts. A NaN is both the largest and the smallest element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.core.kernel_forms import Array, Kernel, KernelFamily

__all__ = ["NumericRanking"]

Pair = tuple[Array, Array]

# Selecting the k largest elements before they are sorted pays from rows of this many times k
# elements on, for tensors and rows of these sizes. On an x86 core with AVX-512 it took less than
# 0.1 of the time of sorting whole rows of float32, and 0.1 to 1.1 with many equal elements.
MIN_SHARE: Final = 8
MIN_ROW: Final = 64
MIN_SIZE: Final = 2048


class NumericRanking(KernelFamily):
    """Positions of extremes, the k largest elements in descending order, and sorting.

    Sorting is stable in both directions: equal elements keep their order. NaN counts as larger than
    all numbers, and 0 and -0 as equal. (Burn's own servers may exchange equal elements.)

    Burn passes k as ``accumulator_len``.
    """

    family = "Numeric"

    def table(self) -> Mapping[str, Kernel]:
        return {
            "ArgMax": self.arg_max,
            "ArgMin": self.arg_min,
            "MaxDimWithIndices": self.max_dim_with_indices,
            "MinDimWithIndices": self.min_dim_with_indices,
            "TopK": self.top_k,
            "ArgTopK": self.arg_top_k,
            "TopKWithIndices": self.top_k_with_indices,
            "Sort": self.sort,
            "SortWithIndices": self.sort_with_indices,
            "ArgSort": self.arg_sort,
        }

    def arg_max(self, input: Array, *, axis: int, accumulator_len: int, out: TensorSpec) -> Array:
        """Return the positions of the largest elements along an axis."""
        positions = self.xp.argmax(input, axis=axis, keepdims=True)
        return positions.astype(array_dtype(out.dtype), copy=False)

    def arg_min(self, input: Array, *, axis: int, accumulator_len: int, out: TensorSpec) -> Array:
        """Return the positions of the smallest elements along an axis."""
        positions = self.xp.argmin(input, axis=axis, keepdims=True)
        return positions.astype(array_dtype(out.dtype), copy=False)

    def max_dim_with_indices(
        self, tensor: Array, *, dim: int, out: tuple[TensorSpec, TensorSpec]
    ) -> Pair:
        """Return the largest elements along an axis and their positions."""
        return self._with_values(tensor, self.xp.argmax(tensor, axis=dim, keepdims=True), dim, out)

    def min_dim_with_indices(
        self, tensor: Array, *, dim: int, out: tuple[TensorSpec, TensorSpec]
    ) -> Pair:
        """Return the smallest elements along an axis and their positions."""
        return self._with_values(tensor, self.xp.argmin(tensor, axis=dim, keepdims=True), dim, out)

    def _with_values(
        self, tensor: Array, positions: Array, dim: int, out: tuple[TensorSpec, TensorSpec]
    ) -> Pair:
        values = self.xp.take_along_axis(tensor, positions, axis=dim)
        return values, positions.astype(array_dtype(out[1].dtype), copy=False)

    def top_k(self, input: Array, *, axis: int, accumulator_len: int, out: TensorSpec) -> Array:
        """Return the k largest elements along an axis."""
        xp, size = self.xp, input.shape[axis]
        rows = xp.moveaxis(input, axis, -1)
        if 0 < accumulator_len < size:
            # Sort only the k elements that are returned.
            rows = xp.partition(rows, size - accumulator_len, axis=-1)
        largest = xp.sort(rows[..., size - accumulator_len :], axis=-1)[..., ::-1]
        return xp.moveaxis(largest, -1, axis)

    def arg_top_k(self, input: Array, *, axis: int, accumulator_len: int, out: TensorSpec) -> Array:
        """Return the positions of the k largest elements along an axis."""
        rows = self.xp.moveaxis(input, axis, -1)
        places = None
        length = rows.shape[-1]
        if (
            self.xp is np
            and 0 < accumulator_len <= length // MIN_SHARE
            and length >= MIN_ROW
            and rows.size >= MIN_SIZE
        ):
            places = _places_of_largest(rows, accumulator_len)
        if places is None:
            positions = self._descending(rows)[..., :accumulator_len]
        else:
            order = self._descending(np.take_along_axis(rows, places, axis=-1))
            positions = np.take_along_axis(places, order, axis=-1)
        return self.xp.moveaxis(positions, -1, axis).astype(array_dtype(out.dtype), copy=False)

    def _descending(self, rows: Array) -> Array:
        """Return the positions that sort rows in descending order, stably."""
        # A stable sort of the reversed row, read backwards, puts the first of equal elements first.
        order = self.xp.argsort(rows[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        return rows.shape[-1] - 1 - order

    def top_k_with_indices(
        self, tensor: Array, *, dim: int, k: int, out: tuple[TensorSpec, TensorSpec]
    ) -> Pair:
        """Return the k largest elements along an axis and their positions."""
        positions = self.arg_top_k(tensor, axis=dim, accumulator_len=k, out=out[1])
        return self.xp.take_along_axis(tensor, positions, axis=dim), positions

    def sort(self, input: Array, *, dim: int, descending: bool, out: TensorSpec) -> Array:
        """Return the elements sorted along an axis."""
        ordered = self.xp.sort(input, axis=dim)
        return self.xp.flip(ordered, dim) if descending else ordered

    def sort_with_indices(
        self, input: Array, *, dim: int, descending: bool, out: tuple[TensorSpec, TensorSpec]
    ) -> Pair:
        """Return the elements sorted along an axis and their positions."""
        positions = self.arg_sort(input, dim=dim, descending=descending, out=out[1])
        return self.xp.take_along_axis(input, positions, axis=dim), positions

    def arg_sort(self, input: Array, *, dim: int, descending: bool, out: TensorSpec) -> Array:
        """Return the positions that sort an axis."""
        if descending:
            return self.arg_top_k(input, axis=dim, accumulator_len=input.shape[dim], out=out)
        order = self.xp.argsort(input, axis=dim, kind="stable")
        return order.astype(array_dtype(out.dtype), copy=False)


def _places_of_largest(rows: Array, count: int) -> Array | None:
    """Return the positions of the largest elements of rows, in ascending order.

    Of elements equal to the smallest that is chosen, the first are chosen. None if so many elements
    of a row are NaN that the smallest one is too.
    """
    start = rows.shape[-1] - count
    least = np.partition(rows, start, axis=-1)[..., start : start + 1]
    chosen = ~(rows < least)  # with NaN, which counts as larger than all numbers
    wanted = math.prod(rows.shape[:-1]) * count
    if np.count_nonzero(chosen) != wanted:
        larger = ~(rows <= least)
        equal = rows == least
        room = count - np.count_nonzero(larger, axis=-1, keepdims=True)
        chosen = larger | (equal & (np.cumsum(equal, axis=-1, dtype=np.int64) <= room))
        if np.count_nonzero(chosen) != wanted:
            return None
    return np.nonzero(chosen)[-1].reshape(*rows.shape[:-1], count)
