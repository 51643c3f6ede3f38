"""Selection and replacement of elements by indices or by a mask.

Indices have any integer dtype; negative indices and indices beyond the axis are refused. Several
updates of one element take effect in the order of the indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.tensors import Shape, TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    ArraySpec,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
)
from burn_remote_server.backends.array.core.scalars import scalar_array
from burn_remote_server.backends.interface import ElementwiseCall

__all__ = ["BaseIndexing", "BaseMasking"]


_POSITION: Any = np.dtype(np.intp)


class BaseIndexing(KernelFamily):
    """Indexing of tensors of any dtype. Bools are added with "or" and multiplied with "and"."""

    family = "Base"
    low_precision = frozenset({"Select", "Gather", "GatherNd"})

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Select": self.select,
            "SelectAssign": self.select_assign,
            "Gather": self.gather,
            "Scatter": self.scatter,
            "GatherNd": self.gather_nd,
            "ScatterNd": self.scatter_nd,
        }

    def select(self, tensor: Array, indices: Array, *, dim: int, out: TensorSpec) -> Array:
        """Return the slices along axis ``dim`` that the indices name."""
        chosen = self._checked(indices, tensor.shape, dim)
        if tensor.flags.c_contiguous:
            return self.xp.take(tensor, chosen, axis=dim)
        # ``take`` would first copy a whole strided tensor.
        return tensor[(*(slice(None),) * dim, chosen)]

    def select_assign(
        self,
        tensor: Array,
        indices: Array,
        value: Array,
        *,
        dim: int,
        update: str,
        out: TensorSpec,
    ) -> Array:
        """Return the tensor with the indexed slices along axis ``dim`` updated by ``value``."""
        chosen = self._checked(indices, tensor.shape, dim)
        along = chosen.reshape((-1,) + (1,) * (tensor.ndim - dim - 1))
        positions = self._positions_along(tensor.shape, value.shape, dim, along)
        return self._updated(tensor, positions, value, update)

    def gather(self, tensor: Array, indices: Array, *, dim: int, out: TensorSpec) -> Array:
        """Return the element at each index along axis ``dim``: NumPy's ``take_along_axis``."""
        chosen = self._checked(indices, tensor.shape, dim)
        lines = tensor[
            tuple(
                slice(None) if axis == dim else slice(size)
                for axis, size in enumerate(indices.shape)
            )
        ]
        return self.xp.take_along_axis(lines, chosen, axis=dim)

    def scatter(
        self,
        tensor: Array,
        indices: Array,
        value: Array,
        *,
        dim: int,
        update: str,
        out: TensorSpec,
    ) -> Array:
        """Return the tensor with its elements at ``indices`` along an axis updated."""
        chosen = self._checked(indices, tensor.shape, dim)
        positions = self._positions_along(tensor.shape, indices.shape, dim, chosen)
        return self._updated(tensor, positions, value, update)

    def gather_nd(self, data: Array, indices: Array, *, out: TensorSpec) -> Array:
        """Return the element or slice at each row of coordinates."""
        depth = indices.shape[-1]
        parts = data.reshape((math.prod(data.shape[:depth]), *data.shape[depth:]))
        return self.xp.take(parts, self._rows(data.shape, indices), axis=0)

    def scatter_nd(
        self, data: Array, indices: Array, values: Array, *, reduction: str, out: TensorSpec
    ) -> Array:
        """Return the data with the element or slice at each row of coordinates updated."""
        depth = indices.shape[-1]
        size = math.prod(data.shape[depth:])
        rows = self._rows(data.shape, indices).reshape(-1, 1)
        positions = rows * size + self.xp.arange(size, dtype=_POSITION)
        return self._updated(data, positions.reshape(values.shape), values, reduction)

    # -- positions ----------------------------------------------------------------------------

    def _checked(self, indices: Array, shape: Shape, axis: int) -> Array:
        """Return indices as positions along an axis. Raises ``ShapeMismatch`` if out of range."""
        xp, size = self.xp, shape[axis]
        if indices.size:
            # Viewed as unsigned, a negative index is too large: one comparison finds both errors.
            unsigned = indices.view(np.dtype(f"u{indices.dtype.itemsize}"))
            if int(xp.maximum.reduce(unsigned, axis=None)) >= size:
                low, high = int(xp.min(indices)), int(xp.max(indices))
                raise _beyond(low if low < 0 else high, shape, axis)
        return indices.astype(_POSITION, copy=False)

    def _rows(self, shape: Shape, indices: Array) -> Array:
        """Return the flat positions of coordinates in the leading axes of a shape."""
        rows = self.xp.zeros(indices.shape[:-1], _POSITION)
        for axis in range(indices.shape[-1]):
            rows = rows * shape[axis] + self._checked(indices[..., axis], shape, axis)
        return rows

    def _positions_along(self, shape: Shape, taken: Shape, dim: int, chosen: Array) -> Array:
        """Return the flat positions, in a C-ordered array, of elements indexed along one axis.

        ``taken`` is the shape of the indices; in all other axes, positions count from 0.
        """
        positions: Array = 0
        stride = 1
        for axis in reversed(range(len(shape))):
            if axis == dim:
                offsets = chosen * stride
            else:
                offsets = self.xp.arange(taken[axis], dtype=_POSITION) * stride
                offsets = offsets.reshape((-1,) + (1,) * (len(shape) - axis - 1))
            positions = positions + offsets
            stride *= shape[axis]
        return positions

    # -- updates ------------------------------------------------------------------------------

    def _updated(self, tensor: Array, positions: Array, values: Array, update: str) -> Array:
        result = self.xp.array(tensor, order="C")
        flat_positions = self.xp.broadcast_to(positions, values.shape).reshape(-1)
        self._update(result.reshape(-1), flat_positions, values.reshape(-1), update)
        return result

    def _update(self, target: Array, positions: Array, values: Array, update: str) -> None:
        """Update elements of a one-dimensional array in order; the kernel owns the array."""
        if update == "Assign":
            target[positions] = values
            return
        xp = self.xp
        functions: dict[str, Callable[..., Any]] = {
            "Add": xp.add.at,
            "Mul": xp.multiply.at,
            "Min": xp.minimum.at,
            "Max": xp.maximum.at,
        }
        functions[update](target, positions, values)


def _beyond(index: int, shape: Shape, axis: int) -> ShapeMismatch:
    extent = f"has the indices 0 to {shape[axis] - 1}" if shape[axis] else "is empty"
    return ShapeMismatch(f"index {index} is out of range: axis {axis} of {list(shape)} {extent}")


class BaseMasking(KernelFamily):
    """Masking of tensors of any dtype, with broadcasting."""

    family = "Base"
    is_elementwise = True
    low_precision = frozenset({"MaskWhere", "MaskFill"})

    def table(self) -> Mapping[str, Kernel]:
        return {
            "MaskWhere": self.mask_where,
            "MaskFill": Prepared(
                self.prepare_mask_fill, self.prepare_mask_fill_into, self.mask_fill_calls
            ),
        }

    def mask_where(self, tensor: Array, mask: Array, value: Array, *, out: TensorSpec) -> Array:
        """Return the elements of ``value`` where the mask is true, of ``tensor`` elsewhere."""
        return self.xp.where(mask, value, tensor)

    def prepare_mask_fill(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return ``run(tensor, mask)``: the value where the mask is true, else the tensor."""
        where = self.xp.where
        number = scalar_array(self.xp, parameters["value"], first.dtype)

        def run(tensor: Array, mask: Array) -> Array:
            return where(mask, number, tensor)

        return run

    def prepare_mask_fill_into(
        self, first: ArraySpec, out: TensorSpec, parameters: Parameters
    ) -> Run | None:
        """Return ``run(tensor, mask, out=…)``; ``out`` may be the tensor or the mask."""
        if first.dtype.kind == "b":
            # Only bool tensors can be written over their mask. A single function of both inputs
            # reads the mask first; copying the tensor into ``out`` first would destroy it.
            function: Run = self.xp.logical_or if parameters["value"] else self.xp.greater
            return function
        if first.shape != out.shape:
            return None
        number = scalar_array(self.xp, parameters["value"], first.dtype)

        def run(tensor: Array, mask: Array, *, out: Array) -> Array:
            return self._fill_into(tensor, mask, number, out=out)

        return run

    def mask_fill_calls(
        self, first: ArraySpec, parameters: Parameters
    ) -> tuple[ElementwiseCall, ...]:
        """Return the call with the value as its constant; nothing for bools."""
        if first.dtype.kind == "b":
            return ()
        number = scalar_array(self.xp, parameters["value"], first.dtype)
        return (ElementwiseCall(self._fill, (number,), self._fill_into),)

    def _fill(self, tensor: Array, mask: Array, number: Array) -> Array:
        return self.xp.where(mask, number, tensor)

    def _fill_into(self, tensor: Array, mask: Array, number: Array, *, out: Array) -> Array:
        if out is not tensor:
            self.xp.copyto(out, tensor)
        self.xp.copyto(out, number, where=mask)
        return out
