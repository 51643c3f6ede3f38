"""Powers of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    Elementwise,
    Kernel,
    KernelFamily,
)

__all__ = ["FloatPowers", "NumericPowers"]

_FLOAT64: Any = np.dtype(np.float64)
_UNSIGNED: Any = np.dtype(np.uint64)

# Integers up to this size are exact in each dtype of floating-point numbers that kernels get.
_EXACT_EXPONENT_BITS = {np.dtype(np.float32): 24, _FLOAT64: 53}


class NumericPowers(KernelFamily):
    """Whole exponents. Integers wrap around and have no negative powers."""

    family = "Numeric"

    def table(self) -> Mapping[str, Kernel]:
        return {"Powi": self.powi, "PowiScalar": self.powi_scalar}

    def powi(self, lhs: Array, rhs: Array, *, out: TensorSpec) -> Array:
        """Return each element to the power of an integer of any dtype."""
        if lhs.dtype.kind not in "iu":
            if rhs.dtype.itemsize * 8 <= _EXACT_EXPONENT_BITS[lhs.dtype]:
                return self.xp.power(lhs, rhs.astype(lhs.dtype))
            return self._power_of_any_exponent(lhs, rhs)
        if rhs.dtype.kind == "i" and bool(self.xp.any(rhs < 0)):
            raise UsageError("an integer has no negative power")
        return self._wrapping_power(lhs, rhs.astype(_UNSIGNED))

    def powi_scalar(self, lhs: Array, *, rhs: float | int | bool, out: TensorSpec) -> Array:
        """Return each element to the power of one integer."""
        exponent = int(rhs)
        if lhs.dtype.kind not in "iu":
            if exponent.bit_length() <= _EXACT_EXPONENT_BITS[lhs.dtype]:
                return _float_power(self.xp, lhs, float(exponent))
            dtype = _UNSIGNED if exponent >= 2**63 else np.int64
            return self._power_of_any_exponent(lhs, self.xp.asarray(exponent, dtype))
        if exponent < 0:
            raise UsageError(f"an integer has no negative power; the exponent is {exponent}")
        if exponent == 2:
            return self.xp.multiply(lhs, lhs)
        return self._wrapping_power(lhs, self.xp.asarray(exponent, dtype=_UNSIGNED))

    def _power_of_any_exponent(self, lhs: Array, rhs: Array) -> Array:
        """Return floating-point numbers to the power of integers that the dtype may not hold.

        A rounded exponent would be even where it is odd, and give the wrong sign. The size comes
        from float64, in which an exponent that is still rounded changes no power but of numbers
        next to 1; the sign comes from the integer.
        """
        xp = self.xp
        size = xp.power(xp.absolute(lhs.astype(_FLOAT64)), rhs.astype(_FLOAT64))
        is_negative = xp.signbit(lhs) & ((rhs & rhs.dtype.type(1)) != 0)
        return xp.where(is_negative, -size, size).astype(lhs.dtype)

    def _wrapping_power(self, lhs: Array, exponents: Array) -> Array:
        # All in 64 bits without sign: what wraps around there wraps the same in fewer bits, and
        # no mixture of signs makes NumPy turn to floating-point numbers.
        return self.xp.power(lhs.astype(_UNSIGNED), exponents).astype(lhs.dtype)


class FloatPowers(KernelFamily):
    """Exponents with a fraction."""

    family = "Float"

    def table(self) -> Mapping[str, Kernel]:
        return {"Powf": Elementwise(self.xp.power), "PowfScalar": self.powf_scalar}

    def powf_scalar(self, lhs: Array, *, rhs: float | int | bool, out: TensorSpec) -> Array:
        """Return each element to the power of one number."""
        return _float_power(self.xp, lhs, float(rhs))


def _float_power(xp: Any, base: Array, exponent: float) -> Array:
    # A multiplication costs a twentieth of a power.
    if exponent == 2.0:
        return xp.multiply(base, base)
    if exponent == 3.0:
        return base * base * base
    if exponent == -1.0:
        return xp.reciprocal(base)
    if exponent == 1.0:
        return base
    return xp.power(base, xp.asarray(exponent, dtype=base.dtype))
