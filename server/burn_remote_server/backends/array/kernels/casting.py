"""Conversions between dtypes.

The rules are those of Rust's ``as``: integers wrap around; floating-point numbers lose their
fraction and saturate at the bounds of the integer dtype; NaN becomes 0. Floating-point results are
rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import LOW_PRECISION, array_dtype
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    ArraySpec,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
)
from burn_remote_server.backends.array.core.rounding import astype, needs_odd_rounding

__all__ = ["BaseCasting", "BoolCasting", "FloatCasting", "IntCasting", "conversion"]


def conversion(xp: Any, source: Any, target: Any) -> Run:
    """Return a function that converts arrays from one dtype to another."""
    if source == target:
        return _unchanged
    if needs_odd_rounding(source, target):
        return partial(_rounded_once, xp, target)
    if source.kind in "iub" or target.kind not in "iu":
        return partial(_as_type, target)
    wide = source if source not in LOW_PRECISION else np.dtype(np.float32)
    limits = np.iinfo(target)

    def saturate(tensor: Array) -> Array:
        return _saturated(xp, tensor.astype(wide, copy=False), target, limits)

    return saturate


def _unchanged(tensor: Array) -> Array:
    return tensor


def _as_type(target: Any, tensor: Array) -> Array:
    return tensor.astype(target)


def _rounded_once(xp: Any, target: Any, tensor: Array) -> Array:
    return astype(xp, tensor, target)


def _saturated(xp: Any, tensor: Array, target: Any, limits: Any) -> Array:
    # A floating-point dtype may not represent the largest integer, but it represents the next
    # larger number, a power of 2.
    low, above = float(limits.min), float(limits.max + 1)
    if tensor.size and bool(low <= xp.min(tensor)) and bool(xp.max(tensor) < above):
        return tensor.astype(target)
    in_range = (tensor >= low) & (tensor < above)
    result = xp.where(in_range, tensor, xp.zeros((), tensor.dtype)).astype(target)
    result[tensor >= above] = limits.max
    result[tensor < low] = limits.min
    return result


class _Casting(KernelFamily):
    is_elementwise = True

    def prepare(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel that converts elements to the output's dtype."""
        return conversion(self.xp, first.dtype, array_dtype(out.dtype))


class BaseCasting(_Casting):
    """Casts within a category: float to float, integer to integer."""

    family = "Base"
    low_precision = frozenset({"Cast"})

    def table(self) -> Mapping[str, Kernel]:
        return {"Cast": Prepared(self.prepare)}


class FloatCasting(_Casting):
    """Casts of floating-point numbers to integers."""

    family = "Float"
    low_precision = frozenset({"IntoInt"})

    def table(self) -> Mapping[str, Kernel]:
        return {"IntoInt": Prepared(self.prepare)}


class IntCasting(_Casting):
    """Casts of integers to floating-point numbers."""

    family = "Int"

    def table(self) -> Mapping[str, Kernel]:
        return {"IntoFloat": Prepared(self.prepare)}


class BoolCasting(_Casting):
    """Casts of bools to the numbers 0 and 1."""

    family = "Bool"

    def table(self) -> Mapping[str, Kernel]:
        return {"IntoFloat": Prepared(self.prepare), "IntoInt": Prepared(self.prepare)}
