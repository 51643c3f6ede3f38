"""Addition, subtraction, multiplication, division and clamping of numbers.

Integers wrap around. Their quotient is rounded toward zero, as in Rust; a remainder has the sign of
its divisor, as in Python.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    ByKind,
    Elementwise,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
    Seen,
    WithScalar,
)
from burn_remote_server.backends.array.core.scalars import scalar_array

__all__ = ["NumericArithmetic", "truncated_quotient"]


class NumericArithmetic(KernelFamily):
    """Floating-point numbers and integers, with broadcasting."""

    family = "Numeric"

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "Add": Elementwise(xp.add),
            "AddScalar": WithScalar(xp, xp.add, rounds_scalar=False),
            "Sub": Elementwise(xp.subtract),
            "SubScalar": WithScalar(xp, xp.subtract, rounds_scalar=False),
            "Mul": Elementwise(xp.multiply),
            "MulScalar": WithScalar(xp, xp.multiply, rounds_scalar=False),
            "Div": ByKind(Elementwise(xp.true_divide), Elementwise(self.integer_quotient)),
            "DivScalar": ByKind(
                WithScalar(xp, xp.true_divide, rounds_scalar=False),
                WithScalar(xp, self.integer_quotient, rounds_scalar=False),
            ),
            "Rem": ByKind(Elementwise(xp.remainder), Elementwise(self.integer_remainder)),
            "RemScalar": ByKind(
                WithScalar(xp, xp.remainder, rounds_scalar=False),
                WithScalar(xp, self.integer_remainder, rounds_scalar=False),
            ),
            "Abs": Elementwise(xp.absolute),
            "Clamp": Prepared(self.prepare_clamp, self.prepare_clamp),
        }

    def integer_quotient(self, lhs: Array, rhs: Array) -> Array:
        """Return the quotient rounded toward zero. Raises ``UsageError`` for a divisor of 0."""
        self._check_divisor(rhs)
        return truncated_quotient(self.xp, lhs, rhs)

    def integer_remainder(self, lhs: Array, rhs: Array) -> Array:
        """Return the remainder, of the divisor's sign. Raises ``UsageError`` for a divisor of 0."""
        self._check_divisor(rhs)
        return self.xp.remainder(lhs, rhs)

    def _check_divisor(self, divisor: Array) -> None:
        if not bool(self.xp.all(divisor)):
            raise UsageError("an integer is divided by 0")

    def prepare_clamp(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run:
        """Return each element, or the limit it exceeds; NaN stays. Takes ``out`` for the result."""
        minimum, maximum = parameters["min"], parameters["max"]
        limits = []
        if minimum != -math.inf or maximum == math.inf:
            limits.append((self.xp.maximum, self._limit(minimum, first.dtype)))
        # A rectified linear unit has no upper limit: a second pass over the memory would show.
        if maximum != math.inf:
            limits.append((self.xp.minimum, self._limit(maximum, first.dtype)))

        def run(tensor: Array, **options: Array) -> Array:
            for limit_by, limit in limits:
                tensor = limit_by(tensor, limit, **options)
            return tensor

        return run

    def _limit(self, limit: float | int | bool, dtype: Any) -> Array:
        if dtype.kind in "iu":
            # A limit beyond the dtype limits nothing; wrapped around it would limit everything.
            limits = np.iinfo(dtype)
            limit = limits.min if limit < limits.min else limit
            limit = limits.max if limit > limits.max else limit
        return scalar_array(self.xp, limit, dtype)


def truncated_quotient(xp: Any, lhs: Array, rhs: Array) -> Array:
    """Return the quotient of integers, none of them divided by 0, rounded toward zero."""
    if lhs.dtype.kind == "u":
        return xp.floor_divide(lhs, rhs)
    # What is left after taking away C's remainder divides evenly, so that there is no rounding.
    return xp.floor_divide(lhs - xp.fmod(lhs, rhs), rhs)
