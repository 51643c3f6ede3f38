"""Operations that move elements without looking at them.

What can be a view of the input is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from burn_remote_protocol.operations.rules.movement_rules import slice_ranges
from burn_remote_protocol.tensors import Shape, Slice, TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
    Seen,
)

__all__ = ["BaseMovement", "BaseSlicing", "without_much_more"]


class BaseMovement(KernelFamily):
    """Tensors of any dtype."""

    family = "Base"
    low_precision = frozenset(
        {"Reshape", "SwapDims", "Permute", "Flip", "Expand", "Unfold", "RepeatDim", "Cat"}
    )

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Reshape": Prepared(self.prepare_reshape),
            "SwapDims": self.swap_dims,
            "Permute": self.permute,
            "Flip": self.flip,
            "Expand": self.expand,
            "Unfold": self.unfold,
            "RepeatDim": self.repeat_dim,
            "Cat": self.cat,
        }

    def prepare_reshape(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run:
        """Give the elements another shape."""
        shape = out.shape

        def run(input: Array) -> Array:
            return input.reshape(shape)

        return run

    def swap_dims(self, input: Array, *, dim1: int, dim2: int, out: TensorSpec) -> Array:
        """Exchange two axes."""
        return input.swapaxes(dim1, dim2)

    def permute(self, input: Array, *, axes: tuple[int, ...], out: TensorSpec) -> Array:
        """Put the axes in another order."""
        return input.transpose(axes)

    def flip(self, input: Array, *, axes: tuple[int, ...], out: TensorSpec) -> Array:
        """Turn axes around."""
        return input[
            tuple(
                slice(None, None, -1) if axis in axes else slice(None) for axis in range(input.ndim)
            )
        ]

    def expand(self, input: Array, *, out: TensorSpec) -> Array:
        """Repeat axes of size 1, and new ones in front, as often as the shape says."""
        return self.xp.broadcast_to(input, out.shape)

    def unfold(self, input: Array, *, dim: int, size: int, step: int, out: TensorSpec) -> Array:
        """Return all windows of an axis: ``[…, windows, …, size]``; they share their elements."""
        strides = list(input.strides)
        strides.append(strides[dim])
        strides[dim] *= step
        windows = self.xp.lib.stride_tricks.as_strided(input, out.shape, strides)
        return without_much_more(windows)

    def repeat_dim(self, tensor: Array, *, dim: int, times: int, out: TensorSpec) -> Array:
        """Put an axis one after the other so many times."""
        shape = tensor.shape
        apart = (*shape[:dim], times, *shape[dim:])
        repeated = self.xp.broadcast_to(self.xp.expand_dims(tensor, dim), apart)
        return repeated.reshape(out.shape)

    def cat(self, tensors: list[Array], *, dim: int, out: TensorSpec) -> Array:
        """Put tensors one after the other along an axis."""
        return self.xp.concatenate(tensors, axis=dim)


class BaseSlicing(KernelFamily):
    """Ranges of the leading axes, of tensors of any dtype."""

    family = "Base"
    low_precision = frozenset({"Slice", "SliceAssign"})

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Slice": Prepared(self.prepare_slice),
            "SliceAssign": Prepared(self.prepare_slice_assign),
        }

    def prepare_slice(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run:
        """Return the elements that the ranges take, each in its order."""
        index = _index(first.shape, parameters["ranges"])

        def run(tensor: Array) -> Array:
            return without_much_more(tensor[index])

        return run

    def prepare_slice_assign(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run:
        """Return the tensor with the value in the place of what the ranges take."""
        index = _index(first.shape, parameters["ranges"])
        copied = self.xp.array

        def run(tensor: Array, value: Array) -> Array:
            result = copied(tensor, order="C")
            result[index] = value
            return result

        return run


def _index(shape: Shape, ranges: tuple[Slice, ...]) -> tuple[Any, ...]:
    return tuple([_as_slice(taken) for taken in slice_ranges(shape, ranges)])


def _as_slice(taken: range) -> slice:
    if not taken:
        return slice(0, 0)
    # What stops before the first element has no stop: -1 would be the last one.
    return slice(taken.start, None if taken.stop < 0 else taken.stop, taken.step)


# A view keeps all of its tensor's memory alive, and the session's quota counts that once the tensor
# is dropped. Larger: programs that keep small parts of large tensors need more memory. Smaller:
# more parts are copied; the thirds of a joint projection in attention should not be.
MAX_MEMORY_PER_VIEW: Final = 4


def without_much_more(part: Array) -> Array:
    """Return a part of a tensor as a view, or a copy where the view would keep too much alive."""
    shown = kept = part.nbytes
    base = part.base
    while base is not None:
        # The last of the bases holds the memory; those between, and bytes, may not know their size.
        kept = getattr(base, "nbytes", kept)
        base = getattr(base, "base", None)
    return part.copy() if kept > MAX_MEMORY_PER_VIEW * shown else part
