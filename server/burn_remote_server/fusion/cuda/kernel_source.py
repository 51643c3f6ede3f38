"""The CUDA C++ source of a kernel that computes a run of element-wise operations.

A thread computes whole elements of the results, one after the other: it reads an element of each
input, computes all operations in registers, and writes the results that are kept. Inputs are
C-contiguous. The index in a broadcast input follows from its shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.cupy.cuda_expressions import C_TYPES, Expression
from burn_remote_server.backends.cupy.row_kernels import EXTREMES

__all__ = [
    "FUNCTION",
    "KernelStep",
    "NumberFields",
    "input_parameters",
    "kernel_source",
    "place_expression",
    "step_line",
]

FUNCTION: Final = "burn_remote_fused"


class KernelStep(NamedTuple):
    """One operation: its expression, and the values that are its inputs.

    Values are numbered from 0: first the inputs of the kernel, then the results of the steps. A
    step with a ``reduction`` reduces each row of its operand; only the dtype of its expression is
    used. ``is_narrow``: the result has one element for each row.
    """

    expression: Expression
    operands: tuple[int, ...]
    reduction: str | None = None
    is_narrow: bool = False


class NumberFields:
    """The structure of all numbers of a kernel's steps, in order; it is the last argument."""

    def __init__(self) -> None:
        self._members: Final[list[str]] = []

    def names(self, expression: Expression) -> list[str]:
        """Add the numbers of an expression; return their names in the source."""
        found = []
        for number in expression.numbers:
            found.append(f"numbers.n{len(self._members)}")
            self._members.append(f"{C_TYPES[number.dtype]} n{len(self._members)};")
        return found

    @property
    def definition(self) -> str:
        """The definition of the structure; empty without numbers."""
        return f"struct Numbers {{ {' '.join(self._members)} }};" if self._members else ""

    @property
    def parameters(self) -> list[str]:
        """The kernel's parameter, if there are numbers."""
        return ["const __grid_constant__ Numbers numbers"] if self._members else []


def step_line(value: int, step: KernelStep, numbers: NumberFields) -> str:
    """Return the statement that computes a step; ``value`` is its number."""
    names = [*[f"v{operand}" for operand in step.operands], *numbers.names(step.expression)]
    text = step.expression.text.format(*names)
    return f"const {C_TYPES[step.expression.dtype]} v{value} = {text};"


def input_parameters(inputs: Sequence[tuple[Shape, np.dtype[Any]]]) -> list[str]:
    """Return the parameters of a kernel's inputs."""
    return [
        f"const {C_TYPES[dtype]}* __restrict__ in{place}" for place, (_, dtype) in enumerate(inputs)
    ]


def kernel_source(
    shape: Shape,
    inputs: Sequence[tuple[Shape, np.dtype[Any]]],
    steps: Sequence[KernelStep],
    outputs: Sequence[int],
) -> str:
    """Return the source of a kernel ``(inputs…, outputs…, numbers)``.

    The inputs and outputs are pointers. ``numbers`` is a structure of all numbers of the steps, in
    order; without numbers, there is no such argument. ``shape`` is the shape of all results, and
    ``outputs`` has the values that are kept.
    """
    size = math.prod(shape)
    index = "unsigned int" if size < 2**31 else "unsigned long long"
    parameters = input_parameters(inputs)
    lines = [
        f"const {C_TYPES[dtype]} v{place} = in{place}[{place_expression(each, shape)}];"
        for place, (each, dtype) in enumerate(inputs)
    ]
    numbers = NumberFields()
    first = len(inputs)
    lines += [step_line(first + place, step, numbers) for place, step in enumerate(steps)]
    for place, value in enumerate(outputs):
        dtype = steps[value - first].expression.dtype
        parameters.append(f"{C_TYPES[dtype]}* __restrict__ out{place}")
        lines.append(f"out{place}[i] = v{value};")
    parameters += numbers.parameters
    body = "\n        ".join(lines)
    return f"""{EXTREMES}{numbers.definition}
extern "C" __global__ void {FUNCTION}({", ".join(parameters)}) {{
    const {index} step = static_cast<{index}>(gridDim.x) * blockDim.x;
    for ({index} i = static_cast<{index}>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < {size}u; i += step) {{
        {body}
    }}
}}
"""


def place_expression(operand: Shape, result: Shape) -> str:
    """Return an expression for the index in a broadcast, C-contiguous operand of element ``i``.

    ``i`` is an index in the results. Neighbouring axes are merged if the operand either has both
    or is broadcast along both.
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
