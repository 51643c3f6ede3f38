"""The CUDA C++ source of a kernel that computes operations on sums of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.cupy.column_kernels import column_source
from burn_remote_server.backends.cupy.cuda_expressions import C_TYPES
from burn_remote_server.backends.cupy.row_kernels import EXTREMES
from burn_remote_server.fusion.cuda.kernel_source import (
    KernelStep,
    NumberFields,
    input_parameters,
    place_expression,
    step_line,
)

__all__ = ["column_epilogue_source"]


def column_epilogue_source(
    shape: Shape,
    inputs: Sequence[tuple[Shape, np.dtype[Any]]],
    steps: Sequence[KernelStep],
    outputs: Sequence[int],
) -> str:
    """Return the source of a kernel ``(inputs…, outputs…, numbers, three integers)``.

    The first input is the array that is summed, and the first step is its sum. ``shape`` is the
    shape of all results. The other arguments are those of ``kernel_source``.
    """
    first = len(inputs)
    dtype = steps[0].expression.dtype
    numbers = NumberFields()
    lines = [
        f"const {C_TYPES[each_dtype]} v{place} = in{place}[{place_expression(each, shape)}];"
        for place, (each, each_dtype) in enumerate(inputs)
        if place
    ]
    lines.append(f"const {C_TYPES[dtype]} v{first} = total;")
    lines += [step_line(first + place, step, numbers) for place, step in enumerate(steps) if place]
    parameters = [f"const {C_TYPES[dtype]}* __restrict__ source", *input_parameters(inputs)[1:]]
    for place, value in enumerate(outputs):
        kind = C_TYPES[steps[value - first].expression.dtype]
        parameters.append(f"{kind}* __restrict__ out{place}")
        lines.append(f"out{place}[i] = v{value};")
    parameters += numbers.parameters
    body = "\n        ".join(["const long long i = at;", *lines])
    return column_source(dtype, ", ".join(parameters), body, EXTREMES + numbers.definition)
