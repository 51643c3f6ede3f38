"""Addition, subtraction, multiplication, division, clamping and powers of numbers.

Integers wrap around. Integer quotients are rounded toward zero, as in Rust; a remainder has the
sign of its divisor, as in Python.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    ArraySpec,
    Elementwise,
    FloatOrInteger,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
    WithScalar,
    direct_calls,
)
from burn_remote_server.backends.array.core.number_limits import limited_by_row, takes_row
from burn_remote_server.backends.array.core.scalars import scalar_array, wrapped
from burn_remote_server.backends.interface import ElementwiseCall

__all__ = ["FloatPowers", "NumericArithmetic", "NumericPowers", "truncated_quotient"]


class Widened(Elementwise):
    """A function that receives low-precision tensors as ``float32``.

    For example, ``sign(-0.0)`` is 0 in NumPy's own dtypes, but -0 in bfloat16, a dtype of
    ``ml_dtypes``.
    """

    def keeps_precision(self, first: ArraySpec, parameters: Parameters) -> bool:
        return False


class NumericArithmetic(KernelFamily):
    """Arithmetic of floating-point numbers and integers, with broadcasting."""

    family = "Numeric"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "Add": Elementwise(xp.add),
            "AddScalar": WithScalar(xp, xp.add, rounds_scalar=False),
            "Sub": Elementwise(xp.subtract),
            "SubScalar": WithScalar(xp, xp.subtract, rounds_scalar=False),
            "Mul": Elementwise(xp.multiply),
            "MulScalar": WithScalar(xp, xp.multiply, rounds_scalar=False),
            "Div": FloatOrInteger(Elementwise(xp.true_divide), Elementwise(self.integer_quotient)),
            "DivScalar": FloatOrInteger(
                WithScalar(xp, xp.true_divide, rounds_scalar=False),
                WithScalar(xp, self.integer_quotient, rounds_scalar=False),
            ),
            "Rem": FloatOrInteger(Elementwise(xp.remainder), Elementwise(self.integer_remainder)),
            "RemScalar": FloatOrInteger(
                WithScalar(xp, xp.remainder, rounds_scalar=False),
                WithScalar(xp, self.integer_remainder, rounds_scalar=False),
            ),
            "Abs": Elementwise(xp.absolute),
            "Clamp": Prepared(self.prepare_clamp, self.prepare_clamp, self.clamp_calls),
            "ClampMin": Prepared(self.prepare_least, self.prepare_least, self.least_calls),
            "ClampMax": Prepared(self.prepare_most, self.prepare_most, self.most_calls),
            "Neg": Prepared(self.prepare_negative, self.prepare_negative, self.negative_calls),
            "Sign": Widened(xp.sign),
        }

    def integer_quotient(self, lhs: Array, rhs: Array) -> Array:
        """Return the quotient rounded toward zero. Raises ``UsageError`` for a divisor of 0."""
        self._check_divisor(rhs)
        return truncated_quotient(self.xp, lhs, rhs)

    def integer_remainder(self, lhs: Array, rhs: Array) -> Array:
        """Return the remainder (sign of the divisor). Raises ``UsageError`` for a divisor of 0."""
        self._check_divisor(rhs)
        return self.xp.remainder(lhs, rhs)

    def _check_divisor(self, divisor: Array) -> None:
        if not bool(self.xp.all(divisor)):
            raise UsageError("integer division by 0")

    def prepare_clamp(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel that limits each element; NaN is kept. It also takes ``out``."""
        limits = [self._limiting(first, *limit) for limit in self._limits(first, parameters)]

        def run(tensor: Array, **options: Array) -> Array:
            for limited in limits:
                tensor = limited(tensor, **options)
            return tensor

        return run

    def prepare_least(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel that raises each element to at least ``rhs``; it also takes ``out``."""
        return self._limiting(first, *self._least(first, parameters))

    def prepare_most(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel that lowers each element to at most ``rhs``; it also takes ``out``."""
        return self._limiting(first, *self._most(first, parameters))

    def prepare_negative(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel that changes signs; integers wrap around. It also takes ``out``."""
        return self._with_constant(*self._opposite(first))

    def least_calls(self, first: ArraySpec, parameters: Parameters) -> tuple[ElementwiseCall, ...]:
        """Return the call of the maximum with the limit."""
        return self._limit_calls(first, *self._least(first, parameters))

    def most_calls(self, first: ArraySpec, parameters: Parameters) -> tuple[ElementwiseCall, ...]:
        """Return the call of the minimum with the limit."""
        return self._limit_calls(first, *self._most(first, parameters))

    def _limit_calls(
        self, first: ArraySpec, function: Run, limit: Array
    ) -> tuple[ElementwiseCall, ...]:
        return direct_calls(function, limit, is_slower=takes_row(self.xp, *first))

    def negative_calls(
        self, first: ArraySpec, parameters: Parameters
    ) -> tuple[ElementwiseCall, ...]:
        """Return the call of the product with -1."""
        return direct_calls(*self._opposite(first))

    def _least(self, first: ArraySpec, parameters: Parameters) -> tuple[Run, Array]:
        return self.xp.maximum, self._limit(parameters["rhs"], first.dtype)

    def _most(self, first: ArraySpec, parameters: Parameters) -> tuple[Run, Array]:
        return self.xp.minimum, self._limit(parameters["rhs"], first.dtype)

    def _opposite(self, first: ArraySpec) -> tuple[Run, Array]:
        # A product and not ``negative``, because fusers compile only the product.
        return self.xp.multiply, scalar_array(self.xp, -1, first.dtype)

    def _limiting(self, first: ArraySpec, function: Run, limit: Array) -> Run:
        if takes_row(self.xp, *first):
            return limited_by_row(function, limit)
        return self._with_constant(function, limit)

    def _with_constant(self, function: Run, constant: Array) -> Run:
        def run(tensor: Array, **options: Array) -> Array:
            return function(tensor, constant, **options)

        return run

    def clamp_calls(self, first: ArraySpec, parameters: Parameters) -> tuple[ElementwiseCall, ...]:
        """Return the call of a clamp, whose limits are constants."""
        limits = self._limits(first, parameters)
        if len(limits) == 1:  # such as ReLU
            return self._limit_calls(first, *limits[0])
        constants = tuple(limit for _, limit in limits)
        return (ElementwiseCall(self._clamp, constants, self._clamp),)

    def _clamp(self, tensor: Array, low: Array, high: Array, **options: Array) -> Array:
        return self.xp.minimum(self.xp.maximum(tensor, low, **options), high, **options)

    def _limits(self, first: ArraySpec, parameters: Parameters) -> list[tuple[Run, Array]]:
        minimum, maximum = parameters["min"], parameters["max"]
        limits = []
        if minimum != -math.inf or maximum == math.inf:
            limits.append((self.xp.maximum, self._limit(minimum, first.dtype)))
        # Skip an infinite upper limit (ReLU has none): it would cost a second pass over memory.
        if maximum != math.inf:
            limits.append((self.xp.minimum, self._limit(maximum, first.dtype)))
        return limits

    def _limit(self, limit: float | int | bool, dtype: Any) -> Array:
        if dtype.kind in "iu":
            # A limit outside the dtype's range has no effect; do not wrap it around.
            limits = np.iinfo(dtype)
            limit = limits.min if limit < limits.min else limit
            limit = limits.max if limit > limits.max else limit
        return scalar_array(self.xp, limit, dtype)


def truncated_quotient(xp: Any, lhs: Array, rhs: Array) -> Array:
    """Return the quotient of integers, rounded toward zero; no divisor may be 0."""
    if lhs.dtype.kind == "u":
        return xp.floor_divide(lhs, rhs)
    # Subtracting the truncated remainder first makes the division exact.
    return xp.floor_divide(lhs - xp.fmod(lhs, rhs), rhs)


_FLOAT64: Any = np.dtype(np.float64)
_UNSIGNED: Any = np.dtype(np.uint64)
_INT64: Any = np.dtype(np.int64)

# Bits of the largest integers that each floating-point dtype represents exactly.
_EXACT_EXPONENT_BITS = {
    np.dtype(np.float32): 24,
    _FLOAT64: 53,
    np.dtype(np.complex64): 24,
    np.dtype(np.complex128): 53,
}


class NumericPowers(KernelFamily):
    """Powers with integer exponents. Integers wrap around and have no negative powers."""

    family = "Numeric"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        return {"Powi": self.powi, "PowiScalar": self.powi_scalar}

    def powi(self, lhs: Array, rhs: Array, *, out: TensorSpec) -> Array:
        """Return each element of ``lhs`` to the power of an element of ``rhs``.

        ``rhs`` has any integer dtype. Raises ``UsageError`` for a negative power of an integer.
        """
        if lhs.dtype.kind not in "iu":
            if rhs.dtype.itemsize * 8 <= _EXACT_EXPONENT_BITS[lhs.dtype]:
                return self.xp.power(lhs, rhs.astype(lhs.dtype))
            return self._power_of_any_exponent(lhs, rhs)
        if rhs.dtype.kind == "i" and bool(self.xp.any(rhs < 0)):
            raise UsageError("integers have no negative powers; an exponent is below 0")
        return self._wrapping_power(lhs, rhs.astype(_UNSIGNED))

    def powi_scalar(self, lhs: Array, *, rhs: float | int | bool, out: TensorSpec) -> Array:
        """Return each element to the power of one integer."""
        exponent = wrapped(rhs, _INT64) if isinstance(rhs, float) else int(rhs)
        if lhs.dtype.kind not in "iu":
            if exponent.bit_length() <= _EXACT_EXPONENT_BITS[lhs.dtype]:
                return _float_power(self.xp, lhs, float(exponent))
            dtype = _UNSIGNED if exponent >= 2**63 else np.int64
            return self._power_of_any_exponent(lhs, self.xp.asarray(exponent, dtype))
        if exponent < 0:
            raise UsageError(f"integers have no negative powers; the exponent is {exponent}")
        if exponent == 2:
            return self.xp.multiply(lhs, lhs)
        return self._wrapping_power(lhs, self.xp.asarray(exponent, dtype=_UNSIGNED))

    def _power_of_any_exponent(self, lhs: Array, rhs: Array) -> Array:
        """Return floating-point powers for integer exponents that ``lhs.dtype`` may not represent.

        Rounding an odd exponent may make it even and so change the sign. The magnitude comes from
        float64, where rounding an exponent matters only for bases next to 1; the sign comes from
        the integer.
        """
        xp = self.xp
        if lhs.dtype.kind == "c":
            # Rounding such a large exponent matters little: the power is 0, infinite or NaN, unless
            # the base is next to the unit circle.
            return xp.power(lhs.astype(np.complex128), rhs.astype(np.complex128)).astype(lhs.dtype)
        size = xp.power(xp.absolute(lhs.astype(_FLOAT64)), rhs.astype(_FLOAT64))
        is_negative = xp.signbit(lhs) & ((rhs & rhs.dtype.type(1)) != 0)
        return xp.where(is_negative, -size, size).astype(lhs.dtype)

    def _wrapping_power(self, lhs: Array, exponents: Array) -> Array:
        # In uint64: wrapping there and truncating equals wrapping in fewer bits, and NumPy would
        # promote mixed signed and unsigned integers to float64.
        return self.xp.power(lhs.astype(_UNSIGNED), exponents).astype(lhs.dtype)


class FloatPowers(KernelFamily):
    """Powers with floating-point exponents."""

    family = "Float"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Powf": Elementwise(self.xp.power),
            "PowfScalar": Prepared(self.prepare_powf_scalar),
        }

    def prepare_powf_scalar(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return ``run(lhs)``: each element to the power of one number."""
        exponent = float(parameters["rhs"])
        if exponent in _MULTIPLIED:
            return lambda lhs: _float_power(self.xp, lhs, exponent)
        # Here and not in each call: a GPU cannot copy a number from the host in a captured run.
        power, number = self.xp.power, self.xp.asarray(exponent, dtype=first.dtype)
        return lambda lhs: power(lhs, number)


# The exponents for which ``_float_power`` does not call ``power``.
_MULTIPLIED: Final = (2.0, 3.0, -1.0, 1.0)


def _float_power(xp: Any, base: Array, exponent: float) -> Array:
    # A multiplication costs a twentieth of a call of ``power``.
    if exponent == 2.0:
        return xp.multiply(base, base)
    if exponent == 3.0:
        return base * base * base
    if exponent == -1.0:
        return xp.reciprocal(base)
    if exponent == 1.0:
        return base
    return xp.power(base, xp.asarray(exponent, dtype=base.dtype))
