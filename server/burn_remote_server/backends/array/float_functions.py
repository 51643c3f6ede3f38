"""Which functions of one or two floating-point numbers are there?"""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.error_function import erf
from burn_remote_server.backends.array.kernels import Array, Elementwise, Kernel, KernelFamily

__all__ = ["FloatFunctions"]


class FloatFunctions(KernelFamily):
    """Element by element. Outside its domain a function is NaN; halves are rounded to even."""

    family = "Float"

    def table(self) -> Mapping[str, Kernel]:
        xp = self.xp
        return {
            "Exp": Elementwise(xp.exp),
            "Log": Elementwise(xp.log),
            "Log1p": Elementwise(xp.log1p),
            "Erf": self.erf,
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
            "Round": Elementwise(xp.rint),
            "Floor": Elementwise(xp.floor),
            "Ceil": Elementwise(xp.ceil),
            "Trunc": Elementwise(xp.trunc),
        }

    def erf(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the error function."""
        return erf(self.xp, input)
