"""The source of kernels for single element-wise operations, of any size.

CuPy determines the kernel of a function, its types and its broadcasting anew in each call. A kernel
here is made for one operation, whose operands are in C order and broadcast in one of four ways,
their *placement*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.cupy.cuda_expressions import C_TYPES, Expression
from burn_remote_server.backends.cupy.row_kernels import EXTREMES

__all__ = ["ELEMENT_FUNCTION", "Placement", "element_source", "placement"]

ELEMENT_FUNCTION: Final = "burn_remote_elements"

# The index in an operand of element ``i`` of the result: the same index, the index of the only
# element, an index in a row that is repeated, or in a column whose elements are repeated.
FULL: Final = "i"
SINGLE: Final = "0"
ROW: Final = "i % inner"
COLUMN: Final = "i / inner"


class Placement(NamedTuple):
    """The index of an element in each operand, and the length ``inner`` of rows."""

    places: tuple[str, ...]
    inner: int


def placement(shapes: Sequence[Shape], result: Shape) -> Placement | None:
    """Return the placement of operands of these shapes; ``None`` if they broadcast otherwise."""
    size = math.prod(result)
    if not 0 < size < 2**31:
        return None
    places = []
    inner = 1
    for shape in shapes:
        padded = (1,) * (len(result) - len(shape)) + tuple(shape)
        own = math.prod(padded)
        if own == size:
            places.append(FULL)
        elif own == 1:
            places.append(SINGLE)
        else:
            is_row = _is_row(padded, result)
            if not is_row and not _is_row(padded[::-1], result[::-1]):
                return None
            length = own if is_row else size // own
            if inner not in (1, length):
                return None
            inner = length
            places.append(ROW if is_row else COLUMN)
    return Placement(tuple(places), inner)


def _is_row(padded: Shape, result: Shape) -> bool:
    """Whether a shape consists of ones, followed by the last sizes of the result."""
    start = next((place for place, size in enumerate(padded) if size != 1), len(padded))
    return padded[start:] == result[start:]


def element_source(expression: Expression, operands: Sequence[Any], places: Sequence[str]) -> str:
    """Return the source of the kernel ``(operands…, result, numbers, size, inner)``.

    ``operands`` has the dtypes of the operands. Without numbers, the kernel has no such argument.
    """
    kind = C_TYPES[expression.dtype]
    parameters = [
        f"const {C_TYPES[dtype]}* __restrict__ in{place}" for place, dtype in enumerate(operands)
    ]
    parameters.append(f"{kind}* __restrict__ out")
    names = [f"in{number}[{place}]" for number, place in enumerate(places)]
    structure = ""
    if expression.numbers:
        members = [
            f"{C_TYPES[number.dtype]} n{place};" for place, number in enumerate(expression.numbers)
        ]
        structure = f"struct Numbers {{ {' '.join(members)} }};"
        parameters.append("const __grid_constant__ Numbers numbers")
        names += [f"numbers.n{place}" for place in range(len(expression.numbers))]
    values = [f"v{number}" for number in range(len(places))] + names[len(places) :]
    loads = " ".join(
        f"const {C_TYPES[dtype]} v{number} = {name};"
        for number, (dtype, name) in enumerate(zip(operands, names, strict=False))
    )
    return f"""{EXTREMES}{structure}
extern "C" __global__ void {ELEMENT_FUNCTION}(
    {", ".join(parameters)}, const unsigned int size, const unsigned int inner) {{
    const unsigned int step = gridDim.x * blockDim.x;
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += step) {{
        {loads}
        out[i] = {expression.text.format(*values)};
    }}
}}
"""
