"""The CUDA C++ source of a kernel that computes operations around reductions of rows.

The threads of a row compute all operations on its elements. For each reduction, they compute the
elements that it reduces, and afterwards they compute the elements of the results again. Inputs are
then read again from the cache, which costs less than keeping a row in registers. A reduction adds
in the same order as the single operation (``backends.cupy.row_kernels``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.cupy.cuda_expressions import C_TYPES
from burn_remote_server.backends.cupy.row_kernels import EXTREMES, ROW_FUNCTIONS, row_threads
from burn_remote_server.fusion.cuda.kernel_source import (
    FUNCTION,
    KernelStep,
    NumberFields,
    input_parameters,
    place_expression,
    step_line,
)

__all__ = ["row_source"]

_REDUCTIONS: Final = {"sum": "RowSum", "max": "RowMax"}


def row_source(
    shape: Shape,
    inputs: Sequence[tuple[Shape, np.dtype[Any]]],
    steps: Sequence[KernelStep],
    outputs: Sequence[int],
) -> str:
    """Return the source of a kernel ``(inputs…, outputs…, numbers)``.

    The arguments are those of ``kernel_source``. Results have the given shape, or are narrow: one
    element for each row.
    """
    columns, rows = shape[-1], math.prod(shape[:-1])
    writer = _Writer(shape, inputs, steps)
    body = writer.reductions()
    parameters = input_parameters(inputs)
    wide: list[tuple[int, int]] = []
    for place, value in enumerate(outputs):
        step = steps[value - len(inputs)]
        parameters.append(f"{C_TYPES[step.expression.dtype]}* __restrict__ out{place}")
        if step.is_narrow:
            body.append(f"if (threadIdx.x == 0) out{place}[row] = v{value};")
        else:
            wide.append((place, value))
    if wide:
        stores = [f"out{place}[i] = v{value};" for place, value in wide]
        body.append(writer.loop([value for _, value in wide], stores))
    parameters += writer.numbers.parameters
    index = writer.index
    text = "\n    ".join(body)
    return f"""{EXTREMES}{ROW_FUNCTIONS}{writer.numbers.definition}
extern "C" __global__ void {FUNCTION}({", ".join(parameters)}) {{
    const {index} row = static_cast<{index}>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= {rows}u) return;
    const {index} first = row * {columns}u;
    {text}
}}
"""


class _Writer:
    """Writes the statements of a kernel."""

    def __init__(
        self,
        shape: Shape,
        inputs: Sequence[tuple[Shape, np.dtype[Any]]],
        steps: Sequence[KernelStep],
    ) -> None:
        self._shape: Final = shape
        self._columns: Final = shape[-1]
        self._steps: Final = steps
        self._inputs: Final = inputs
        self.index: Final = "unsigned int" if math.prod(shape) < 2**31 else "unsigned long long"
        self.numbers: Final = NumberFields()
        # The statement of each value that has one element for each column.
        self._wide: Final[dict[int, str]] = {
            value: self._load(value, place_expression(each, shape))
            for value, (each, _) in enumerate(inputs)
        }

    def reductions(self) -> list[str]:
        """Return the statements that compute all narrow values."""
        narrow_shape = (*self._shape[:-1], 1)
        body: list[str] = []
        for value, step in enumerate(self._steps, len(self._inputs)):
            if step.reduction is not None:
                body += self._reduction(value, step)
            elif step.is_narrow:
                loads = [
                    self._load(
                        operand,
                        place_expression(self._inputs[operand][0], narrow_shape).replace(
                            "i", "row"
                        ),
                    )
                    for operand in dict.fromkeys(step.operands)
                    if operand < len(self._inputs)
                ]
                line = step_line(value, step, self.numbers)
                if loads:  # in a separate C++ block, because other steps read other indices
                    kind = C_TYPES[step.expression.dtype]
                    line = line.replace(f"const {kind} v{value} =", f"v{value} =")
                    body += [f"{kind} v{value};", "{", *loads, line, "}"]
                else:
                    body.append(line)
            else:
                self._wide[value] = step_line(value, step, self.numbers)
        return body

    def loop(self, values: Iterable[int], statements: Sequence[str]) -> str:
        """Return a loop over the columns that computes wide values, then the statements."""
        lines = [*[self._wide[value] for value in self._needed(values)], *statements]
        text = "\n        ".join([f"const {self.index} i = first + c;", *lines])
        threads = row_threads(self._columns)
        return (
            f"for (unsigned int c = threadIdx.x; c < {self._columns}u; c += {threads}) {{\n"
            f"        {text}\n    }}"
        )

    def _reduction(self, value: int, step: KernelStep) -> list[str]:
        kind, reduction = C_TYPES[step.expression.dtype], _REDUCTIONS[step.reduction or ""]
        (operand,) = step.operands
        return [
            f"{kind} v{value} = {reduction}::first<{kind}>();",
            self.loop([operand], [f"v{value} = {reduction}::of(v{value}, v{operand});"]),
            f"v{value} = row_all<{reduction}, {row_threads(self._columns)}>(v{value});",
        ]

    def _needed(self, values: Iterable[int]) -> list[int]:
        """Return the wide values that these values need, in their order."""
        found: set[int] = set()
        waiting = [*values]
        while waiting:
            value = waiting.pop()
            if value in found or value not in self._wide:
                continue  # a narrow value is computed already
            found.add(value)
            if value >= len(self._inputs):
                waiting += self._steps[value - len(self._inputs)].operands
        return sorted(found)

    def _load(self, value: int, place: str) -> str:
        return f"const {C_TYPES[self._inputs[value][1]]} v{value} = in{value}[{place}];"
