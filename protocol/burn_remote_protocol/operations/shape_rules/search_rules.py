"""Shapes and dtypes of searches, whose results' shapes partly depend on the elements.

Where the shape depends on the elements, the caller declares it: it knows the size from an earlier
operation. The kernel compares it with the elements.
"""

from __future__ import annotations

from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.operations.row import Call
from burn_remote_protocol.operations.shape_rules.checks import (
    BOOLS,
    INTEGERS,
    NUMBERS,
    check_category,
    check_rank,
    check_same_dtype,
    check_shape,
    refuse_shape,
    result,
)
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["nonzero", "search_sorted", "unique", "unique_order"]

Outputs = tuple[TensorSpec, ...]


def nonzero(call: Call) -> Outputs:
    """Return the indices ``[dimensions, count]`` of elements that are not 0."""
    (spec,) = call.inputs
    check_category("input", spec, NUMBERS | BOOLS)
    count = call.parameters["count"]
    if not spec.shape:
        refuse_shape(f"input is {spec}, but must have at least 1 dimension")
    if count > spec.size:
        refuse_shape(f"{spec} has fewer elements than count={count}")
    return (result((len(spec.shape), count), I64),)


def unique_order(call: Call) -> Outputs:
    """Return the indices that sort a vector, and the number of its distinct elements, ``[1]``."""
    (spec,) = call.inputs
    check_category("input", spec, NUMBERS | BOOLS)
    check_rank("input", spec, 1)
    return TensorSpec(spec.shape, I64), TensorSpec((1,), I64)


def unique(call: Call) -> Outputs:
    """Return ``[count]`` first indices, ``[size]`` inverse indices, and ``[count]`` counts."""
    spec, order = call.inputs
    check_category("input", spec, NUMBERS | BOOLS)
    check_category("order", order, INTEGERS)
    check_rank("input", spec, 1)
    check_shape("order", order, spec.shape)
    count = call.parameters["count"]
    if count > spec.size:
        refuse_shape(f"{spec} has fewer elements than count={count}")
    each = TensorSpec((count,), I64)
    return each, TensorSpec(spec.shape, I64), each


def search_sorted(call: Call) -> Outputs:
    """Return an index into a sorted vector for each value."""
    ordered, values = call.inputs
    check_category("ordered", ordered, NUMBERS | BOOLS)
    check_rank("ordered", ordered, 1)
    check_same_dtype(ordered, values=values)
    return (TensorSpec(values.shape, I64),)
