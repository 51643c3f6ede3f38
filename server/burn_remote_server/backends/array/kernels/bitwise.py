"""Bitwise operations and shifts of integers.

Burn shifts in 64 bits and takes the shift modulo 64: a shift by the width of a narrower dtype or
more leaves nothing, or only the sign.
"""

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

__all__ = ["IntBitwise"]


class IntBitwise(KernelFamily):
    """Two integers, or an integer and a number, with broadcasting."""

    family = "Int"

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
        """Return the bits moved toward the most significant one."""
        return self.xp.left_shift(lhs, self._bounded(rhs))

    def right_shift(self, lhs: Array, rhs: Array) -> Array:
        """Return the bits moved toward the least significant one; those that come are the sign."""
        return self.xp.right_shift(lhs, self._bounded(rhs))

    def _bounded(self, shift: Array) -> Array:
        return self.xp.bitwise_and(shift, scalar_array(self.xp, 63, shift.dtype))
