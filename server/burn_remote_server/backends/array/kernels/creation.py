"""Tensors of zeros, of ones and of a given number."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np

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

# Filled arrays of up to this size are copies of one that is made once. Filling another one takes
# twice as long. A session may have thousands of them.
COPIED_BYTES: Final = 1024


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
        if self.xp is np and out.nbytes <= COPIED_BYTES:
            filled: Array = full(shape, number, dtype)
            return filled.copy  # type: ignore[no-any-return]

        def run() -> Array:
            return full(shape, number, dtype)

        return run
