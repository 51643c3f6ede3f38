"""Rules of reductions over all elements or along one axis.

Burn keeps the reduced axis with size 1, and gives a full reduction the shape ``[1]``.
"""

from __future__ import annotations

from burn_remote_protocol.operations.row import Call, Rule
from burn_remote_protocol.operations.shape_rules.checks import (
    NUMBERS,
    Categories,
    bool_dtype,
    check_axis,
    check_category,
    index_dtype,
    refuse_shape,
)
from burn_remote_protocol.tensors import Shape, TensorSpec

__all__ = [
    "along_axis",
    "along_nonempty_axis",
    "any_of_all",
    "any_of_axis",
    "arg_reduce_axis",
    "arg_top",
    "reduce_all",
    "reduce_axes",
    "reduce_axis",
    "reduce_axis_with_indices",
    "sorted_along",
    "sorted_indices",
    "sorted_with_indices",
    "top",
    "top_with_indices",
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


def reduce_axes(categories: Categories) -> Rule:
    """Reduce several axes to size 1."""

    def rule(call: Call) -> Outputs:
        (spec,) = call.inputs
        check_category("input", spec, categories)
        shape = spec.shape
        axes = call.parameters["axes"]
        if len(set(axes)) != len(axes):
            refuse_shape(f"axes={list(axes)} names an axis twice")
        for axis in axes:
            shape = _resized(shape, axis, 1)
        return (TensorSpec(shape, spec.dtype),)

    return rule


def any_of_all(categories: Categories) -> Rule:
    """Reduce to one bool, stored as declared."""

    def rule(call: Call) -> Outputs:
        (spec,) = call.inputs
        check_category("input", spec, categories)
        return (TensorSpec((1,), bool_dtype(call, 0)),)

    return rule


def any_of_axis(categories: Categories) -> Rule:
    """Reduce one axis to size 1 with bools, stored as declared."""

    def rule(call: Call) -> Outputs:
        (spec,) = call.inputs
        check_category("input", spec, categories)
        return (TensorSpec(_resized(spec.shape, call.parameters["axis"], 1), bool_dtype(call, 0)),)

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
        refuse_shape(f"axis={axis} of {spec} has fewer elements than accumulator_len={count}")
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


def sorted_along(call: Call) -> Outputs:
    """Sort along one axis."""
    (spec,) = call.inputs
    check_category("input", spec, NUMBERS)
    check_axis("dim", call.parameters["dim"], spec.shape)
    return (spec,)


def sorted_indices(call: Call) -> Outputs:
    """Return the indices that sort one axis."""
    (spec,) = sorted_along(call)
    return (TensorSpec(spec.shape, index_dtype(call, 0)),)


def sorted_with_indices(call: Call) -> Outputs:
    """Sort along one axis; also return the indices of the elements."""
    (spec,) = sorted_along(call)
    return spec, TensorSpec(spec.shape, index_dtype(call, 1))


def top_with_indices(call: Call) -> Outputs:
    """Keep the ``k`` largest elements along one axis; also return their indices."""
    (spec,) = sorted_along(call)
    dim, count = call.parameters["dim"], call.parameters["k"]
    if count > spec.shape[dim]:
        refuse_shape(f"dim={dim} of {spec} has fewer elements than k={count}")
    shape = _resized(spec.shape, dim, count)
    return TensorSpec(shape, spec.dtype), TensorSpec(shape, index_dtype(call, 1))


def along_axis(categories: Categories) -> Rule:
    """Keep the shape; the axis of the accumulation must exist."""

    def rule(call: Call) -> Outputs:
        (spec,) = call.inputs
        check_category("input", spec, categories)
        check_axis("axis", call.parameters["axis"], spec.shape)
        return (spec,)

    return rule


def along_nonempty_axis(categories: Categories) -> Rule:
    """Keep the shape; the axis must have elements."""

    def rule(call: Call) -> Outputs:
        (spec,) = along_axis(categories)(call)
        axis = call.parameters["axis"]
        if spec.shape[axis] == 0:
            refuse_shape(f"axis={axis} of {spec} is empty, so it has no maximum and no minimum")
        return (spec,)

    return rule
