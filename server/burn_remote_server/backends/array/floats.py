"""How are the operations of the family Float computed?"""

from __future__ import annotations

from typing import Any

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.base_cast import cast
from burn_remote_server.backends.array.dtypes import array_dtype
from burn_remote_server.backends.array.error_function import erf
from burn_remote_server.backends.array.family import KernelFamily
from burn_remote_server.backends.interface import Kernel

__all__ = ["FloatKernels"]


class FloatKernels(KernelFamily):
    """Kernels on floating-point tensors; half precision arrives here as f32."""

    def table(self) -> dict[str, Kernel]:
        return {
            "Exp": self.exp,
            "Log": self.log,
            "Log1p": self.log1p,
            "Erf": self.erf,
            "Sqrt": self.sqrt,
            "Recip": self.recip,
            "Cos": self.cos,
            "Cosh": self.cosh,
            "Sin": self.sin,
            "Sinh": self.sinh,
            "Tan": self.tan,
            "Tanh": self.tanh,
            "ArcCos": self.arc_cos,
            "ArcCosh": self.arc_cosh,
            "ArcSin": self.arc_sin,
            "ArcSinh": self.arc_sinh,
            "ArcTan": self.arc_tan,
            "ArcTanh": self.arc_tanh,
            "ArcTan2": self.arc_tan2,
            "Round": self.round,
            "Floor": self.floor,
            "Ceil": self.ceil,
            "Trunc": self.trunc,
            "Powf": self.powf,
            "PowfScalar": self.powf_scalar,
            "IsNan": self.is_nan,
            "IsInf": self.is_inf,
            "IntoInt": self.into_int,
            "Matmul": self.matmul,
        }

    def exp(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.exp(tensor)

    def log(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.log(tensor)

    def log1p(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.log1p(tensor)

    def erf(self, tensor: Any, *, out: TensorSpec) -> Any:
        return erf(self.xp, tensor)

    def sqrt(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.sqrt(tensor)

    def recip(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.reciprocal(tensor)

    def cos(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.cos(tensor)

    def cosh(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.cosh(tensor)

    def sin(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.sin(tensor)

    def sinh(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.sinh(tensor)

    def tan(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.tan(tensor)

    def tanh(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.tanh(tensor)

    def arc_cos(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.arccos(tensor)

    def arc_cosh(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.arccosh(tensor)

    def arc_sin(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.arcsin(tensor)

    def arc_sinh(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.arcsinh(tensor)

    def arc_tan(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.arctan(tensor)

    def arc_tanh(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.arctanh(tensor)

    def arc_tan2(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.arctan2(lhs, rhs)

    def round(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.rint(tensor)  # halves go to the even neighbour

    def floor(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.floor(tensor)

    def ceil(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.ceil(tensor)

    def trunc(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.trunc(tensor)

    def powf(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.power(lhs, rhs)

    def powf_scalar(self, lhs: Any, *, rhs: float, out: TensorSpec) -> Any:
        # A power in general costs ten times a product.
        return self.xp.square(lhs) if rhs == 2 else self.xp.power(lhs, float(rhs))

    def is_nan(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.isnan(tensor)

    def is_inf(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.isinf(tensor)

    def into_int(self, tensor: Any, *, out: TensorSpec) -> Any:
        return cast(self.xp, tensor, array_dtype(out.dtype))

    def matmul(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        return self.xp.matmul(lhs, rhs)
