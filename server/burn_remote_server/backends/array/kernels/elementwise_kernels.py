"""Kernels of elementwise functions that Burn's IR lacks."""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_server.backends.array.core.kernel_forms import (
    Elementwise,
    Kernel,
    KernelFamily,
    WithScalar,
)

__all__ = ["ElementwiseExtensions"]


class ElementwiseExtensions(KernelFamily):
    """The functions of the array library with the names in the table."""

    family = "Elementwise"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "CopySign": Elementwise(xp.copysign),
            "Expm1": Elementwise(xp.expm1),
            "FloorDivide": Elementwise(xp.floor_divide),
            "FloorDivideScalar": WithScalar(xp, xp.floor_divide, rounds_scalar=False),
            "Log10": Elementwise(xp.log10),
            "Log2": Elementwise(xp.log2),
            "LogAddExp": Elementwise(xp.logaddexp),
            "NextAfter": Elementwise(xp.nextafter),
        }
