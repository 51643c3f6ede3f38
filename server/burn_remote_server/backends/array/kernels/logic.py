"""Logical operations on bools."""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_server.backends.array.core.kernel_forms import Elementwise, Kernel, KernelFamily

__all__ = ["BoolLogic"]


class BoolLogic(KernelFamily):
    """Element by element, with broadcasting."""

    family = "Bool"

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "Not": Elementwise(xp.logical_not),
            "And": Elementwise(xp.logical_and),
            "Or": Elementwise(xp.logical_or),
        }
