"""Element-wise operations whose results IEEE 754 or integer arithmetic define bit by bit.

Any correct implementation of them gives NumPy's bits, but for the sign and payload of a NaN.
``exp`` and similar functions are not exact in this sense. Neither is any operation on ``float16``
or ``bfloat16``, which is computed in ``float32``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_server.fusion.fuser import StreamOperation

__all__ = ["COMPARISONS", "ExactStep", "exact_steps", "is_exact_dtype"]

DTypes = Sequence["np.dtype[Any]"]


class ExactStep(NamedTuple):
    """One exact function of scalars.

    ``operands``: from 0 on those of the operation, then the results of its earlier steps.
    """

    name: str
    operands: tuple[int, ...]
    dtype: np.dtype[Any]


def is_exact_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether there are exact functions of this dtype."""
    return dtype in _FLOATS or dtype in _INTEGERS or dtype == _BOOL


_BOOL: Final[Any] = np.dtype(np.bool_)
_FLOATS: Final = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
_INTEGERS: Final = frozenset(
    np.dtype(each)
    for each in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
)
_NUMBERS: Final = _FLOATS | _INTEGERS
_ALL: Final = _NUMBERS | {_BOOL}

# The maximum or minimum of 0.0 and -0.0 is the second operand on x86 processors, whose instructions
# NumPy uses. Other processors differ.
_EXTREMES: Final = _NUMBERS if platform.machine() in ("x86_64", "AMD64") else _INTEGERS

COMPARISONS: Final = frozenset(
    {"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"}
)

# The functions by ufunc, and the dtypes of the operands for which they are exact.
_UFUNCS: Final[Mapping[Any, tuple[str, frozenset[Any]]]] = {
    np.add: ("add", _NUMBERS),
    np.subtract: ("subtract", _NUMBERS),
    np.multiply: ("multiply", _NUMBERS),
    np.true_divide: ("divide", _FLOATS),
    np.reciprocal: ("reciprocal", _FLOATS),
    np.sqrt: ("sqrt", _FLOATS),
    np.absolute: ("absolute", _NUMBERS),
    np.rint: ("rint", _FLOATS),
    np.floor: ("floor", _FLOATS),
    np.ceil: ("ceil", _FLOATS),
    np.trunc: ("trunc", _FLOATS),
    np.maximum: ("maximum", _EXTREMES),
    np.minimum: ("minimum", _EXTREMES),
    np.equal: ("equal", _ALL),
    np.not_equal: ("not_equal", _ALL),
    np.greater: ("greater", _NUMBERS),
    np.greater_equal: ("greater_equal", _NUMBERS),
    np.less: ("less", _NUMBERS),
    np.less_equal: ("less_equal", _NUMBERS),
    np.isnan: ("isnan", _FLOATS),
    np.isinf: ("isinf", _FLOATS),
    np.logical_and: ("and", frozenset({_BOOL})),
    np.logical_or: ("or", frozenset({_BOOL})),
    np.logical_xor: ("xor", frozenset({_BOOL})),
    np.logical_not: ("not", frozenset({_BOOL})),
    np.bitwise_and: ("and", _INTEGERS),
    np.bitwise_or: ("or", _INTEGERS),
    np.bitwise_xor: ("xor", _INTEGERS),
    np.invert: ("not", _INTEGERS),
}


def exact_steps(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    """Return an operation as exact functions of its operands, or ``None`` if it is none.

    ``operands`` are the dtypes of its inputs, then of its constants.
    """
    if len(operation.calls) != 1 or not all(map(is_exact_dtype, [*operands, result])):
        return None
    function = operation.calls[0].function
    if isinstance(function, np.ufunc):
        name, dtypes = _UFUNCS.get(function, ("", frozenset()))
        wanted = _BOOL if name in COMPARISONS or name.startswith("is") else operands[0]
        if operands[0] not in dtypes or {*operands} != {operands[0]} or result != wanted:
            return None
        return (ExactStep(name, tuple(range(len(operands))), result),)
    row = operation.signature.row
    steps = _ROWS.get((row.family, row.name))
    return None if steps is None else steps(operation, operands, result)


def _mask_fill(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    if [*operands] != [result, _BOOL, result]:
        return None
    return (ExactStep("select", (1, 2, 0), result),)


def _clamp(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    if len(operands) != 3 or {*operands} != {result} or result not in _EXTREMES:
        return None
    return ExactStep("maximum", (0, 1), result), ExactStep("minimum", (3, 2), result)


def _relu_backward(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    if len(operands) != 3 or {*operands} != {result} or result not in _FLOATS:
        return None
    return ExactStep("less_equal", (0, 2), _BOOL), ExactStep("select", (3, 2, 1), result)


def _cast(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    (source,) = operands
    # A cast of floats to integers saturates, which LLVM's conversion does not.
    if result == _BOOL or (source in _FLOATS and result in _INTEGERS):
        return None
    return (ExactStep("cast", (0,), result),)


def _power(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    # The powers that the server's kernels compute by products and quotients, not by NumPy's power.
    exponent = operation.signature.call.parameters["rhs"]
    if [*operands] != [result] or result not in _FLOATS or exponent not in (2, 3, -1):
        return None
    if exponent == -1:
        return (ExactStep("reciprocal", (0,), result),)
    square = ExactStep("multiply", (0, 0), result)
    return (square,) if exponent == 2 else (square, ExactStep("multiply", (1, 0), result))


_ROWS: Final[Mapping[tuple[str, str], Callable[..., tuple[ExactStep, ...] | None]]] = {
    ("Activation", "ReluBackward"): _relu_backward,
    ("Base", "MaskFill"): _mask_fill,
    ("Base", "MaskWhere"): _mask_fill,
    ("Base", "Cast"): _cast,
    ("Int", "IntoFloat"): _cast,
    ("Bool", "IntoFloat"): _cast,
    ("Bool", "IntoInt"): _cast,
    ("Numeric", "Clamp"): _clamp,
    ("Numeric", "PowiScalar"): _power,
    ("Float", "PowfScalar"): _power,
}
