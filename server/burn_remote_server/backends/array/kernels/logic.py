"""Comparisons, and logical and bitwise operations."""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    Elementwise,
    Kernel,
    KernelFamily,
    WithScalar,
)
from burn_remote_server.backends.array.core.scalars import scalar_array

__all__ = ["BaseComparison", "BoolLogic", "FloatComparison", "IntBitwise", "NumericComparison"]


class BoolLogic(KernelFamily):
    """Logical operations on bools, with broadcasting."""

    family = "Bool"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "Not": Elementwise(xp.logical_not),
            "And": Elementwise(xp.logical_and),
            "Or": Elementwise(xp.logical_or),
            "Xor": Elementwise(xp.logical_xor),
        }


class BaseComparison(KernelFamily):
    """Equality of tensors of any dtype, with broadcasting. NaN equals nothing, not even NaN."""

    family = "Base"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "Equal": Elementwise(xp.equal),
            "EqualElem": WithScalar(xp, xp.equal, rounds_scalar=True),
            "NotEqual": Elementwise(xp.not_equal),
            "NotEqualElem": WithScalar(xp, xp.not_equal, rounds_scalar=True),
        }


class NumericComparison(KernelFamily):
    """Order of numbers, with broadcasting. Every comparison with NaN is false."""

    family = "Numeric"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "Greater": Elementwise(xp.greater),
            "GreaterElem": WithScalar(xp, xp.greater, rounds_scalar=True),
            "GreaterEqual": Elementwise(xp.greater_equal),
            "GreaterEqualElem": WithScalar(xp, xp.greater_equal, rounds_scalar=True),
            "Lower": Elementwise(xp.less),
            "LowerElem": WithScalar(xp, xp.less, rounds_scalar=True),
            "LowerEqual": Elementwise(xp.less_equal),
            "LowerEqualElem": WithScalar(xp, xp.less_equal, rounds_scalar=True),
        }


class FloatComparison(KernelFamily):
    """Tests for NaN and infinity."""

    family = "Float"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        return {"IsNan": Elementwise(self.xp.isnan), "IsInf": Elementwise(self.xp.isinf)}


class IntBitwise(KernelFamily):
    """Bitwise operations on integers, with broadcasting.

    Burn shifts in 64 bits and takes the shift modulo 64: a shift by at least the width of a
    narrower dtype gives 0, or copies of the sign bit for right shifts of signed integers.
    """

    family = "Int"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "BitwiseAnd": Elementwise(xp.bitwise_and),
            "BitwiseAndScalar": WithScalar(xp, xp.bitwise_and, rounds_scalar=False),
            "BitwiseOr": Elementwise(xp.bitwise_or),
            "BitwiseOrScalar": WithScalar(xp, xp.bitwise_or, rounds_scalar=False),
            "BitwiseXor": Elementwise(xp.bitwise_xor),
            "BitwiseXorScalar": WithScalar(xp, xp.bitwise_xor, rounds_scalar=False),
            "BitwiseNot": Elementwise(xp.invert),
            "BitwiseLeftShift": Elementwise(self.left_shift),
            "BitwiseLeftShiftScalar": WithScalar(xp, self.left_shift, rounds_scalar=False),
            "BitwiseRightShift": Elementwise(self.right_shift),
            "BitwiseRightShiftScalar": WithScalar(xp, self.right_shift, rounds_scalar=False),
        }

    def left_shift(self, lhs: Array, rhs: Array) -> Array:
        """Return the bits shifted toward the most significant one."""
        return self.xp.left_shift(lhs, self._bounded(rhs))

    def right_shift(self, lhs: Array, rhs: Array) -> Array:
        """Return the bits shifted toward the least significant one, filled with the sign."""
        return self.xp.right_shift(lhs, self._bounded(rhs))

    def _bounded(self, shift: Array) -> Array:
        return self.xp.bitwise_and(shift, scalar_array(self.xp, 63, shift.dtype))
