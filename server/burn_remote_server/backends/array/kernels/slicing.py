"""Slices of a tensor, and their replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from burn_remote_server.backends.array.kernels.views import without_much_more

__all__ = ["BaseSlicing"]


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
