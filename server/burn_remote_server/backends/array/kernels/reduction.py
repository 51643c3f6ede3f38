"""Reductions of all elements or along an axis, and running reductions.

A reduction of all elements has the shape ``[1]``; a reduction along an axis keeps that axis with
size 1. An extreme of elements that include NaN is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    ArraySpec,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
)
from burn_remote_server.backends.array.core.row_extremes import row_extremes
from burn_remote_server.backends.array.core.scalars import scalar_array
from burn_remote_server.backends.array.kernels.arithmetic import truncated_quotient

__all__ = ["BaseReduction", "NumericAccumulation", "NumericReduction"]


class NumericReduction(KernelFamily):
    """Sums, products, means and extremes of floating-point numbers and integers.

    Sums and products of integers keep the dtype and wrap around; means are rounded toward zero.
    The mean of no integers raises ``UsageError``. ``accumulator_len`` is Burn's hint for kernels
    that reduce in parts; it is ignored here.
    """

    family = "Numeric"
    row_reductions = frozenset({"SumDim", "ProdDim", "MeanDim", "MaxDim", "MinDim", "MaxAbsDim"})

    def __init__(self, xp: Any) -> None:
        super().__init__(xp)
        # Not ``xp.sum`` etc., which add a microsecond to each call of these functions.
        self._sum: Run = xp.add.reduce
        self._prod: Run = xp.multiply.reduce
        self._max: Run = xp.maximum.reduce
        self._min: Run = xp.minimum.reduce

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Sum": self.sum,
            "SumDim": Prepared(partial(self._prepare_along, self._sum)),
            "SumDims": self.sum_dims,
            "Prod": self.prod,
            "ProdDim": Prepared(partial(self._prepare_along, self._prod)),
            "Mean": Prepared(self.prepare_mean),
            "MeanDim": self.mean_dim,
            "Max": self.max,
            "MaxDim": Prepared(self.prepare_max_dim),
            "Min": self.min,
            "MinDim": Prepared(self.prepare_min_dim),
            "MaxAbs": self.max_abs,
            "MaxAbsDim": self.max_abs_dim,
        }

    def sum(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the sum of all elements."""
        return _vector(self._sum(input, axis=None, dtype=input.dtype))

    def _prepare_along(
        self, reduce: Run, first: ArraySpec, out: TensorSpec, parameters: Parameters
    ) -> Run:
        """Return a kernel of the sums, or the products, along an axis."""
        # A function in Python around it would take 0.5 µs.
        return partial(reduce, axis=parameters["axis"], dtype=first.dtype, keepdims=True)

    def sum_dims(self, input: Array, *, axes: tuple[int, ...], out: TensorSpec) -> Array:
        """Return the sums along several axes, one axis after the other."""
        for axis in axes:
            input = self._sum(input, axis=axis, dtype=input.dtype, keepdims=True)
        return input

    def prod(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the product of all elements."""
        return _vector(self._prod(input, axis=None, dtype=input.dtype))

    def prepare_mean(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel of the mean of all elements; no floating-point numbers give NaN."""
        xp, reduce, dtype = self.xp, self._sum, first.dtype
        if xp is not np or dtype.kind != "f":
            return self._mean_of_all
        # An array, because NumPy takes 0.5 µs to convert a scalar in each call.
        count = scalar_array(xp, math.prod(first.shape), dtype)

        def run(tensor: Array) -> Array:
            sums = reduce(tensor, axis=None, dtype=dtype, keepdims=True)
            # Reshaped before the division, so that the result is no view.
            return xp.true_divide(sums.reshape(1), count)

        return run

    def _mean_of_all(self, tensor: Array) -> Array:
        return _vector(self._mean(tensor, None))

    def mean_dim(self, input: Array, *, axis: int, accumulator_len: int, out: TensorSpec) -> Array:
        """Return the means along an axis; those of no floating-point numbers are NaN."""
        return self._mean(input, axis)

    def _mean(self, tensor: Array, axis: int | None) -> Array:
        xp, dtype = self.xp, tensor.dtype
        count = tensor.size if axis is None else tensor.shape[axis]
        if dtype.kind not in "iu":
            # NumPy's own ``mean`` warns about empty tensors.
            sums = self._sum(tensor, axis=axis, dtype=dtype, keepdims=True)
            return xp.true_divide(sums, dtype.type(count))
        if count == 0:
            raise UsageError("the mean of no integers is undefined")
        # Sum in 64 bits: sums of narrow integers would wrap around.
        wide = np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
        sums = self._sum(tensor, axis=axis, dtype=wide, keepdims=True)
        return truncated_quotient(xp, sums, xp.asarray(count, dtype=wide)).astype(dtype)

    def max(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the largest element."""
        return _vector(self._extreme(self._max, input, None))

    def prepare_max_dim(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel of the largest elements along an axis."""
        found = row_extremes(self.xp, *first)
        by_row = None if found is None else found.largest
        return self._prepare_extreme(first, parameters["axis"], self._max, by_row)

    def min(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the smallest element."""
        return _vector(self._extreme(self._min, input, None))

    def prepare_min_dim(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel of the smallest elements along an axis."""
        found = row_extremes(self.xp, *first)
        by_row = None if found is None else found.smallest
        return self._prepare_extreme(first, parameters["axis"], self._min, by_row)

    def _prepare_extreme(self, first: ArraySpec, axis: int, reduce: Run, by_row: Run | None) -> Run:
        """Return the kernel of an extreme; ``by_row`` is a faster function for contiguous rows."""
        extreme = self._extreme
        if axis != len(first.shape) - 1 or by_row is None:
            return lambda tensor: extreme(reduce, tensor, axis)

        def run(tensor: Array) -> Array:
            if tensor.flags.c_contiguous and tensor.size:
                return by_row(tensor)
            return extreme(reduce, tensor, axis)

        return run

    def max_abs(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the largest absolute value."""
        return _vector(self._extreme(self._max, self.xp.absolute(input), None))

    def max_abs_dim(
        self, input: Array, *, axis: int, accumulator_len: int, out: TensorSpec
    ) -> Array:
        """Return the largest absolute values along an axis."""
        return self._extreme(self._max, self.xp.absolute(input), axis)

    def _extreme(self, reduce: Any, tensor: Array, axis: int | None) -> Array:
        if (tensor.size if axis is None else tensor.shape[axis]) == 0:
            shape = list(tensor.shape)
            place = f"{shape}" if axis is None else f"axis {axis} of {shape}"
            raise ShapeMismatch(f"{place} is empty and has no largest or smallest element")
        return reduce(tensor, axis=axis, keepdims=True)


class BaseReduction(KernelFamily):
    """Whether all or any elements are nonzero; NaN is nonzero."""

    family = "Base"

    def table(self) -> Mapping[str, Kernel]:
        return {
            "All": self.all,
            "Any": self.any,
            "AllDim": self.all_dim,
            "AnyDim": self.any_dim,
        }

    def all(self, input: Array, *, out: TensorSpec) -> Array:
        """Return whether all elements are nonzero; true if there are none."""
        return _vector(self.xp.all(_truth(input)))

    def any(self, input: Array, *, out: TensorSpec) -> Array:
        """Return whether any element is nonzero; false if there are none."""
        return _vector(self.xp.any(_truth(input)))

    def all_dim(self, input: Array, *, axis: int, accumulator_len: int, out: TensorSpec) -> Array:
        """Return whether all elements along an axis are nonzero."""
        return self.xp.all(_truth(input), axis=axis, keepdims=True)

    def any_dim(self, input: Array, *, axis: int, accumulator_len: int, out: TensorSpec) -> Array:
        """Return whether any element along an axis is nonzero."""
        return self.xp.any(_truth(input), axis=axis, keepdims=True)


def _truth(input: Array) -> Array:
    # Comparing floats first takes a fifth of the time of ``all`` on them.
    return input if input.dtype.kind == "b" else input != 0


def _vector(total: Array) -> Array:
    """Return the result of a whole reduction in the shape ``[1]``."""
    # Reshaping a NumPy scalar takes twice as long, and gives a view of a second array.
    return np.array((total,)) if isinstance(total, np.generic) else total.reshape(1)


class NumericAccumulation(KernelFamily):
    """Running sums, products and extremes. Integers wrap around; elements after a NaN are NaN."""

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
