"""The CUDA C++ source of a kernel that computes a run of element-wise operations.

A thread computes whole elements of the results, one after the other: it reads an element of each
input, computes all operations in registers, and writes the results that are kept. Inputs are
C-contiguous; one that is broadcast is read at the place that its shape gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.fusion.cuda.expressions import C_TYPES, Expression

__all__ = ["FUNCTION", "KernelStep", "kernel_source", "place_expression"]

FUNCTION: Final = "burn_remote_fused"

# NaN in either operand gives NaN, as CuPy's ``maximum`` and ``minimum`` define it.
_PREAMBLE: Final = """
template <typename T> __device__ inline T burn_max(T a, T b) {
    return isnan(a) | isnan(b) ? T(__int_as_float(0x7fc00000)) : T(max(a, b));
}
template <typename T> __device__ inline T burn_min(T a, T b) {
    return isnan(a) | isnan(b) ? T(__int_as_float(0x7fc00000)) : T(min(a, b));
}
"""


class KernelStep(NamedTuple):
    """One operation: its expression, and the values that are its inputs.

    Values count from 0: the inputs of the kernel, then the results of the steps.
    """

    expression: Expression
    operands: tuple[int, ...]


def kernel_source(
    shape: Shape,
    inputs: Sequence[tuple[Shape, np.dtype[Any]]],
    steps: Sequence[KernelStep],
    outputs: Sequence[int],
) -> str:
    """Return the source of a kernel ``(inputs…, numbers, outputs…)``.

    The inputs and outputs are pointers. ``numbers`` is a structure of all numbers of the steps, in
    order; without numbers, there is no such argument. ``shape`` is that of all results, and
    ``outputs`` has the values that are kept.
    """
    size = math.prod(shape)
    index = "unsigned int" if size < 2**31 else "unsigned long long"
    parameters = [
        f"const {C_TYPES[dtype]}* __restrict__ in{place}" for place, (_, dtype) in enumerate(inputs)
    ]
    lines = [
        f"const {C_TYPES[dtype]} v{place} = in{place}[{place_expression(each, shape)}];"
        for place, (each, dtype) in enumerate(inputs)
    ]
    members: list[str] = []
    first = len(inputs)
    for place, (expression, operands) in enumerate(steps):
        names = [f"v{value}" for value in operands]
        for number in expression.numbers:
            names.append(f"numbers.n{len(members)}")
            members.append(f"{C_TYPES[number.dtype]} n{len(members)};")
        text = expression.text.format(*names)
        lines.append(f"const {C_TYPES[expression.dtype]} v{first + place} = {text};")
    structure = ""
    if members:
        parameters.append("const __grid_constant__ Numbers numbers")
        structure = f"struct Numbers {{ {' '.join(members)} }};"
    for place, value in enumerate(outputs):
        dtype = steps[value - first].expression.dtype
        parameters.append(f"{C_TYPES[dtype]}* __restrict__ out{place}")
        lines.append(f"out{place}[i] = v{value};")
    body = "\n        ".join(lines)
    return f"""{_PREAMBLE}{structure}
extern "C" __global__ void {FUNCTION}({", ".join(parameters)}) {{
    const {index} step = static_cast<{index}>(gridDim.x) * blockDim.x;
    for ({index} i = static_cast<{index}>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < {size}u; i += step) {{
        {body}
    }}
}}
"""


def place_expression(operand: Shape, result: Shape) -> str:
    """Return where element ``i`` of the results is in a C-contiguous operand that is broadcast.

    Neighbouring axes are merged if the operand has both, or is broadcast along both.
    """
    padded = (1,) * (len(result) - len(operand)) + tuple(operand)
    if math.prod(padded) == 1:
        return "0"
    groups: list[tuple[int, bool]] = []
    for length, own in zip(result, padded, strict=True):
        if length == 1:
            continue
        has = own == length
        if groups and groups[-1][1] == has:
            groups[-1] = (groups[-1][0] * length, has)
        else:
            groups.append((length, has))
    terms = []
    inner, stride = 1, 1
    for place, (length, has) in reversed([*enumerate(groups)]):
        if has:
            term = "i" if inner == 1 else f"i / {inner}u"
            if place:
                term = f"({term}) % {length}u" if inner > 1 else f"i % {length}u"
            terms.append(term if stride == 1 else f"({term}) * {stride}u")
            stride *= length
        inner *= length
    return " + ".join(terms)
