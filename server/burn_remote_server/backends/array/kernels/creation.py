"""Tensors of zeros, of ones and of a given number."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
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

__all__ = ["BaseCreation", "NumericCreation"]


class BaseCreation(KernelFamily):
    """Tensors of zeros or ones, of any dtype."""

    family = "Base"

    def table(self) -> Mapping[str, Kernel]:
        return {
            # Zeros too, so that it does not reveal old memory contents.
            "Empty": Prepared(self.prepare_zeros),
            "Ones": Prepared(self.prepare_ones),
            "Zeros": Prepared(self.prepare_zeros),
        }

    def prepare_zeros(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel that returns zeros."""
        return partial(self.xp.zeros, out.shape, array_dtype(out.dtype))

    def prepare_ones(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel that returns ones; ``ones`` of NumPy takes three times as long."""
        empty, shape, dtype = self.xp.empty, out.shape, array_dtype(out.dtype)

        def run() -> Array:
            result = empty(shape, dtype)
            result.fill(1)
            return result

        return run


class NumericCreation(KernelFamily):
    """Tensors filled with a number."""

    family = "Numeric"

    def table(self) -> Mapping[str, Kernel]:
        return {"Full": Prepared(self.prepare_full)}

    def prepare_full(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel that fills with ``value``, converted to the tensor's dtype."""
        full, shape, dtype = self.xp.full, out.shape, array_dtype(out.dtype)
        number = scalar_array(self.xp, parameters["value"], dtype)

        def run() -> Array:
            return full(shape, number, dtype)

        return run
