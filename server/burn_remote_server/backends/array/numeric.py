"""How are the arithmetic and comparing operations of the family Numeric computed?"""

from __future__ import annotations

from typing import Any

from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.dtypes import array_dtype
from burn_remote_server.backends.array.family import KernelFamily
from burn_remote_server.backends.array.scalars import saturated, wrapped
from burn_remote_server.backends.interface import Kernel

__all__ = ["NumericKernels"]


class NumericKernels(KernelFamily):
    """Element-wise kernels for floats and integers. Integers wrap around, as Rust's release builds
    do; integer division truncates toward zero; a remainder has the sign of its divisor."""

    def table(self) -> dict[str, Kernel]:
        return {
            "Add": self.add,
            "AddScalar": self.add_scalar,
            "Sub": self.sub,
            "SubScalar": self.sub_scalar,
            "Mul": self.mul,
            "MulScalar": self.mul_scalar,
            "Div": self.div,
            "DivScalar": self.div_scalar,
            "Rem": self.rem,
            "RemScalar": self.rem_scalar,
            "Abs": self.abs,
            "Full": self.full,
            "Clamp": self.clamp,
            "Powi": self.powi,
            "PowiScalar": self.powi_scalar,
            "Greater": self.greater,
            "GreaterElem": self.greater_elem,
            "GreaterEqual": self.greater_equal,
            "GreaterEqualElem": self.greater_equal_elem,
            "Lower": self.lower,
            "LowerElem": self.lower_elem,
            "LowerEqual": self.lower_equal,
            "LowerEqualElem": self.lower_equal_elem,
        }

    def add(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.add(lhs, rhs)

    def add_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.xp.add(lhs, wrapped(rhs, lhs.dtype))

    def sub(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.subtract(lhs, rhs)

    def sub_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.xp.subtract(lhs, wrapped(rhs, lhs.dtype))

    def mul(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.multiply(lhs, rhs)

    def mul_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.xp.multiply(lhs, wrapped(rhs, lhs.dtype))

    def div(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        if lhs.dtype.kind == "f":
            return self.xp.true_divide(lhs, rhs)
        self._refuse_zero(rhs)
        return self._truncated_quotient(lhs, rhs)

    def div_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        if lhs.dtype.kind == "f":
            return self.xp.true_divide(lhs, rhs)
        return self.div(lhs, self._like(lhs, rhs), out=out)

    def rem(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        if lhs.dtype.kind != "f":
            self._refuse_zero(rhs)
        return self.xp.remainder(lhs, rhs)

    def rem_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.rem(lhs, self._like(lhs, rhs), out=out)

    def abs(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.abs(tensor)

    def full(self, *, value: float, out: TensorSpec) -> Any:
        dtype = array_dtype(out.dtype)
        return self.xp.full(out.shape, wrapped(value, dtype), dtype)

    def clamp(self, tensor: Any, *, min: float, max: float, out: TensorSpec) -> Any:
        low, high = saturated(min, tensor.dtype), saturated(max, tensor.dtype)
        return self.xp.minimum(self.xp.maximum(tensor, low), high)

    def powi(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        if lhs.dtype.kind == "f":
            return self.xp.power(lhs, rhs.astype(lhs.dtype))
        return self._integer_power(lhs, rhs.astype(lhs.dtype))

    def powi_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        if rhs == 2:
            return self.xp.square(lhs)
        if lhs.dtype.kind == "f":
            return self.xp.power(lhs, float(rhs))
        return self._integer_power(lhs, self._like(lhs, rhs))

    def greater(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.greater(lhs, rhs)

    def greater_elem(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.xp.greater(lhs, rhs)

    def greater_equal(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.greater_equal(lhs, rhs)

    def greater_equal_elem(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.xp.greater_equal(lhs, rhs)

    def lower(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.less(lhs, rhs)

    def lower_elem(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.xp.less(lhs, rhs)

    def lower_equal(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.less_equal(lhs, rhs)

    def lower_equal_elem(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        return self.xp.less_equal(lhs, rhs)

    # -- integers -----------------------------------------------------------------------------

    def _like(self, array: Any, value: float) -> Any:
        return self.xp.asarray(wrapped(value, array.dtype), dtype=array.dtype)

    def _refuse_zero(self, divisor: Any) -> None:
        if (divisor == 0).any():
            raise OperationFailed("integer division by zero")

    def _truncated_quotient(self, lhs: Any, rhs: Any) -> Any:
        xp = self.xp
        quotient = xp.floor_divide(lhs, rhs)
        if lhs.dtype.kind == "u":
            return quotient
        # Rounded down; one too low where the signs differ and something was left over.
        inexact = xp.remainder(lhs, rhs) != 0
        return quotient + (inexact & ((lhs < 0) != (rhs < 0))).astype(lhs.dtype)

    def _integer_power(self, base: Any, exponent: Any) -> Any:
        xp = self.xp
        if base.dtype.kind == "u" or not (exponent < 0).any():
            return xp.power(base, exponent)
        positive = xp.power(base, xp.maximum(exponent, 0))
        # 1 / baseⁿ, truncated: only ±1 leaves anything.
        odd = (exponent & 1) == 1
        unit = xp.where(base == 1, 1, xp.where(base == -1, xp.where(odd, -1, 1), 0))
        return xp.where(exponent < 0, unit.astype(base.dtype), positive)
