"""LLVM assembly of kernels: exact functions of array elements in one loop, values in registers.

No fast-math flag and no ``contract`` flag is set, so LLVM rounds each result as IEEE 754 says and
never joins a multiplication and an addition.

A kernel is ``void(ptr pointers, ptr strides, ptr lengths)``. The arguments are the addresses of its
operands and results, for each of them the strides in bytes along all axes but the last, and the
lengths of the axes. Along the last axis, an array has either consecutive elements or one element
for all iterations.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_server.backends.array.kernels.error_function import (
    DENOMINATOR_32,
    LIMIT_32,
    NUMERATOR_32,
)
from burn_remote_server.fusion.cpu.exact_operations import COMPARISONS

__all__ = [
    "KernelArray",
    "KernelStep",
    "computed",
    "declarations",
    "kernel_source",
    "literal",
    "load",
    "memory_type",
    "store",
    "type_name",
]


NOTHING_JOINED: Final[Mapping[int, int]] = {}


class KernelArray(NamedTuple):
    """An operand or a result; ``is_row``: it has consecutive elements along the last axis."""

    dtype: np.dtype[Any]
    is_row: bool = True


class KernelStep(NamedTuple):
    """An exact function; its operands are the kernel's operands, then the results of its steps."""

    name: str
    operands: tuple[int, ...]
    dtype: np.dtype[Any]


def kernel_source(
    name: str,
    rank: int,
    operands: Sequence[KernelArray],
    steps: Sequence[KernelStep],
    results: Sequence[int],
    joined: Mapping[int, int] = NOTHING_JOINED,
) -> str:
    """Return the assembly of a kernel on arrays with ``rank`` axes.

    ``results`` are the values that it stores. ``joined`` has, by place, the results that are stored
    in the memory of an operand, with that operand, which must not overlap another operand. Other
    results must not overlap any operand.
    """
    dtypes = [each.dtype for each in operands] + [each.dtype for each in steps]
    arrays = [*operands, *[KernelArray(dtypes[value]) for value in results]]
    body = _body(name, rank, arrays, operands, steps, results, joined)
    return _entry(name, rank, len(arrays)) + body


def _entry(name: str, rank: int, count: int) -> str:
    """Return the function that loads the arguments of the body."""
    lines = [f"define void @{name}(ptr %pointers, ptr %strides, ptr %lengths) {{"]
    arguments = []
    for place in range(count):
        lines += _loaded(f"p{place}", "ptr", "pointers", place)
        arguments.append(f"ptr %p{place}")
    for place in range(count * (rank - 1)):
        lines += _loaded(f"s{place}", "i64", "strides", place)
        arguments.append(f"i64 %s{place}")
    for axis in range(rank):
        lines += _loaded(f"n{axis}", "i64", "lengths", axis)
        arguments.append(f"i64 %n{axis}")
    lines += [f"  call void @{name}_body({', '.join(arguments)})", "  ret void", "}", ""]
    return "\n".join(lines)


def _loaded(name: str, kind: str, table: str, place: int) -> list[str]:
    return [
        f"  %a_{name} = getelementptr i64, ptr %{table}, i64 {place}",
        f"  %{name} = load {kind}, ptr %a_{name}",
    ]


def _body(
    name: str,
    rank: int,
    arrays: Sequence[KernelArray],
    operands: Sequence[KernelArray],
    steps: Sequence[KernelStep],
    results: Sequence[int],
    joined: Mapping[int, int],
) -> str:
    count = len(operands)
    # Only arrays that are written need ``noalias``. A result that is stored in an operand does not
    # use its own pointer.
    written = {joined.get(place, count + place) for place in range(len(results))}
    arguments = [
        f"ptr noalias %p{place}" if place in written else f"ptr %p{place}"
        for place in range(len(arrays))
    ]
    arguments += [f"i64 %s{place}" for place in range(len(arrays) * (rank - 1))]
    arguments += [f"i64 %n{axis}" for axis in range(rank)]
    lines = [f"define internal void @{name}_body({', '.join(arguments)}) noinline {{", "entry:"]
    lines.append("  br label %loop0")
    # The loops over all axes but the last; no axis has the length 0.
    before = "entry"
    for axis in range(rank - 1):
        lines += [
            f"loop{axis}:",
            f"  %i{axis} = phi i64 [ 0, %{before} ], [ %j{axis}, %end{axis} ]",
        ]
        for place in range(len(arrays)):
            source = f"p{place}" if axis == 0 else f"q{place}_{axis - 1}"
            stride = place * (rank - 1) + axis
            lines += [
                f"  %o{place}_{axis} = mul i64 %i{axis}, %s{stride}",
                f"  %q{place}_{axis} = getelementptr i8, ptr %{source}, i64 %o{place}_{axis}",
            ]
        before = f"loop{axis}"
        lines.append(f"  br label %loop{axis + 1}")
    lines += _row(rank, arrays, operands, steps, results, joined, before)
    for axis in reversed(range(rank - 1)):
        after = "exit" if axis == 0 else f"end{axis - 1}"
        lines += [
            f"end{axis}:",
            f"  %j{axis} = add i64 %i{axis}, 1",
            f"  %c{axis} = icmp slt i64 %j{axis}, %n{axis}",
            f"  br i1 %c{axis}, label %loop{axis}, label %{after}",
        ]
    return "\n".join([*lines, "exit:", "  ret void", "}", ""])


def _row(
    rank: int,
    arrays: Sequence[KernelArray],
    operands: Sequence[KernelArray],
    steps: Sequence[KernelStep],
    results: Sequence[int],
    joined: Mapping[int, int],
    before: str,
) -> list[str]:
    """Return the loop over the last axis."""
    last = rank - 1
    bases = [f"p{place}" if last == 0 else f"q{place}_{last - 1}" for place in range(len(arrays))]
    lines = [f"loop{last}:"]
    for place, operand in enumerate(operands):
        if not operand.is_row:
            lines += load(place, operand.dtype, bases[place])
    lines += [
        "  br label %row",
        "row:",
        f"  %i = phi i64 [ 0, %loop{last} ], [ %j, %row ]",
    ]
    for place, operand in enumerate(operands):
        if operand.is_row:
            address = f"e{place}"
            lines.append(_address(address, operand.dtype, bases[place]))
            lines += load(place, operand.dtype, address)
    dtypes = [each.dtype for each in operands]
    for step in steps:
        lines += computed(len(dtypes), step, [dtypes[value] for value in step.operands])
        dtypes.append(step.dtype)
    for place, value in enumerate(results):
        array = len(operands) + place
        lines.append(_address(f"e{array}", dtypes[value], bases[joined.get(place, array)]))
        lines += store(array, value, dtypes[value])
    after = "exit" if last == 0 else f"end{last - 1}"
    return [
        *lines,
        "  %j = add i64 %i, 1",
        f"  %more = icmp slt i64 %j, %n{last}",
        f"  br i1 %more, label %row, label %{after}",
    ]


def _address(name: str, dtype: np.dtype[Any], base: str) -> str:
    return f"  %{name} = getelementptr {memory_type(dtype)}, ptr %{base}, i64 %i"


def load(value: int, dtype: np.dtype[Any], address: str) -> list[str]:
    """Return the instructions that load an element into ``%v<value>``."""
    # ``align 1``, because arrays that are views of a received message may have any address.
    if dtype.kind == "b":
        return [
            f"  %m{value} = load i8, ptr %{address}, align 1",
            f"  %v{value} = icmp ne i8 %m{value}, 0",
        ]
    return [f"  %v{value} = load {type_name(dtype)}, ptr %{address}, align 1"]


def store(place: int, value: int, dtype: np.dtype[Any]) -> list[str]:
    """Return the instructions that store ``%v<value>`` at ``%e<place>``."""
    if dtype.kind == "b":
        return [
            f"  %m{place}_out = zext i1 %v{value} to i8",
            f"  store i8 %m{place}_out, ptr %e{place}, align 1",
        ]
    return [f"  store {type_name(dtype)} %v{value}, ptr %e{place}, align 1"]


def type_name(dtype: np.dtype[Any]) -> str:
    """Return LLVM's type of a value."""
    if dtype.kind == "f":
        return {4: "float", 8: "double"}[dtype.itemsize]
    return "i1" if dtype.kind == "b" else f"i{8 * dtype.itemsize}"


def memory_type(dtype: np.dtype[Any]) -> str:
    """Return LLVM's type of an element in memory."""
    return "i8" if dtype.kind == "b" else type_name(dtype)


# -- functions ------------------------------------------------------------------------------------

_FLOAT_INSTRUCTIONS: Final = {
    "add": "fadd", "subtract": "fsub", "multiply": "fmul", "divide": "fdiv",
}  # fmt: skip
_INTEGER_INSTRUCTIONS: Final = {
    "add": "add", "subtract": "sub", "multiply": "mul", "and": "and", "or": "or", "xor": "xor",
}  # fmt: skip
_INTRINSICS: Final = {
    "sqrt": "llvm.sqrt", "absolute": "llvm.fabs", "rint": "llvm.roundeven",
    "floor": "llvm.floor", "ceil": "llvm.ceil", "trunc": "llvm.trunc",
}  # fmt: skip
_ORDERS: Final = {
    "equal": "eq", "not_equal": "ne", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le",
}  # fmt: skip

_INFINITY: Final = "0x7FF0000000000000"  # of both floating-point types


def computed(value: int, step: KernelStep, dtypes: Sequence[np.dtype[Any]]) -> list[str]:
    """Return the instructions that compute one step into ``%v<value>``."""
    v, operands = f"%v{value}", [f"%v{operand}" for operand in step.operands]
    dtype = dtypes[0]
    if step.name in COMPARISONS:
        return [f"  {v} = {_comparison(step.name, dtype)} {', '.join(operands)}"]
    written = _WRITTEN.get(step.name)
    if written is not None:
        return written(v, operands, dtypes, step.dtype)
    if dtype.kind == "f" and step.name in _INTRINSICS:
        kind = type_name(dtype)
        return [
            f"  {v} = call {kind} @{_INTRINSICS[step.name]}{_suffix(dtype)}({kind} {operands[0]})"
        ]
    table = _FLOAT_INSTRUCTIONS if dtype.kind == "f" else _INTEGER_INSTRUCTIONS
    return [f"  {v} = {table[step.name]} {type_name(dtype)} {', '.join(operands)}"]


def _suffix(dtype: np.dtype[Any]) -> str:
    return f".f{8 * dtype.itemsize}" if dtype.kind == "f" else f".i{8 * dtype.itemsize}"


def _comparison(name: str, dtype: np.dtype[Any]) -> str:
    order = _ORDERS[name]
    if dtype.kind == "f":
        # Every comparison with NaN is false, except ``!=``.
        return f"fcmp {'u' if order == 'ne' else 'o'}{order} {type_name(dtype)}"
    sign = "" if order in ("eq", "ne") else "s" if dtype.kind == "i" else "u"
    return f"icmp {sign}{order} {type_name(dtype)}"


def _extreme(order: str) -> Callable[..., list[str]]:
    """Return the instructions of a maximum or minimum.

    The result is as in NumPy on x86: NaN if an operand is NaN, and the second operand for 0.0 and
    -0.0.
    """

    def written(v: str, operands: list[str], dtypes: Any, result: np.dtype[Any]) -> list[str]:
        kind, (lhs, rhs) = type_name(result), operands
        chosen = f"{kind} {lhs}, {kind} {rhs}"
        if result.kind != "f":
            sign = "s" if result.kind == "i" else "u"
            return [
                f"  {v}_c = icmp {sign}{order} {kind} {lhs}, {rhs}",
                f"  {v} = select i1 {v}_c, {chosen}",
            ]
        return [
            f"  {v}_c = fcmp o{order} {kind} {lhs}, {rhs}",
            f"  {v}_s = select i1 {v}_c, {chosen}",
            f"  {v}_n = fcmp uno {kind} {lhs}, {lhs}",
            f"  {v} = select i1 {v}_n, {kind} {lhs}, {kind} {v}_s",
        ]

    return written


def _reciprocal(v: str, operands: list[str], dtypes: Any, result: np.dtype[Any]) -> list[str]:
    return [f"  {v} = fdiv {type_name(result)} 1.0, {operands[0]}"]


def _select(v: str, operands: list[str], dtypes: Any, result: np.dtype[Any]) -> list[str]:
    kind, (mask, chosen, other) = type_name(result), operands
    return [f"  {v} = select i1 {mask}, {kind} {chosen}, {kind} {other}"]


def _not(v: str, operands: list[str], dtypes: Any, result: np.dtype[Any]) -> list[str]:
    ones = "true" if result.kind == "b" else "-1"
    return [f"  {v} = xor {type_name(result)} {operands[0]}, {ones}"]


def _isnan(v: str, operands: list[str], dtypes: Any, result: np.dtype[Any]) -> list[str]:
    return [f"  {v} = fcmp uno {type_name(dtypes[0])} {operands[0]}, {operands[0]}"]


def _isinf(v: str, operands: list[str], dtypes: Any, result: np.dtype[Any]) -> list[str]:
    kind = type_name(dtypes[0])
    return [
        f"  {v}_a = call {kind} @llvm.fabs{_suffix(dtypes[0])}({kind} {operands[0]})",
        f"  {v} = fcmp oeq {kind} {v}_a, {_INFINITY}",
    ]


def _absolute(v: str, operands: list[str], dtypes: Any, result: np.dtype[Any]) -> list[str]:
    kind = type_name(result)
    if result.kind == "f":
        return [f"  {v} = call {kind} @llvm.fabs{_suffix(result)}({kind} {operands[0]})"]
    if result.kind == "u":
        return [f"  {v} = add {kind} {operands[0]}, 0"]
    # ``i1 false``: the absolute value of the smallest integer is itself, not undefined.
    return [f"  {v} = call {kind} @llvm.abs{_suffix(result)}({kind} {operands[0]}, i1 false)"]


def _cast(v: str, operands: list[str], dtypes: Any, result: np.dtype[Any]) -> list[str]:
    source, target = dtypes[0], result
    instruction = _conversion(source, target)
    if instruction is None:
        same = f"{type_name(target)} {operands[0]}"
        return [f"  {v} = select i1 true, {same}, {same}"]
    return [f"  {v} = {instruction} {type_name(source)} {operands[0]} to {type_name(target)}"]


def _conversion(source: np.dtype[Any], target: np.dtype[Any]) -> str | None:
    """Return LLVM's conversion, or ``None`` between integers of the same size."""
    if target.kind == "f":
        if source.kind != "f":
            return "sitofp" if source.kind == "i" else "uitofp"
        if source.itemsize == target.itemsize:
            return None
        return "fpext" if source.itemsize < target.itemsize else "fptrunc"
    if source.kind == "b":
        return "zext"
    if source.itemsize == target.itemsize:
        return None
    if source.itemsize > target.itemsize:
        return "trunc"
    return "sext" if source.kind == "i" else "zext"


class _Formula:
    """Instructions of ``float32`` arithmetic; the names of intermediate values begin with ``v``."""

    def __init__(self, v: str) -> None:
        self._v = v
        self.lines: list[str] = []

    def apply(self, name: str, lhs: Any, rhs: Any) -> str:
        """Append a function of two operands, each a value or a number; return its value."""
        result = f"{self._v}_{len(self.lines)}"
        kind = np.dtype(np.float32)
        operands = [one if isinstance(one, str) else literal(np.float32(one)) for one in (lhs, rhs)]
        written = _WRITTEN.get(name)
        if written is not None:
            self.lines += written(result, operands, (kind, kind), kind)
        else:
            self.lines.append(
                f"  {result} = {_FLOAT_INSTRUCTIONS[name]} float {', '.join(operands)}"
            )
        return result

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        total = self.apply("multiply", x, coefficients[0])
        for coefficient in coefficients[1:-1]:
            total = self.apply("multiply", self.apply("add", total, coefficient), x)
        return self.apply("add", total, coefficients[-1])

    def erf(self, x: str) -> str:
        """Append the steps of ``error_function.erf`` in ``float32``."""
        bounded = self.apply("minimum", self.apply("maximum", x, -LIMIT_32), LIMIT_32)
        square = self.apply("multiply", bounded, bounded)
        above, below = (self.polynomial(square, each) for each in (NUMERATOR_32, DENOMINATOR_32))
        quotient = self.apply("divide", self.apply("multiply", above, bounded), below)
        return self.apply("minimum", self.apply("maximum", quotient, -1.0), 1.0)

    def ended(self, value: str) -> list[str]:
        return [*self.lines, f"  {self._v} = select i1 true, float {value}, float {value}"]


def _erf(v: str, operands: list[str], dtypes: Any, result: np.dtype[Any]) -> list[str]:
    formula = _Formula(v)
    return formula.ended(formula.erf(operands[0]))


def _normal_distribution(
    v: str, operands: list[str], dtypes: Any, result: np.dtype[Any]
) -> list[str]:
    formula = _Formula(v)
    found = formula.erf(formula.apply("divide", operands[0], math.sqrt(2)))
    return formula.ended(formula.apply("divide", formula.apply("add", found, 1.0), 2.0))


def literal(constant: Any) -> str:
    """Return a NumPy scalar in LLVM's syntax."""
    if constant.dtype.kind == "f":
        # LLVM's syntax for a 32-bit number is the hexadecimal form of the equal 64-bit number.
        return f"0x{struct.pack('>d', float(constant)).hex().upper()}"
    if constant.dtype.kind == "b":
        return "true" if constant else "false"
    return str(int(constant))


_WRITTEN: Final[Mapping[str, Callable[..., list[str]]]] = {
    "maximum": _extreme("gt"),
    "minimum": _extreme("lt"),
    "reciprocal": _reciprocal,
    "select": _select,
    "not": _not,
    "isnan": _isnan,
    "isinf": _isinf,
    "absolute": _absolute,
    "cast": _cast,
    "erf": _erf,
    "normal_distribution": _normal_distribution,
}


def declarations() -> str:
    """Return the declarations of the intrinsics that kernels call."""
    lines = [
        f"declare {kind} @{name}.{suffix}({kind})"
        for name in sorted({*_INTRINSICS.values()})
        for kind, suffix in (("float", "f32"), ("double", "f64"))
    ]
    lines += [f"declare i{bits} @llvm.abs.i{bits}(i{bits}, i1)" for bits in (8, 16, 32, 64)]
    return "\n".join([*lines, ""])
