"""Kernels that choose between elements by a mask."""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_protocol.tensors import TensorSpec
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

__all__ = ["BaseMasking"]


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
