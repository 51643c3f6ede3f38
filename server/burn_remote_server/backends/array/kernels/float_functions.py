"""Elementwise functions of floating-point numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    ArraySpec,
    Elementwise,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
)
from burn_remote_server.backends.array.kernels.error_function import erf

__all__ = ["FloatFunctions"]


class FloatFunctions(KernelFamily):
    """Elementwise functions: NaN outside their domain; ``Round`` rounds halves to even."""

    family = "Float"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "Exp": Elementwise(xp.exp),
            "Log": Elementwise(xp.log),
            "Log1p": Elementwise(xp.log1p),
            "Erf": Prepared(self.prepare_erf, self.prepare_erf_into),
            "Sqrt": Elementwise(xp.sqrt),
            "Recip": Elementwise(xp.reciprocal),
            "Cos": Elementwise(xp.cos),
            "Cosh": Elementwise(xp.cosh),
            "Sin": Elementwise(xp.sin),
            "Sinh": Elementwise(xp.sinh),
            "Tan": Elementwise(xp.tan),
            "Tanh": Elementwise(xp.tanh),
            "ArcCos": Elementwise(xp.arccos),
            "ArcCosh": Elementwise(xp.arccosh),
            "ArcSin": Elementwise(xp.arcsin),
            "ArcSinh": Elementwise(xp.arcsinh),
            "ArcTan": Elementwise(xp.arctan),
            "ArcTanh": Elementwise(xp.arctanh),
            "ArcTan2": Elementwise(xp.arctan2),
            "Hypot": Elementwise(xp.hypot),
            "Round": Elementwise(xp.rint),
            "Floor": Elementwise(xp.floor),
            "Ceil": Elementwise(xp.ceil),
            "Trunc": Elementwise(xp.trunc),
        }

    def prepare_erf(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel for the error function."""
        return partial(erf, self.xp)

    def prepare_erf_into(
        self, first: ArraySpec, out: TensorSpec, parameters: Parameters
    ) -> Run | None:
        """Return a kernel for the error function that takes ``out``."""
        return partial(erf, self.xp)
