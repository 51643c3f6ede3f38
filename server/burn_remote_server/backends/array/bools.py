"""How are the operations of the family Bool computed?"""

from __future__ import annotations

from typing import Any

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.dtypes import array_dtype
from burn_remote_server.backends.array.family import KernelFamily
from burn_remote_server.backends.interface import Kernel

__all__ = ["BoolKernels"]


class BoolKernels(KernelFamily):
    """Kernels on truth values."""

    def table(self) -> dict[str, Kernel]:
        return {
            "IntoFloat": self.into_number,
            "IntoInt": self.into_number,
            "Not": self.logical_not,
            "And": self.logical_and,
            "Or": self.logical_or,
        }

    def into_number(self, tensor: Any, *, out: TensorSpec) -> Any:
        return tensor.astype(array_dtype(out.dtype))

    def logical_not(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.logical_not(tensor)

    def logical_and(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.logical_and(lhs, rhs)

    def logical_or(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.logical_or(lhs, rhs)
