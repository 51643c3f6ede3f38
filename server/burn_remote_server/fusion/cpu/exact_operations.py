"""Element-wise operations whose results IEEE 754 or integer arithmetic define bit by bit.

Any correct implementation of them gives the same bits as NumPy, except for the sign and payload of
a NaN.
``exp`` and similar functions are not exact in this sense. Neither is any operation on ``float16``
or ``bfloat16``, which is computed in ``float32``. The server's error function of ``float32`` is a
quotient of polynomials, so it is exact.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_server.fusion.fuser import StreamOperation

__all__ = [
    "COMPARISONS",
    "AroundExponential",
    "ExactStep",
    "around_exponential",
    "exact_steps",
    "is_exact_dtype",
    "returns_new_array",
]

DTypes = Sequence["np.dtype[Any]"]


class ExactStep(NamedTuple):
    """One exact function of scalars.

    ``operands`` are indices: first of the operation's operands, then of the results of its earlier
    steps.
    """

    name: str
    operands: tuple[int, ...]
    dtype: np.dtype[Any]


class AroundExponential(NamedTuple):
    """An operation as exact functions before and after one exponential, which NumPy computes.

    The steps of ``before`` take the operands and ``constants``; the last step returns the exponent.
    The steps of ``after`` take the operands, the exponential and ``constants``.
    """

    constants: tuple[np.ndarray[Any, Any], ...]
    before: tuple[ExactStep, ...]
    after: tuple[ExactStep, ...]


def is_exact_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether there are exact functions of this dtype."""
    return dtype in _FLOATS or dtype in _INTEGERS or dtype == _BOOL


_BOOL: Final[Any] = np.dtype(np.bool_)
_F32: Final[Any] = np.dtype(np.float32)
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

# For each ufunc, the exact function, and the dtypes of the operands for which it is exact.
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
    """Return an operation as exact functions of its operands, or ``None`` if it is not exact.

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


def _erf(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    return (ExactStep("erf", (0,), result),) if [*operands, result] == [_F32] * 2 else None


def _gelu(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    if [*operands, result] != [_F32] * 2:
        return None
    return ExactStep("normal_distribution", (0,), result), ExactStep("multiply", (0, 1), result)


def _sigmoid_backward(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    if [*operands] != [result] * 2 or result not in _FLOATS:
        return None
    return (
        ExactStep("multiply", (0, 0), result),
        ExactStep("subtract", (0, 2), result),
        ExactStep("multiply", (1, 3), result),
    )


def _cast(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    (source,) = operands
    # The server's cast of floats to integers saturates, but LLVM's conversion does not.
    if result == _BOOL or (source in _FLOATS and result in _INTEGERS):
        return None
    return (ExactStep("cast", (0,), result),)


def _power(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> tuple[ExactStep, ...] | None:
    # Only powers that the server's kernels compute by products and quotients, not by NumPy's power.
    exponent = operation.signature.call.parameters["rhs"]
    if [*operands] != [result] or result not in _FLOATS or exponent not in (2, 3, -1):
        return None
    if exponent == -1:
        return (ExactStep("reciprocal", (0,), result),)
    square = ExactStep("multiply", (0, 0), result)
    return (square,) if exponent == 2 else (square, ExactStep("multiply", (1, 0), result))


_ROWS: Final[Mapping[tuple[str, str], Callable[..., tuple[ExactStep, ...] | None]]] = {
    ("Activation", "Gelu"): _gelu,
    ("Activation", "ReluBackward"): _relu_backward,
    ("Activation", "SigmoidBackward"): _sigmoid_backward,
    ("Base", "MaskFill"): _mask_fill,
    ("Base", "MaskWhere"): _mask_fill,
    ("Base", "Cast"): _cast,
    ("Int", "IntoFloat"): _cast,
    ("Float", "Erf"): _erf,
    ("Bool", "IntoFloat"): _cast,
    ("Bool", "IntoInt"): _cast,
    ("Numeric", "Clamp"): _clamp,
    ("Numeric", "PowiScalar"): _power,
    ("Float", "PowfScalar"): _power,
}


def around_exponential(
    operation: StreamOperation, operands: DTypes, result: np.dtype[Any]
) -> AroundExponential | None:
    """Return an operation as exact functions around an exponential, or ``None`` if it is not one.

    ``operands`` are the dtypes of its inputs.
    """
    row = operation.signature.row
    made_of = _EXPONENTIALS.get((row.family, row.name))
    if made_of is None or len(operation.calls) != 1 or operation.calls[0].constants:
        return None
    return made_of(operands, result)


def _sigmoid(operands: DTypes, result: np.dtype[Any]) -> AroundExponential | None:
    if [*operands] != [result] or result not in _FLOATS:
        return None
    return AroundExponential(
        (np.array(-1, result), np.array(0, result), np.array(1, result)),
        (ExactStep("absolute", (0,), result), ExactStep("multiply", (4, 1), result)),
        (
            ExactStep("less", (0, 3), _BOOL),
            ExactStep("select", (5, 1, 4), result),
            ExactStep("add", (1, 4), result),
            ExactStep("divide", (6, 7), result),
        ),
    )


def _gelu_backward(operands: DTypes, result: np.dtype[Any]) -> AroundExponential | None:
    if [*operands, result] != [_F32] * 3:
        return None
    return AroundExponential(
        (np.array(-0.5, result), np.array(1 / math.sqrt(2 * math.pi), result)),
        (ExactStep("multiply", (0, 0), result), ExactStep("multiply", (4, 2), result)),
        (
            ExactStep("multiply", (2, 4), result),
            ExactStep("multiply", (0, 5), result),
            ExactStep("normal_distribution", (0,), result),
            ExactStep("add", (7, 6), result),
            ExactStep("multiply", (1, 8), result),
        ),
    )


_EXPONENTIALS: Final[Mapping[tuple[str, str], Callable[..., AroundExponential | None]]] = {
    ("Activation", "GeluBackward"): _gelu_backward,
    ("Activation", "Sigmoid"): _sigmoid,
}

# Rows whose functions are not ufuncs, but also return a new array and keep no reference to it.
_NEW_ARRAYS: Final = frozenset({
    ("Activation", "Gelu"), ("Activation", "GeluBackward"), ("Activation", "Sigmoid"),
    ("Activation", "SigmoidBackward"), ("Float", "Erf"),
})  # fmt: skip


def returns_new_array(operation: StreamOperation) -> bool:
    """Whether nothing else references the result of an elementwise operation."""
    row = operation.signature.row
    is_ufunc = isinstance(operation.calls[0].function, np.ufunc)
    return is_ufunc or (row.family, row.name) in _NEW_ARRAYS
