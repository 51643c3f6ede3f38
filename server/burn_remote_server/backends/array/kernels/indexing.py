"""Selection and replacement of elements by indices or by a mask.

Indices have any integer dtype; negative indices and indices beyond the axis are refused. Several
updates of one element take effect in the order of the indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

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
_SIGNED: Final[Mapping[int, Any]] = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}
_UNSIGNED: Final[Mapping[int, Any]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}

# The functions of updates other than "Assign".
_UPDATES: Final = {"Add": "add", "Mul": "multiply", "Min": "minimum", "Max": "maximum"}

# Most indices for which a plan keeps the positions of the other axes, in up to 8 KiB. For larger
# operations, making them takes a small part of the time.
_MAX_KEPT: Final = 1024

# Smallest tensor whose masked elements are set to 0 by clearing their bits. With a random mask,
# this takes 6 µs for 8 Ki elements; ``where`` takes 24, because the processor cannot predict its
# branches. With a mask of long runs, ``where`` takes 4 µs.
_MIN_ERASED: Final = 4096
# Elements at a time, so that the masks of their bits stay in the processor's cache.
_ERASED_AT_ONCE: Final = 2**15


class BaseIndexing(KernelFamily):
    """Indexing of tensors of any dtype. Bools are added with "or" and multiplied with "and"."""

    family = "Base"
    low_precision = frozenset({"Select", "Gather", "GatherNd"})

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Select": self.select,
            "SelectAssign": self.select_assign,
            "Gather": Prepared(self.prepare_gather),
            "Scatter": Prepared(self.prepare_scatter),
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

    def prepare_gather(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return ``run(tensor, indices)``: the element at each index along axis ``dim``.

        This is NumPy's ``take_along_axis``, which took 20 µs longer within a training step.
        """
        dim = parameters["dim"]
        others = self._kept(out.shape, lambda: self._axes(out.shape))

        def run(tensor: Array, indices: Array) -> Array:
            chosen = self._checked(indices, tensor.shape, dim)
            axes = others()
            return tensor[(*axes[:dim], chosen, *axes[dim + 1 :])]

        return run

    def prepare_scatter(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return ``run(tensor, indices, value)``: the tensor with elements along an axis updated.

        The elements are those at the indices along axis ``dim``.
        """
        dim, update = parameters["dim"], parameters["update"]
        stride = math.prod(first.shape[dim + 1 :])
        is_last = stride == 1
        # The indices have the same shape in all calls of a signature; it is known at the first one.
        offsets: dict[Shape, Callable[[], Array]] = {}

        def run(tensor: Array, indices: Array, value: Array) -> Array:
            chosen = self._checked(indices, tensor.shape, dim)
            taken = indices.shape
            others = offsets.get(taken)
            if others is None:
                others = self._kept(taken, lambda: self._offsets(first.shape, taken, dim))
                offsets[taken] = others
            places = chosen if is_last else chosen * stride
            return self._updated(tensor, places + others(), value, update)

        return run

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
            unsigned = indices.view(_UNSIGNED[indices.dtype.itemsize])
            if _largest(xp, unsigned) >= size:
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
        return chosen * math.prod(shape[dim + 1 :]) + self._offsets(shape, taken, dim)

    def _offsets(self, shape: Shape, taken: Shape, dim: int) -> Array:
        """Return the part of the flat positions that the axes other than ``dim`` contribute."""
        offsets: Array = 0
        stride = 1
        for axis in reversed(range(len(shape))):
            if axis != dim:
                along = self.xp.arange(taken[axis], dtype=_POSITION) * stride
                offsets = offsets + along.reshape((-1,) + (1,) * (len(shape) - axis - 1))
            stride *= shape[axis]
        return offsets

    def _axes(self, shape: Shape) -> list[Array]:
        """Return the indices of each axis, which broadcast to the shape."""
        return [
            self.xp.arange(size, dtype=_POSITION).reshape((-1,) + (1,) * (len(shape) - axis - 1))
            for axis, size in enumerate(shape)
        ]

    def _kept(self, shape: Shape, made: Callable[[], Any]) -> Callable[[], Any]:
        """Return a function that returns a table: a kept one if it is small, else a new one."""
        if self.xp is not np or math.prod(shape) > _MAX_KEPT:
            return made
        table = made()
        return lambda: table

    # -- updates ------------------------------------------------------------------------------

    def _updated(self, tensor: Array, positions: Array, values: Array, update: str) -> Array:
        result = self.xp.array(tensor, order="C")
        if positions.shape != values.shape:
            positions = self.xp.broadcast_to(positions, values.shape)
        self._update(result.reshape(-1), positions.reshape(-1), values.reshape(-1), update)
        return result

    def _update(self, target: Array, positions: Array, values: Array, update: str) -> None:
        """Update elements of a one-dimensional array in order; the kernel owns the array."""
        if update == "Assign":
            target[positions] = values
            return
        getattr(self.xp, _UPDATES[update]).at(target, positions, values)


def _largest(xp: Any, numbers: Array) -> int:
    """Return the largest of some unsigned integers."""
    if xp is np:
        # For few numbers, NumPy's maximum takes 1 µs, and finding its place 0.3 µs.
        return int(numbers.item(numbers.argmax()))
    return int(xp.maximum.reduce(numbers, axis=None))


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
                self.prepare_mask_fill,
                self.prepare_mask_fill_into,
                self.mask_fill_calls,
                self.numbered_mask_fill,
            ),
        }

    def mask_where(self, tensor: Array, mask: Array, value: Array, *, out: TensorSpec) -> Array:
        """Return the elements of ``value`` where the mask is true, of ``tensor`` elsewhere."""
        return self.xp.where(mask, value, tensor)

    def prepare_mask_fill(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return ``run(tensor, mask)``: the value where the mask is true, else the tensor."""
        number = scalar_array(self.xp, parameters["value"], first.dtype)
        fill, _ = self._functions(number)

        def run(tensor: Array, mask: Array) -> Array:
            return fill(tensor, mask, number)

        return run

    def prepare_mask_fill_into(
        self, first: ArraySpec, out: TensorSpec, parameters: Parameters
    ) -> Run | None:
        """Return ``run(tensor, mask, out=…)``; ``out`` may be the tensor or the mask."""
        if first.dtype.kind == "b":
            # Only a bool result can be written over the mask. A single function of both inputs
            # reads the mask before it writes; copying the tensor into ``out`` would destroy the
            # mask.
            function: Run = self.xp.logical_or if parameters["value"] else self.xp.greater
            return function
        if first.shape != out.shape:
            return None
        number = scalar_array(self.xp, parameters["value"], first.dtype)
        _, fill_into = self._functions(number)

        def run(tensor: Array, mask: Array, *, out: Array) -> Array:
            return fill_into(tensor, mask, number, out=out)

        return run

    def mask_fill_calls(
        self, first: ArraySpec, parameters: Parameters
    ) -> tuple[ElementwiseCall, ...]:
        """Return the call with the value as its constant; nothing for bools."""
        if first.dtype.kind == "b":
            return ()
        number = scalar_array(self.xp, parameters["value"], first.dtype)
        fill, fill_into = self._functions(number)
        return (ElementwiseCall(fill, (number,), fill_into),)

    def numbered_mask_fill(
        self, first: ArraySpec, parameters: Parameters
    ) -> ElementwiseCall | None:
        """Return the call whose constant may be any value; nothing for bools and for GPUs."""
        if self.xp is not np or first.dtype.kind == "b":
            return None
        number = scalar_array(np, parameters["value"], first.dtype)
        return ElementwiseCall(self._fill_any, (number,), self._fill_any_into)

    def filling(self, dtype: Any) -> Run:
        """Return ``fill(tensor, mask, zero)``: 0 where the mask is true, else the tensor."""
        fill, _ = self._functions(scalar_array(self.xp, 0, dtype))
        return fill

    def _functions(self, number: Array) -> tuple[Run, Run]:
        """Return two functions that fill with a number: into a new array, and into ``out``."""
        # No integer is as wide as complex128.
        has_bits = number.dtype.kind != "b" and number.dtype.itemsize in _SIGNED
        if self.xp is np and has_bits and not any(number.tobytes()):
            return self._erase, self._erase_into
        return self._fill, self._fill_into

    def _fill_any(self, tensor: Array, mask: Array, number: Array) -> Array:
        fill, _ = self._functions(number)
        return fill(tensor, mask, number)

    def _fill_any_into(self, tensor: Array, mask: Array, number: Array, *, out: Array) -> Array:
        _, fill_into = self._functions(number)
        return fill_into(tensor, mask, number, out=out)

    def _erase(self, tensor: Array, mask: Array, number: Array) -> Array:
        if not _is_erasable(tensor, mask):
            return self._fill(tensor, mask, number)
        return _erased(tensor, mask, np.empty_like(tensor))

    def _erase_into(self, tensor: Array, mask: Array, number: Array, *, out: Array) -> Array:
        if not _is_erasable(tensor, mask) or not out.flags.c_contiguous:
            return self._fill_into(tensor, mask, number, out=out)
        return _erased(tensor, mask, out)

    def _fill(self, tensor: Array, mask: Array, number: Array) -> Array:
        return self.xp.where(mask, number, tensor)

    def _fill_into(self, tensor: Array, mask: Array, number: Array, *, out: Array) -> Array:
        if out is not tensor:
            self.xp.copyto(out, tensor)
        self.xp.copyto(out, number, where=mask)
        return out


def _is_erasable(tensor: Array, mask: Array) -> bool:
    return (
        tensor.size >= _MIN_ERASED
        and tensor.shape == mask.shape
        and bool(tensor.flags.c_contiguous and mask.flags.c_contiguous)
    )


def _erased(tensor: Array, mask: Array, out: Array) -> Array:
    """Write the tensor to ``out``, with all bits 0 where the mask is true; return ``out``."""
    bits = _SIGNED[tensor.dtype.itemsize]
    if tensor.size <= _ERASED_AT_ONCE:
        np.multiply(tensor.view(bits), np.logical_not(mask).astype(bits), out=out.view(bits))
        return out
    source, target = tensor.reshape(-1).view(bits), out.reshape(-1).view(bits)
    hidden = mask.reshape(-1)
    for start in range(0, tensor.size, _ERASED_AT_ONCE):
        part = slice(start, start + _ERASED_AT_ONCE)
        np.multiply(source[part], np.logical_not(hidden[part]).astype(bits), out=target[part])
    return out
