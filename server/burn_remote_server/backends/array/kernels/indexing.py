"""Selection and replacement of elements by indices.

Indices may have any integer dtype. None may be negative or beyond its axis. Several updates of one
element happen in the order of the indices.
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
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
    Seen,
)
from burn_remote_server.backends.array.core.scalars import scalar_array

__all__ = ["BaseIndexing", "BaseMasking"]


_POSITION: Any = np.dtype(np.intp)


class BaseIndexing(KernelFamily):
    """Tensors of any dtype. Truth values are added by "or" and multiplied by "and"."""

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
        """Return the parts of an axis that the indices name."""
        chosen = self._checked(indices, tensor.shape, dim)
        if tensor.flags.c_contiguous:
            return self.xp.take(tensor, chosen, axis=dim)
        # ``take`` copies the whole of a strided tensor first.
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
        """Return the tensor with the parts of an axis that the indices name updated by others."""
        chosen = self._checked(indices, tensor.shape, dim)
        along = chosen.reshape((-1,) + (1,) * (tensor.ndim - dim - 1))
        positions = self._positions_along(tensor.shape, value.shape, dim, along)
        return self._updated(tensor, positions, value, update)

    def gather(self, tensor: Array, indices: Array, *, dim: int, out: TensorSpec) -> Array:
        """Return for each index the element of its line along an axis."""
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
        """Return the tensor with the element that each index names in its line updated."""
        chosen = self._checked(indices, tensor.shape, dim)
        positions = self._positions_along(tensor.shape, indices.shape, dim, chosen)
        return self._updated(tensor, positions, value, update)

    def gather_nd(self, data: Array, indices: Array, *, out: TensorSpec) -> Array:
        """Return for each row of coordinates the element or part that they lead to."""
        depth = indices.shape[-1]
        parts = data.reshape((math.prod(data.shape[:depth]), *data.shape[depth:]))
        return self.xp.take(parts, self._rows(data.shape, indices), axis=0)

    def scatter_nd(
        self, data: Array, indices: Array, values: Array, *, reduction: str, out: TensorSpec
    ) -> Array:
        """Return the data with what each row of coordinates leads to updated."""
        depth = indices.shape[-1]
        size = math.prod(data.shape[depth:])
        rows = self._rows(data.shape, indices).reshape(-1, 1)
        positions = rows * size + self.xp.arange(size, dtype=_POSITION)
        return self._updated(data, positions.reshape(values.shape), values, reduction)

    # -- positions ----------------------------------------------------------------------------

    def _checked(self, indices: Array, shape: Shape, axis: int) -> Array:
        """Return indices as positions in an axis. Raises ``ShapeMismatch`` for one beyond it."""
        xp, size = self.xp, shape[axis]
        if indices.size:
            # Without a sign, a negative index is one far too large: one look finds both.
            unsigned = indices.view(np.dtype(f"u{indices.dtype.itemsize}"))
            if int(xp.maximum.reduce(unsigned, axis=None)) >= size:
                low, high = int(xp.min(indices)), int(xp.max(indices))
                raise _beyond(low if low < 0 else high, shape, axis)
        return indices.astype(_POSITION, copy=False)

    def _rows(self, shape: Shape, indices: Array) -> Array:
        """Return the positions to which coordinates lead in the leading axes of a shape."""
        rows = self.xp.zeros(indices.shape[:-1], _POSITION)
        for axis in range(indices.shape[-1]):
            rows = rows * shape[axis] + self._checked(indices[..., axis], shape, axis)
        return rows

    def _positions_along(self, shape: Shape, taken: Shape, dim: int, chosen: Array) -> Array:
        """Return where elements stand in a C-ordered array, given their indices in one axis.

        ``taken`` is the shape of the elements; in the other axes they count from 0.
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
        """Update elements of a one-dimensional array that is the kernel's own, in order."""
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
    extent = f"goes from 0 to {shape[axis] - 1}" if shape[axis] else "is empty"
    return ShapeMismatch(f"index {index} is not in axis {axis} of {list(shape)}, which {extent}")


class BaseMasking(KernelFamily):
    """Tensors of any dtype, with broadcasting."""

    family = "Base"
    low_precision = frozenset({"MaskWhere", "MaskFill"})

    def table(self) -> Mapping[str, Kernel]:
        return {
            "MaskWhere": self.mask_where,
            "MaskFill": Prepared(self.prepare_mask_fill, self.prepare_mask_fill_into),
        }

    def mask_where(self, tensor: Array, mask: Array, value: Array, *, out: TensorSpec) -> Array:
        """Return the elements of ``value`` where the mask is true, of ``tensor`` elsewhere."""
        return self.xp.where(mask, value, tensor)

    def prepare_mask_fill(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run:
        """Return ``run(tensor, mask)``: a number where the mask is true, the tensor elsewhere."""
        where = self.xp.where
        number = scalar_array(self.xp, parameters["value"], first.dtype)

        def run(tensor: Array, mask: Array) -> Array:
            return where(mask, number, tensor)

        return run

    def prepare_mask_fill_into(
        self, first: Seen, out: TensorSpec, parameters: Parameters
    ) -> Run | None:
        """Return ``run(tensor, mask, out=…)``; ``out`` may be the tensor or the mask."""
        if first.dtype.kind == "b":
            # Only a tensor of bools can take the memory of its mask. One function of both inputs
            # reads the mask before it writes over it; copying the tensor there first would not.
            function: Run = self.xp.logical_or if parameters["value"] else self.xp.greater
            return function
        if first.shape != out.shape:
            return None
        copyto = self.xp.copyto
        number = scalar_array(self.xp, parameters["value"], first.dtype)

        def run(tensor: Array, mask: Array, *, out: Array) -> Array:
            if out is not tensor:
                copyto(out, tensor)
            copyto(out, number, where=mask)
            return out

        return run
