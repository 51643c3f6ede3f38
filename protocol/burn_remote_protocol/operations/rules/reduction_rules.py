"""Rules of reductions over all elements or along one axis.

Burn keeps the reduced axis with size 1, and gives a full reduction the shape ``[1]``.
"""

from __future__ import annotations

from burn_remote_protocol.operations.row import Call, Rule
from burn_remote_protocol.operations.rules.checks import (
    NUMBERS,
    Categories,
    check_axis,
    check_category,
    index_dtype,
    refuse_shape,
)
from burn_remote_protocol.tensors import Shape, TensorSpec

__all__ = [
    "along_axis",
    "arg_reduce_axis",
    "arg_top",
    "reduce_all",
    "reduce_axis",
    "reduce_axis_with_indices",
    "top",
]

Outputs = tuple[TensorSpec, ...]


def reduce_all(categories: Categories) -> Rule:
    """Reduce to one element of the input's dtype."""

    def rule(call: Call) -> Outputs:
        (spec,) = call.inputs
        check_category("input", spec, categories)
        return (TensorSpec((1,), spec.dtype),)

    return rule


def _resized(shape: Shape, axis: int, size: int) -> Shape:
    check_axis("axis", axis, shape)
    return (*shape[:axis], size, *shape[axis + 1 :])


def reduce_axis(categories: Categories) -> Rule:
    """Reduce one axis to size 1."""

    def rule(call: Call) -> Outputs:
        (spec,) = call.inputs
        check_category("input", spec, categories)
        return (TensorSpec(_resized(spec.shape, call.parameters["axis"], 1), spec.dtype),)

    return rule


def arg_reduce_axis(call: Call) -> Outputs:
    """Reduce one axis to the index of one of its elements; an empty axis has none."""
    (spec,) = call.inputs
    check_category("input", spec, NUMBERS)
    axis = call.parameters["axis"]
    shape = _resized(spec.shape, axis, 1)
    if spec.shape[axis] == 0:
        refuse_shape(f"axis={axis} of {spec} is empty, so no element of it has an index")
    return (TensorSpec(shape, index_dtype(call, 0)),)


def _top_shape(call: Call) -> Shape:
    (spec,) = call.inputs
    check_category("input", spec, NUMBERS)
    axis, count = call.parameters["axis"], call.parameters["accumulator_len"]
    shape = _resized(spec.shape, axis, count)
    if count > spec.shape[axis]:
        refuse_shape(f"accumulator_len={count} elements are not in axis={axis} of {spec}")
    return shape


def top(call: Call) -> Outputs:
    """Keep the ``accumulator_len`` largest elements along one axis."""
    return (TensorSpec(_top_shape(call), call.inputs[0].dtype),)


def arg_top(call: Call) -> Outputs:
    """Take the indices of the ``accumulator_len`` largest elements along one axis."""
    return (TensorSpec(_top_shape(call), index_dtype(call, 0)),)


def reduce_axis_with_indices(call: Call) -> Outputs:
    """Reduce one axis to one of its elements and its index; an empty axis has none."""
    (spec,) = call.inputs
    check_category("tensor", spec, NUMBERS)
    dim = call.parameters["dim"]
    shape = _resized(spec.shape, dim, 1)
    if spec.shape[dim] == 0:
        refuse_shape(f"dim={dim} of {spec} is empty, so no element of it has an index")
    return TensorSpec(shape, spec.dtype), TensorSpec(shape, index_dtype(call, 1))


def along_axis(categories: Categories) -> Rule:
    """Keep the shape; the axis of the accumulation must exist."""

    def rule(call: Call) -> Outputs:
        (spec,) = call.inputs
        check_category("input", spec, categories)
        check_axis("axis", call.parameters["axis"], spec.shape)
        return (spec,)

    return rule
