"""Kernels of elementwise functions that Burn's IR lacks."""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_server.backends.array.core.kernel_forms import Kernel, KernelFamily

__all__ = ["ElementwiseExtensions"]


class ElementwiseExtensions(KernelFamily):
    """The functions of the array library that have these names."""

    family = "Elementwise"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        return {}
