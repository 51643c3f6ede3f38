"""How do elements become those of another dtype?

As Rust's ``as`` does it: integers wrap around; floating-point numbers lose their fraction, saturate
at the ends of the integer's range, and NaN becomes 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.dtypes import LOW_PRECISION, array_dtype
from burn_remote_server.backends.array.kernels import Array, Kernel, KernelFamily

__all__ = ["BaseCasting", "BoolCasting", "FloatCasting", "IntCasting", "converted"]


def converted(xp: Any, tensor: Array, target: Any) -> Array:
    """Return a tensor's elements in another array dtype; the tensor itself where it has that."""
    if tensor.dtype == target:
        return tensor
    if target.kind == "b":
        return tensor != 0
    if tensor.dtype.kind in "iub" or target.kind not in "iu":
        return tensor.astype(target)
    if tensor.dtype in LOW_PRECISION:
        tensor = tensor.astype(np.float32)
    return _saturated(xp, tensor, target)


def _saturated(xp: Any, tensor: Array, target: Any) -> Array:
    limits = np.iinfo(target)
    # The largest integer may be no floating-point number; the one after it always is.
    low, above = float(limits.min), float(limits.max + 1)
    if tensor.size and bool(low <= xp.min(tensor)) and bool(xp.max(tensor) < above):
        return tensor.astype(target)
    in_range = (tensor >= low) & (tensor < above)
    result = xp.where(in_range, tensor, xp.zeros((), tensor.dtype)).astype(target)
    result[tensor >= above] = limits.max
    result[tensor < low] = limits.min
    return result


class _Casting(KernelFamily):
    def convert(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the elements in the dtype of the output."""
        return converted(self.xp, input, array_dtype(out.dtype))


class BaseCasting(_Casting):
    """Casts within a kind of number."""

    family = "Base"
    low_precision = frozenset({"Cast"})

    def table(self) -> Mapping[str, Kernel]:
        return {"Cast": self.convert}


class FloatCasting(_Casting):
    """Floating-point numbers to others."""

    family = "Float"
    low_precision = frozenset({"IntoInt"})

    def table(self) -> Mapping[str, Kernel]:
        return {"IntoInt": self.convert}


class IntCasting(_Casting):
    """Integers to others."""

    family = "Int"

    def table(self) -> Mapping[str, Kernel]:
        return {"IntoFloat": self.convert}


class BoolCasting(_Casting):
    """Truth values to 0 and 1."""

    family = "Bool"

    def table(self) -> Mapping[str, Kernel]:
        return {"IntoFloat": self.convert, "IntoInt": self.convert}
