"""How are numbers raised to a power?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels import Array, Elementwise, Kernel, KernelFamily

__all__ = ["FloatPowers", "NumericPowers"]

_UNSIGNED: Any = np.dtype(np.uint64)


class NumericPowers(KernelFamily):
    """Whole exponents. Integers wrap around and have no negative powers."""

    family = "Numeric"

    def table(self) -> Mapping[str, Kernel]:
        return {"Powi": self.powi, "PowiScalar": self.powi_scalar}

    def powi(self, lhs: Array, rhs: Array, *, out: TensorSpec) -> Array:
        """Return each element to the power of an integer of any dtype."""
        if lhs.dtype.kind not in "iu":
            return self.xp.power(lhs, rhs.astype(lhs.dtype))
        if rhs.dtype.kind == "i" and bool(self.xp.any(rhs < 0)):
            raise UsageError("an integer has no negative power")
        return self._wrapping_power(lhs, rhs.astype(_UNSIGNED))

    def powi_scalar(self, lhs: Array, *, rhs: float | int | bool, out: TensorSpec) -> Array:
        """Return each element to the power of one integer."""
        exponent = int(rhs)
        if lhs.dtype.kind not in "iu":
            return _float_power(self.xp, lhs, float(exponent))
        if exponent < 0:
            raise UsageError(f"an integer has no negative power; the exponent is {exponent}")
        if exponent == 2:
            return self.xp.multiply(lhs, lhs)
        return self._wrapping_power(lhs, self.xp.asarray(exponent, dtype=_UNSIGNED))

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
