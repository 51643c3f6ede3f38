"""Operations as expressions of CUDA C++, whose results have the same bits as CuPy's own kernels.

The expressions are those of CuPy's functions (cupy/_core/_routines_math.pyx, cupy/_math/*). Kernels
are compiled without contraction of products and sums (``--fmad=false``), so a fused run of
operations is rounded as the single operations are. Integers are only cast to floats and selected
by masks, because a signed overflow would be undefined in C++.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_protocol.operations.row import Signature
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.core.scalars import rounded

__all__ = ["C_TYPES", "Expression", "expression_of"]

_BOOL: Final[Any] = np.dtype(np.bool_)
_FLOATS: Final = {np.dtype(np.float32): "f", np.dtype(np.float64): ""}

# The C++ types of the elements that a kernel may take.
C_TYPES: Final[Mapping[Any, str]] = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    _BOOL: "bool",
    np.dtype(np.int8): "signed char",
    np.dtype(np.int16): "short",
    np.dtype(np.int32): "int",
    np.dtype(np.int64): "long long",
    np.dtype(np.uint8): "unsigned char",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.uint32): "unsigned int",
    np.dtype(np.uint64): "unsigned long long",
}

Dtypes = Sequence["np.dtype[Any]"]


class Expression(NamedTuple):
    """An operation on one element of each operand.

    ``text`` refers to the operands as ``{0}``, ``{1}`` …: first the inputs, then ``numbers``, which
    have the inputs' dtype.
    """

    text: str
    dtype: np.dtype[Any]
    numbers: tuple[Any, ...] = ()


Builder = Callable[[Signature, Dtypes, "np.dtype[Any]"], Expression | None]


def expression_of(signature: Signature) -> Expression | None:
    """Return an operation as an expression; ``None`` if it needs one of CuPy's kernels."""
    build = _ROWS.get((signature.row.family, signature.row.name))
    if build is None or signature.output_count != 1:
        return None
    specs = [*[use.spec for use in signature.input_uses], *signature.outputs]
    if any(spec.dtype.scheme is not None for spec in specs):
        return None
    *operands, result = [array_dtype(spec.dtype) for spec in specs]
    if not all(dtype in C_TYPES for dtype in (*operands, result)):
        return None
    return build(signature, operands, result)


def _floats(text: str) -> Builder:
    """Return the builder of a function of floats whose result has their dtype.

    ``$`` in ``text`` is replaced by ``f`` for ``float32``.
    """

    def build(signature: Signature, operands: Dtypes, result: np.dtype[Any]) -> Expression | None:
        if result not in _FLOATS or {*operands} != {result}:
            return None
        return Expression(text.replace("$", _FLOATS[result]), result)

    return build


def _with_constants(text: str, *constants: float) -> Builder:
    """Return the builder of a function of floats and of constants, which are its last operands."""
    build_floats = _floats(text)

    def build(signature: Signature, operands: Dtypes, result: np.dtype[Any]) -> Expression | None:
        found = build_floats(signature, operands, result)
        numbers = tuple(result.type(number) for number in constants) if found else ()
        return None if found is None else found._replace(numbers=numbers)

    return build


def _test(text: str) -> Builder:
    """Return the builder of a function of floats whose result is a bool."""

    def build(signature: Signature, operands: Dtypes, result: np.dtype[Any]) -> Expression | None:
        if result != _BOOL or len({*operands}) != 1 or operands[0] not in _FLOATS:
            return None
        return Expression(text, result)

    return build


def _bools(text: str) -> Builder:
    def build(signature: Signature, operands: Dtypes, result: np.dtype[Any]) -> Expression | None:
        return Expression(text, result) if {*operands, result} == {_BOOL} else None

    return build


def _with_number(text: str, *, is_test: bool = False) -> Builder:
    """Return the builder of a function of a float and the scalar ``rhs`` in the float's dtype."""

    def build(signature: Signature, operands: Dtypes, result: np.dtype[Any]) -> Expression | None:
        (dtype,) = operands
        if dtype not in _FLOATS or result != (_BOOL if is_test else dtype):
            return None
        number = _number(signature.call.parameters["rhs"], dtype)
        return None if number is None else Expression(text, result, (number,))

    return build


def _number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a scalar in a dtype; ``None`` for an integer that would be rounded twice."""
    if rounded(value, dtype) != value and value == value and not _is_plain(value):
        return None
    with np.errstate(all="ignore"):
        return dtype.type(value)


def _is_plain(value: Any) -> bool:
    # A larger integer would be rounded twice: to a Python float, and then to the dtype.
    return isinstance(value, float) or abs(value) <= 2**53


def _clamp(signature: Signature, operands: Dtypes, result: np.dtype[Any]) -> Expression | None:
    (dtype,) = operands
    if dtype not in _FLOATS or result != dtype:
        return None
    low, high = (signature.call.parameters[name] for name in ("min", "max"))
    text, numbers = "{0}", []
    for limit, function, skipped in ((low, "max", -math.inf), (high, "min", math.inf)):
        # An infinite limit changes no element, so it is skipped. If both limits are infinite, the
        # lower limit is applied. The kernel of the single operation does the same.
        if limit == skipped and not (function == "max" and high == math.inf):
            continue
        number = _number(limit, dtype)
        if number is None:
            return None
        numbers.append(number)
        text = _extreme(function, text, f"{{{len(numbers)}}}")
    return Expression(text, dtype, tuple(numbers))


def _extreme(function: str, lhs: str, rhs: str) -> str:
    return f"burn_{function}({lhs}, {rhs})"


def _power(signature: Signature, operands: Dtypes, result: np.dtype[Any]) -> Expression | None:
    (dtype,) = operands
    if dtype not in _FLOATS or result != dtype:
        return None
    exponent = float(signature.call.parameters["rhs"])
    if exponent in _POWERS:
        return Expression(_POWERS[exponent], dtype)
    if signature.row.name != "PowfScalar":
        return None  # the kernel computes these, because a float may not represent the exponent
    return Expression(f"pow{_FLOATS[dtype]}({{0}}, {{1}})", dtype, (dtype.type(exponent),))


# The powers that the server computes without a call of ``pow``.
_POWERS: Final = {
    2.0: "({0} * {0})",
    3.0: "(({0} * {0}) * {0})",
    -1.0: "(1 / {0})",
    1.0: "{0}",
}


def _select(signature: Signature, operands: Dtypes, result: np.dtype[Any]) -> Expression | None:
    tensor, mask, value = operands
    if mask != _BOOL or {tensor, value} != {result}:
        return None
    return Expression("({1} ? {2} : {0})", result)


def _fill(signature: Signature, operands: Dtypes, result: np.dtype[Any]) -> Expression | None:
    tensor, mask = operands
    if mask != _BOOL or tensor != result or result not in _FLOATS:
        return None
    number = _number(signature.call.parameters["value"], result)
    return None if number is None else Expression("({1} ? {2} : {0})", result, (number,))


def _cast(signature: Signature, operands: Dtypes, result: np.dtype[Any]) -> Expression | None:
    # No casts to integers: the server's casts of floats saturate, but in C++, the cast of a float
    # that is out of range is undefined.
    if result not in _FLOATS or len(operands) != 1:
        return None
    return Expression(f"static_cast<{C_TYPES[result]}>({{0}})", result)


_ROWS: Final[Mapping[tuple[str, str], Builder]] = {
    ("Numeric", "Add"): _floats("({0} + {1})"),
    ("Numeric", "Sub"): _floats("({0} - {1})"),
    ("Numeric", "Mul"): _floats("({0} * {1})"),
    ("Numeric", "Div"): _floats("({0} / {1})"),
    ("Numeric", "AddScalar"): _with_number("({0} + {1})"),
    ("Numeric", "SubScalar"): _with_number("({0} - {1})"),
    ("Numeric", "MulScalar"): _with_number("({0} * {1})"),
    ("Numeric", "DivScalar"): _with_number("({0} / {1})"),
    ("Numeric", "Abs"): _floats("fabs$({0})"),
    ("Numeric", "Neg"): _floats("(-{0})"),
    ("Activation", "Relu"): _with_constants("burn_max({0}, {1})", 0),
    ("Activation", "ReluBackward"): _with_constants("({0} <= {2} ? {2} : {1})", 0),
    ("Activation", "Gelu"): _with_constants(
        "({0} * ((erf({0} / {1}) + {2}) / {3}))", math.sqrt(2), 1, 2
    ),
    ("Activation", "GeluBackward"): _with_constants(
        "({1} * (((erf({0} / {2}) + {3}) / {4}) + ({0} * (exp(({0} * {0}) * {5}) * {6}))))",
        math.sqrt(2),
        1,
        2,
        -0.5,
        1 / math.sqrt(2 * math.pi),
    ),
    ("Numeric", "Clamp"): _clamp,
    ("Numeric", "Greater"): _test("({0} > {1})"),
    ("Numeric", "GreaterEqual"): _test("({0} >= {1})"),
    ("Numeric", "Lower"): _test("({0} < {1})"),
    ("Numeric", "LowerEqual"): _test("({0} <= {1})"),
    ("Numeric", "GreaterElem"): _with_number("({0} > {1})", is_test=True),
    ("Numeric", "GreaterEqualElem"): _with_number("({0} >= {1})", is_test=True),
    ("Numeric", "LowerElem"): _with_number("({0} < {1})", is_test=True),
    ("Numeric", "LowerEqualElem"): _with_number("({0} <= {1})", is_test=True),
    ("Numeric", "PowiScalar"): _power,
    ("Base", "Equal"): _test("({0} == {1})"),
    ("Base", "EqualElem"): _with_number("({0} == {1})", is_test=True),
    ("Base", "MaskWhere"): _select,
    ("Base", "MaskFill"): _fill,
    ("Base", "Cast"): _cast,
    ("Bool", "IntoFloat"): _cast,
    ("Int", "IntoFloat"): _cast,
    ("Bool", "And"): _bools("({0} & {1})"),
    ("Bool", "Or"): _bools("({0} | {1})"),
    ("Bool", "Not"): _bools("(!{0})"),
    ("Float", "PowfScalar"): _power,
    ("Float", "Powf"): _floats("pow$({0}, {1})"),
    ("Float", "Exp"): _floats("exp({0})"),
    ("Float", "Log"): _floats("log({0})"),
    ("Float", "Log1p"): _floats("log1p({0})"),
    ("Float", "Erf"): _floats("erf({0})"),
    ("Float", "Sqrt"): _floats("sqrt({0})"),
    ("Float", "Recip"): _floats("(1 / {0})"),
    ("Float", "Cos"): _floats("cos({0})"),
    ("Float", "Cosh"): _floats("cosh({0})"),
    ("Float", "Sin"): _floats("sin({0})"),
    ("Float", "Sinh"): _floats("sinh({0})"),
    ("Float", "Tan"): _floats("tan({0})"),
    ("Float", "Tanh"): _floats("tanh({0})"),
    ("Float", "ArcCos"): _floats("acos({0})"),
    ("Float", "ArcCosh"): _floats("acosh({0})"),
    ("Float", "ArcSin"): _floats("asin({0})"),
    ("Float", "ArcSinh"): _floats("asinh({0})"),
    ("Float", "ArcTan"): _floats("atan({0})"),
    ("Float", "ArcTanh"): _floats("atanh({0})"),
    ("Float", "ArcTan2"): _floats("atan2({0}, {1})"),
    ("Float", "Round"): _floats("rint({0})"),
    ("Float", "Floor"): _floats("floor({0})"),
    ("Float", "Ceil"): _floats("ceil({0})"),
    ("Float", "Trunc"): _floats("trunc({0})"),
    ("Float", "IsNan"): _test("isnan({0})"),
    ("Float", "IsInf"): _test("isinf({0})"),
}
