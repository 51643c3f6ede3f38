"""Complex numbers: their parts, and conversions from real numbers.

Only a burn-remote-server has complex tensors: on Burn's own servers, ``complex`` and ``angle``
raise ``Unsupported``. A real tensor of integers or floats is its own real part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import ZEROS, Operator, with_rank
from burn_remote.functions.attribute_errors import NoComplexParts
from burn_remote.functions.casting import as_float
from burn_remote_protocol.dtypes import F32, Category
from burn_remote_protocol.operations.families import complex_rows

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["adjoint", "angle", "complex", "conj", "imag", "real"]

FROM_PARTS: Final = Operator(complex_rows.FROM_PARTS)
REAL: Final = Operator(complex_rows.REAL)
IMAGINARY: Final = Operator(complex_rows.IMAGINARY)
ANGLE: Final = Operator(complex_rows.ANGLE)
CONJUGATE: Final = Operator(complex_rows.CONJUGATE)


@explained
def complex(real: Tensor, imag: Tensor, /) -> Tensor:
    """Return complex numbers with these real and imaginary parts, which broadcast.

    Two float32 tensors give complex64, two float64 tensors complex128; others raise
    ``DTypeMismatch``.
    """
    rank = max(real.ndim, imag.ndim)
    return FROM_PARTS.apply((with_rank(real, rank), with_rank(imag, rank)))


@explained
def real(x: Tensor, /) -> Tensor:
    """Return the real parts: float32 for complex64, float64 for complex128; ``x`` if it is real."""
    return REAL.unary(x) if x.dtype.is_complex else _unpacked(x)


@explained
def imag(x: Tensor, /) -> Tensor:
    """Return the imaginary parts, zeros for real numbers and bools."""
    if x.dtype.is_complex:
        return IMAGINARY.unary(x)
    return x.__class__(ZEROS.create(x.handle.client, _unpacked(x).handle.spec))


@explained
def conj(x: Tensor, /) -> Tensor:
    """Return the complex conjugates; ``x`` if it is real."""
    return CONJUGATE.unary(x) if x.dtype.is_complex else _unpacked(x)


@explained
def angle(x: Tensor, /) -> Tensor:
    """Return the angles of complex numbers in radians, from -π to π.

    Integers and bools are converted to float32.
    """
    if x.dtype.is_complex:
        return ANGLE.unary(x)
    x = as_float(x, F32)
    zeros = x.__class__(ZEROS.create(x.handle.client, x.handle.spec))
    return ANGLE.unary(FROM_PARTS.apply((x, zeros)))


def adjoint(x: Tensor) -> Tensor:
    """Return the complex conjugates as ``conj`` does, for tensors that are not quantized."""
    return CONJUGATE.unary(x) if x.handle.spec.dtype.is_complex else x


def _unpacked(x: Tensor) -> Tensor:
    if x.dtype.category is Category.QUANTIZED:
        raise NoComplexParts(
            f"{x.handle.spec} has no real and imaginary parts; dequantize it first"
        )
    return x
