"""How does a tensor get another dtype?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.operators import Operator
from burn_remote_protocol.dtypes import BOOL, Category, DType
from burn_remote_protocol.operations.families import base, bools, floats, ints
from burn_remote_protocol.operations.values import Scalar
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.tensor import Tensor

__all__ = ["as_bool", "as_float", "astype"]

CAST: Final = Operator(base.CAST)
EQUAL_ELEM: Final = Operator(base.EQUAL_ELEM)
NOT: Final = Operator(bools.NOT)
DEQUANTIZE: Final = Operator(floats.DEQUANTIZE)

# From the first category to the second: the IR has a row for each pair, none to bool.
CONVERSIONS: Final = {
    (Category.FLOAT, Category.FLOAT): CAST,
    (Category.FLOAT, Category.INT): Operator(floats.INTO_INT),
    (Category.INT, Category.FLOAT): Operator(ints.INTO_FLOAT),
    (Category.INT, Category.INT): CAST,
    (Category.BOOL, Category.FLOAT): Operator(bools.INTO_FLOAT),
    (Category.BOOL, Category.INT): Operator(bools.INTO_INT),
    (Category.BOOL, Category.BOOL): CAST,
    (Category.QUANTIZED, Category.FLOAT): DEQUANTIZE,
}


def astype(x: Tensor, dtype: DType, /) -> Tensor:
    """Convert the elements to another dtype; return ``x`` itself if it has that already.

    Floats lose their fraction on the way to integers; numbers become true unless they are zero.
    A quantized tensor is dequantized. Nothing converts to a quantized dtype (see ``quantize``).
    """
    spec = x.handle.spec
    if dtype is spec.dtype:
        return x
    target = TensorSpec(spec.shape, dtype)
    source, wanted = _category(spec.dtype), _category(dtype)
    if wanted is Category.BOOL and source is not Category.BOOL:
        zero = Scalar.of(0.0 if source is Category.FLOAT else 0)
        return NOT.unary(EQUAL_ELEM.apply((x,), (zero,), (target,)))
    return CONVERSIONS.get((source, wanted), CAST).apply((x,), (), (target,))


def as_bool(x: Tensor) -> Tensor:
    """Return ``x`` if it has truth values, otherwise whether its elements differ from zero."""
    return x if x.handle.spec.dtype.is_bool else astype(x, BOOL)


def as_float(x: Tensor, dtype: DType) -> Tensor:
    """Return ``x`` if it has floating-point numbers, otherwise its elements as ``dtype``."""
    return x if x.handle.spec.dtype.is_floating else astype(x, dtype)


def _category(dtype: DType) -> Category:
    # One family of operations serves both kinds of integer.
    return Category.INT if dtype.category is Category.UINT else dtype.category
