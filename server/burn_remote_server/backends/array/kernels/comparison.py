"""Comparisons of elements with each other and with numbers."""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_server.backends.array.core.kernel_forms import (
    Elementwise,
    Kernel,
    KernelFamily,
    WithScalar,
)

__all__ = ["BaseComparison", "FloatComparison", "NumericComparison"]


class BaseComparison(KernelFamily):
    """Equality, for tensors of any dtype. NaN equals nothing."""

    family = "Base"

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "Equal": Elementwise(xp.equal),
            "EqualElem": WithScalar(xp, xp.equal, rounds_scalar=True),
        }


class NumericComparison(KernelFamily):
    """Order. NaN is neither above nor below anything."""

    family = "Numeric"

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
    """Which elements are no finite numbers?"""

    family = "Float"

    def table(self) -> Mapping[str, Kernel]:
        return {"IsNan": Elementwise(self.xp.isnan), "IsInf": Elementwise(self.xp.isinf)}
