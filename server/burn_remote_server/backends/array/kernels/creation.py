"""Tensors of zeros, of ones and of a given number."""

from __future__ import annotations

from collections.abc import Mapping

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
        return {"Empty": self.zeros, "Ones": self.ones, "Zeros": self.zeros}

    def zeros(self, *, out: TensorSpec) -> Array:
        """Return zeros. Also used for ``Empty``, so that it does not reveal old memory contents."""
        return self.xp.zeros(out.shape, array_dtype(out.dtype))

    def ones(self, *, out: TensorSpec) -> Array:
        """Return ones."""
        return self.xp.ones(out.shape, array_dtype(out.dtype))


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
