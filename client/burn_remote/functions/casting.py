"""Conversion of tensors to other dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.arguments.arrays import AnyDType, as_dtype
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator
from burn_remote_protocol.dtypes import BF16, BOOL, F16, F32, Category, DType
from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.operations.families import base, bools, complex_rows, floats, ints

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "LOW_PRECISION",
    "as_bool",
    "as_float",
    "astype",
    "at_least_float32",
    "converted_to",
    "dequantize",
    "distinct",
]

CAST: Final = Operator(base.CAST)
EQUAL_ELEM: Final = Operator(base.EQUAL_ELEM)
NOT: Final = Operator(bools.NOT)
DEQUANTIZE: Final = Operator(floats.DEQUANTIZE)
INTO_COMPLEX: Final = Operator(complex_rows.INTO_COMPLEX)

LOW_PRECISION: Final = frozenset({F16, BF16})

# (source category, target category) -> row. The IR has no conversion from numbers to bool.
CONVERSIONS: Final = {
    (Category.FLOAT, Category.FLOAT): CAST,
    (Category.FLOAT, Category.INT): Operator(floats.INTO_INT),
    (Category.INT, Category.FLOAT): Operator(ints.INTO_FLOAT),
    (Category.INT, Category.INT): CAST,
    (Category.BOOL, Category.FLOAT): Operator(bools.INTO_FLOAT),
    (Category.BOOL, Category.INT): Operator(bools.INTO_INT),
    (Category.BOOL, Category.BOOL): CAST,
    (Category.QUANTIZED, Category.FLOAT): DEQUANTIZE,
    (Category.COMPLEX, Category.COMPLEX): CAST,
    (Category.FLOAT, Category.COMPLEX): INTO_COMPLEX,
    (Category.INT, Category.COMPLEX): INTO_COMPLEX,
    (Category.BOOL, Category.COMPLEX): INTO_COMPLEX,
}


@explained
def astype(
    x: Tensor, /, dtype: AnyDType, *, copy: bool = True, device: AnyDevice | None = None
) -> Tensor:
    """Convert the elements to another dtype, and move them to ``device`` if it is given.

    ``dtype`` is a burn-remote dtype or anything that ``numpy.dtype`` accepts. The rules are those
    of Rust's ``as``: integers wrap around; floats are truncated to integers and saturate at the
    bounds, and NaN becomes 0. Nonzero numbers become true. A quantized tensor is dequantized; use
    ``quantize`` for the opposite direction. Raises ``DTypeMismatch`` for complex numbers and a real
    dtype: ``real(x)`` discards imaginary parts.

    If ``x`` already has the dtype and the device, ``copy=False`` returns ``x`` itself, and
    ``copy=True`` another object with the same elements, which are not copied.
    """
    converted = converted_to(x, dtype)
    if device is not None:
        converted = converted.to_device(device)
    return distinct(x) if copy and converted is x else converted


def distinct(x: Tensor, result: Tensor | None = None) -> Tensor:
    """Return ``result``, by default ``x`` itself, as another object than ``x``.

    Functions whose result has the elements of ``x`` return this, so that ``x[i] = v`` does not
    change what they returned.
    """
    return result if result is not None and result is not x else x.__class__(x.handle)


def converted_to(x: Tensor, dtype: AnyDType) -> Tensor:
    """Convert to a dtype as ``astype`` does; return ``x`` itself if it already has it."""
    dtype = as_dtype(dtype)
    present = x.handle.spec.dtype
    if dtype is present:
        return x
    source, wanted = _category(present), _category(dtype)
    if wanted is Category.BOOL and source is not Category.BOOL:
        booleans = NOT.unary(EQUAL_ELEM.scalar(x, 0))
        return booleans if dtype is BOOL else CAST.into(booleans, dtype)
    if source is Category.COMPLEX and wanted is not Category.COMPLEX:
        raise DTypeMismatch(
            f"{x.handle.spec} has imaginary parts, which {dtype} cannot hold; "
            "burn_remote.real(x) returns the real parts"
        )
    return CONVERSIONS.get((source, wanted), CAST).into(x, dtype)


@explained
def dequantize(x: Tensor, /, dtype: DType = F32) -> Tensor:
    """Convert a quantized tensor to floating point; the same as ``x.astype(dtype)``."""
    return astype(x, dtype)


def as_bool(x: Tensor) -> Tensor:
    """Return ``x`` if it is a bool tensor, otherwise ``x != 0``."""
    return x if x.handle.spec.dtype.is_bool else astype(x, BOOL)


def as_float(x: Tensor, dtype: DType) -> Tensor:
    """Return ``x`` if it is floating-point or complex, otherwise converted to ``dtype``."""
    present = x.handle.spec.dtype
    return x if present.is_floating or present.is_complex else astype(x, dtype)


def _category(dtype: DType) -> Category:
    # The IR has one family of operations for signed and unsigned integers.
    return Category.INT if dtype.category is Category.UINT else dtype.category


def at_least_float32(x: Tensor) -> Tensor:
    """Convert float16 and bfloat16 to float32: in float16, squares overflow from 256 on."""
    return astype(x, F32) if x.handle.spec.dtype in LOW_PRECISION else x
