"""Rules of the conversions between real and complex numbers."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.dtypes import C64, C128, F32, F64, REAL_DTYPES, DType
from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.operations.row import Call
from burn_remote_protocol.operations.shape_rules.checks import (
    ANY,
    COMPLEX,
    QUANTIZED,
    broadcast_shapes,
    check_category,
    check_same_dtype,
    declared_output,
    result,
)
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["combined", "complex_dtype", "into_complex", "part"]

Outputs = tuple[TensorSpec, ...]

_COMPLEX_DTYPES: Final[dict[DType, DType]] = {F32: C64, F64: C128}


def complex_dtype(argument: str, spec: TensorSpec) -> DType:
    """Return the complex dtype of numbers whose parts have this dtype: float32 or float64."""
    found = _COMPLEX_DTYPES.get(spec.dtype)
    if found is None:
        raise DTypeMismatch(f"{argument} is {spec}, but must be float32 or float64")
    return found


def combined(call: Call) -> Outputs:
    """Broadcast real and imaginary parts of one dtype, float32 or float64, to complex numbers."""
    real, imaginary = call.inputs
    dtype = complex_dtype("real", real)
    check_same_dtype(real, imaginary=imaginary)
    return (result(broadcast_shapes(real.shape, imaginary.shape), dtype),)


def into_complex(call: Call) -> Outputs:
    """Keep the shape; use the declared complex dtype, by default ``C64``."""
    (spec,) = call.inputs
    check_category("input", spec, ANY - QUANTIZED - COMPLEX)
    target = declared_output(call, 0) or TensorSpec(spec.shape, C64)
    check_category("the output", target, COMPLEX)
    return (TensorSpec(spec.shape, target.dtype),)


def part(call: Call) -> Outputs:
    """Keep the shape; the result has the real dtype of the same precision."""
    (spec,) = call.inputs
    check_category("input", spec, COMPLEX)
    return (TensorSpec(spec.shape, REAL_DTYPES[spec.dtype]),)
