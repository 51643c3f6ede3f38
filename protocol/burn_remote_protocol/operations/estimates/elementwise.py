"""Estimates of element-wise operations, reductions, sorting and searching."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.dtypes import BF16, F16, F64
from burn_remote_protocol.operations.estimates.shared_costs import (
    FLOAT32_BYTES,
    INDEX_BYTES,
    KERNEL_COST,
    element_count,
    input_element_count,
    output_element_count,
    width_bytes,
)
from burn_remote_protocol.operations.row import Call, Estimates
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "NONZERO",
    "SEARCHED",
    "SORTED",
    "along_rows",
    "conversion",
    "elementwise",
    "padding",
    "per_element",
    "positions",
    "ranked",
    "scanned_rows",
]

# Scratch memory of an element that is rounded once to 16 bits (measured: 36 to 39 bytes).
ROUNDED_ONCE_BYTES: Final = 40


def elementwise(
    cost: int,
    workspace: int = 0,
    *,
    integers: int | None = None,
    halves: int | None = None,
    call_cost: int = 0,
    converts: bool = False,
) -> Estimates:
    """Return estimates for broadcasting operations: ``cost`` per output element plus ``call_cost``.

    ``workspace`` is in bytes per output element; ``integers`` replaces it for integers, ``halves``
    for float16 and bfloat16.
    """

    def scratch(call: Call) -> int:
        each, dtype = workspace, call.requested[0].dtype
        if integers is not None and dtype.is_integer:
            each = integers
        elif halves is not None and dtype in (F16, BF16):
            each = halves
        return each * output_element_count(call)

    return Estimates(
        lambda call: call_cost + cost * output_element_count(call) + input_element_count(call),
        scratch,
        converts,
    )


def per_element(
    cost: int, workspace: int = 0, *, call_cost: int = 0, converts: bool = True
) -> Estimates:
    """Return estimates for ``cost`` per element of inputs and outputs plus ``call_cost``."""
    return Estimates(
        lambda call: call_cost + cost * element_count(call),
        lambda call: workspace * input_element_count(call),
        converts,
    )


def padding(call_cost: int, cost: int) -> Estimates:
    """Return estimates for padding: ``cost`` per input and output element plus ``call_cost``."""

    def scratch(call: Call) -> int:
        # Edge and padding are in one array, so NumPy assigns one to the other through a copy of the
        # padding's size.
        outputs = sum(width_bytes(spec) * spec.size for spec in call.requested)
        return outputs + 16 * input_element_count(call)

    return Estimates(lambda call: call_cost + cost * element_count(call), scratch, True)


def conversion(cost: int) -> Estimates:
    """Return estimates for conversions to another dtype: ``cost`` per output element.

    Numbers of more than 24 bits are rounded once to 16 bits, in several passes.
    """

    def scratch(call: Call) -> int:
        source, target = call.inputs[0].dtype, call.requested[0].dtype
        is_wide = source is F64 or (source.is_integer and source.itemsize >= FLOAT32_BYTES)
        each = ROUNDED_ONCE_BYTES if is_wide and target in (F16, BF16) else 0
        return each * output_element_count(call)

    return Estimates(elementwise(cost).cost, scratch, converts=False)


def along_rows(cost: int, row_cost: int, workspace: int = 0, *, elements: int = 0) -> Estimates:
    """Return estimates for operations along one axis.

    ``cost`` is per element of inputs and outputs, ``row_cost`` per line along the axis,
    ``workspace`` in bytes per line, and ``elements`` in bytes per input element.
    """

    def total(call: Call) -> int:
        return cost * element_count(call) + row_cost * _lines(call)

    return Estimates(
        total, lambda call: workspace * _lines(call) + elements * input_element_count(call)
    )


def scanned_rows(cost: int, row_cost: int, workspace: int, row_workspace: int) -> Estimates:
    """Return estimates for operations along one axis whose results are as large as the input.

    ``cost`` is per element of inputs and outputs, ``workspace`` in bytes per input element; the
    others are per line along the axis.
    """

    def scratch(call: Call) -> int:
        spec: TensorSpec = call.inputs[0]
        return max(1, width_bytes(spec) // 4) * workspace * spec.size + row_workspace * _lines(call)

    return Estimates(along_rows(cost, row_cost).cost, scratch)


def positions(cost: int, row_cost: int, workspace: int) -> Estimates:
    """Return estimates for arg-reductions, which copy the tensor to move the axis to the end."""
    rows = along_rows(cost, row_cost, workspace)

    def scratch(call: Call) -> int:
        spec, axis = call.inputs[0], _axis(call)
        is_last = axis is None or axis == len(spec.shape) - 1
        return rows.workspace(call) + (0 if is_last else width_bytes(spec) * spec.size)

    return Estimates(rows.cost, scratch)


def _axis(call: Call) -> int | None:
    parameters = call.parameters
    return int(parameters.get("axis", parameters.get("dim")))


def _lines(call: Call) -> int:
    spec, axis = call.inputs[0], _axis(call)
    if axis is None or not spec.size:
        return 1
    return int(spec.size // spec.shape[axis])


def ranked(cost: int, workspace: int) -> Estimates:
    """Return estimates for sorting along an axis."""

    def total(call: Call) -> int:
        spec, axis = call.inputs[0], _axis(call)
        length = spec.shape[axis] if axis is not None else spec.size
        return int(cost * spec.size * max(1, length.bit_length()) + 300 * _lines(call))

    return Estimates(total, lambda call: workspace * call.inputs[0].size)


def _sorting_cost(call: Call) -> int:
    size = call.inputs[0].size
    return int(2 * KERNEL_COST + (10 * max(1, size.bit_length()) + 10) * size)


# The array library returns the indices with the axes in another order, so the kernel copies them.
NONZERO: Final = Estimates(
    lambda call: KERNEL_COST + 12 * element_count(call),
    lambda call: 2 * INDEX_BYTES * output_element_count(call),
)
# A stable sort of a vector by its indices, and one pass over the sorted elements.
SORTED: Final = Estimates(_sorting_cost, lambda call: 24 * int(call.inputs[0].size))
# A binary search for each value.
SEARCHED: Final = Estimates(
    lambda call: (
        KERNEL_COST
        + (8 * max(1, call.inputs[0].size.bit_length()) + 10) * call.inputs[1].size
        + 2 * call.inputs[0].size
    ),
    lambda call: width_bytes(call.inputs[0]) * input_element_count(call),
)
