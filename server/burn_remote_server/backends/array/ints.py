"""How are the operations of the family Int computed?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.dtypes import array_dtype
from burn_remote_server.backends.array.family import KernelFamily
from burn_remote_server.backends.array.scalars import wrapped
from burn_remote_server.backends.interface import Kernel

__all__ = ["IntKernels"]


class IntKernels(KernelFamily):
    """Kernels on integer tensors. A shift counts modulo the width, as Rust's wrapping shifts do."""

    def table(self) -> dict[str, Kernel]:
        return {
            "IntoFloat": self.into_float,
            "Matmul": self.matmul,
            "BitwiseAnd": self.bitwise_and,
            "BitwiseAndScalar": self.bitwise_and_scalar,
            "BitwiseOr": self.bitwise_or,
            "BitwiseOrScalar": self.bitwise_or_scalar,
            "BitwiseXor": self.bitwise_xor,
            "BitwiseXorScalar": self.bitwise_xor_scalar,
            "BitwiseNot": self.bitwise_not,
            "BitwiseLeftShift": self.left_shift,
            "BitwiseLeftShiftScalar": self.left_shift_scalar,
            "BitwiseRightShift": self.right_shift,
            "BitwiseRightShiftScalar": self.right_shift_scalar,
        }

    def into_float(self, tensor: Any, *, out: TensorSpec) -> Any:
        return tensor.astype(array_dtype(out.dtype))

    def matmul(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.matmul(lhs, rhs)

    def bitwise_and(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.bitwise_and(lhs, rhs)

    def bitwise_and_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.xp.bitwise_and(lhs, wrapped(rhs, lhs.dtype))

    def bitwise_or(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.bitwise_or(lhs, rhs)

    def bitwise_or_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.xp.bitwise_or(lhs, wrapped(rhs, lhs.dtype))

    def bitwise_xor(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.bitwise_xor(lhs, rhs)

    def bitwise_xor_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.xp.bitwise_xor(lhs, wrapped(rhs, lhs.dtype))

    def bitwise_not(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.invert(tensor)

    def left_shift(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self._shifted(self.xp.left_shift, lhs, rhs)

    def left_shift_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self._shifted_by(self.xp.left_shift, lhs, rhs)

    def right_shift(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self._shifted(self.xp.right_shift, lhs, rhs)

    def right_shift_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self._shifted_by(self.xp.right_shift, lhs, rhs)

    def _shifted(self, shift: Callable[[Any, Any], Any], lhs: Any, rhs: Any) -> Any:
        return shift(lhs, self.xp.bitwise_and(rhs, 8 * lhs.dtype.itemsize - 1))

    def _shifted_by(self, shift: Callable[[Any, Any], Any], lhs: Any, count: float) -> Any:
        return shift(lhs, int(count) & (8 * lhs.dtype.itemsize - 1))
