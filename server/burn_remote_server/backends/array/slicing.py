"""Which part of a tensor do slices take, and how is that part replaced?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from burn_remote_protocol.operations.rules.movement import slice_ranges
from burn_remote_protocol.tensors import Shape, Slice, TensorSpec
from burn_remote_server.backends.array.kernels import Array, Kernel, KernelFamily

__all__ = ["BaseSlicing"]

# A slice is a view and keeps all of its tensor's memory alive, of which the session's quota knows
# nothing once the tensor is dropped. Larger: a session can hold so many times its quota. Smaller:
# more slices are copied; the thirds of a joint projection in attention should not be.
MAX_MEMORY_PER_VIEW: Final = 4


class BaseSlicing(KernelFamily):
    """Ranges of the leading axes, of tensors of any dtype."""

    family = "Base"
    low_precision = frozenset({"Slice", "SliceAssign"})

    def table(self) -> Mapping[str, Kernel]:
        return {"Slice": self.slice, "SliceAssign": self.slice_assign}

    def slice(self, tensor: Array, *, ranges: tuple[Slice, ...], out: TensorSpec) -> Array:
        """Return the elements that the ranges take, each in its order."""
        part = tensor[_index(tensor.shape, ranges)]
        whole = tensor if tensor.base is None else tensor.base
        if getattr(whole, "nbytes", tensor.nbytes) > MAX_MEMORY_PER_VIEW * part.nbytes:
            return part.copy()
        return part

    def slice_assign(
        self, tensor: Array, value: Array, *, ranges: tuple[Slice, ...], out: TensorSpec
    ) -> Array:
        """Return the tensor with the value in the place of what the ranges take."""
        result = self.xp.array(tensor, order="C")
        result[_index(tensor.shape, ranges)] = value
        return result


def _index(shape: Shape, ranges: tuple[Slice, ...]) -> tuple[Any, ...]:
    return tuple(
        # What stops before the first element has no stop: -1 would be the last one.
        slice(taken.start, None if taken.stop < 0 else taken.stop, taken.step)
        for taken in slice_ranges(shape, ranges)
    )
