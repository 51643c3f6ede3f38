"""Conversion of tensors to other dtypes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np

from burn_remote.arguments.arrays import AnyDType, as_dtype
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator
from burn_remote.functions.tensor_value import TensorValue, is_tensor
from burn_remote_protocol.dtypes import BF16, BOOL, F16, F32, Category, DType
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import base, bools, complex_rows, floats, ints

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "LOW_PRECISION",
    "ROUNDED_ONCE",
    "as_bool",
    "as_float",
    "astype",
    "at_least_float32",
    "converted_to",
    "dequantize",
    "distinct",
    "rounded_once",
]

Function = TypeVar("Function", bound=Callable[..., Any])

CAST: Final = Operator(base.CAST)
EQUAL_ELEM: Final = Operator(base.EQUAL_ELEM)
NOT: Final = Operator(bools.NOT)
DEQUANTIZE: Final = Operator(floats.DEQUANTIZE)
INTO_COMPLEX: Final = Operator(complex_rows.INTO_COMPLEX)

LOW_PRECISION: Final = frozenset({F16, BF16})

# All functions and gradient rules that ``rounded_once`` decorates. A test checks each function.
ROUNDED_ONCE: Final[list[Callable[..., Any]]] = []

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


def rounded_once(function: Function) -> Function:
    """Decorate a composition that returns one tensor: float16 and bfloat16 are rounded only once.

    Tensors of these dtypes are converted to float32 for the call, and the result is converted back.
    Gradients, too, are computed in float32, and each is rounded once. The result has the dtype that
    the composition would have without this decorator: float32 or float64 if an argument has it.
    """

    def rounded(*arguments: Any, **options: Any) -> Any:
        # ``is_tensor`` is inlined, because each call of a wide tensor pays for it.
        for x in (*arguments, *options.values()) if options else arguments:
            if isinstance(x, TensorValue) and x.handle.spec.dtype in LOW_PRECISION:
                return _rounded_once(function, arguments, options)
        return function(*arguments, **options)

    ROUNDED_ONCE.append(function)
    return cast("Function", functools.update_wrapper(rounded, function))


def _rounded_once(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    dtypes = _float_dtypes([*arguments, *options.values()])
    try:
        result = function(
            *[_widened(x) for x in arguments],
            **{name: _widened(x) for name, x in options.items()},
        )
    except (DTypeMismatch, ShapeMismatch):
        result = None
    if result is None:
        # The error must name the dtypes of the given tensors.
        return function(*arguments, **options)
    return converted_to(result, dtypes.pop()) if len(dtypes) == 1 else result


def _float_dtypes(values: Iterable[Any]) -> set[DType]:
    """Return the dtypes of tensors and arrays that decide the dtype of a floating-point result."""
    dtypes = {as_dtype(x.dtype) for x in values if isinstance(x, TensorValue | np.ndarray)}
    return {dtype for dtype in dtypes if dtype.is_floating or dtype.is_complex}


def _widened(x: Any) -> Any:
    return at_least_float32(x) if is_tensor(x) else x
