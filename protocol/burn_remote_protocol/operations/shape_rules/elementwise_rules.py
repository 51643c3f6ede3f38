"""Rules of elementwise operations, casts, and the creation of tensors."""

from __future__ import annotations

from burn_remote_protocol.dtypes import F32, I64, DType
from burn_remote_protocol.operations.row import Call, Rule
from burn_remote_protocol.operations.shape_rules.checks import (
    ANY,
    BOOLS,
    FLOATS,
    INTEGERS,
    QUANTIZED,
    Categories,
    bool_dtype,
    broadcast_shapes,
    check_category,
    check_same_dtype,
    check_shape,
    declared,
    declared_output,
    refuse_shape,
    result,
)
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "alike",
    "as_declared",
    "broadcast",
    "broadcast_to_first",
    "cast",
    "compare",
    "compare_scalar",
    "created",
    "freed",
    "into_float",
    "into_int",
    "mask_fill",
    "mask_where",
    "power",
    "same",
]

Outputs = tuple[TensorSpec, ...]


def created(categories: Categories) -> Rule:
    """Create a tensor of the declared shape and dtype."""

    def rule(call: Call) -> Outputs:
        return (declared(call, categories),)

    return rule


def as_declared(call: Call) -> Outputs:
    """Return the declared outputs: those of a custom operation cannot be inferred."""
    return call.requested


def freed(call: Call) -> Outputs:
    """Return no outputs."""
    return ()


def same(categories: Categories) -> Rule:
    """Keep the shape and dtype of the first input."""

    def rule(call: Call) -> Outputs:
        spec = call.inputs[0]
        check_category("the tensor", spec, categories)
        return (spec,)

    return rule


def broadcast(categories: Categories) -> Rule:
    """Broadcast two tensors of one dtype."""

    def rule(call: Call) -> Outputs:
        lhs, rhs = call.inputs
        check_category("lhs", lhs, categories)
        check_same_dtype(lhs, rhs=rhs)
        return (result(broadcast_shapes(lhs.shape, rhs.shape), lhs.dtype),)

    return rule


def broadcast_to_first(categories: Categories) -> Rule:
    """Broadcast the second tensor to the shape of the first; both have one dtype."""

    def rule(call: Call) -> Outputs:
        lhs, rhs = call.inputs
        check_category("lhs", lhs, categories)
        check_same_dtype(lhs, rhs=rhs)
        if broadcast_shapes(lhs.shape, rhs.shape) != lhs.shape:
            refuse_shape(f"rhs is {rhs}, but must broadcast to the shape of lhs, {lhs}")
        return (lhs,)

    return rule


def alike(categories: Categories) -> Rule:
    """Combine two tensors of one shape and dtype."""

    def rule(call: Call) -> Outputs:
        lhs, rhs = call.inputs
        check_category("lhs", lhs, categories)
        check_same_dtype(lhs, rhs=rhs)
        check_shape("rhs", rhs, lhs.shape)
        return (lhs,)

    return rule


def power(categories: Categories) -> Rule:
    """Broadcast a tensor and its exponents of any integer dtype."""

    def rule(call: Call) -> Outputs:
        lhs, rhs = call.inputs
        check_category("lhs", lhs, categories)
        check_category("rhs", rhs, INTEGERS)
        return (result(broadcast_shapes(lhs.shape, rhs.shape), lhs.dtype),)

    return rule


def compare(categories: Categories) -> Rule:
    """Broadcast two tensors of one dtype to bools, stored as declared."""

    def rule(call: Call) -> Outputs:
        lhs, rhs = call.inputs
        check_category("lhs", lhs, categories)
        check_same_dtype(lhs, rhs=rhs)
        return (result(broadcast_shapes(lhs.shape, rhs.shape), bool_dtype(call, 0)),)

    return rule


def compare_scalar(categories: Categories) -> Rule:
    """Return bools of the first input's shape, stored as declared."""

    def rule(call: Call) -> Outputs:
        spec = call.inputs[0]
        check_category("the tensor", spec, categories)
        return (TensorSpec(spec.shape, bool_dtype(call, 0)),)

    return rule


def mask_where(call: Call) -> Outputs:
    """Broadcast a tensor, a mask and a value of the tensor's dtype."""
    tensor, mask, value = call.inputs
    check_category("mask", mask, BOOLS)
    check_same_dtype(tensor, value=value)
    return (result(broadcast_shapes(tensor.shape, mask.shape, value.shape), tensor.dtype),)


def mask_fill(call: Call) -> Outputs:
    """Broadcast a tensor and a mask."""
    tensor, mask = call.inputs
    check_category("mask", mask, BOOLS)
    return (result(broadcast_shapes(tensor.shape, mask.shape), tensor.dtype),)


def cast(call: Call) -> Outputs:
    """Keep the shape; use the declared dtype, which must be of the input's category."""
    spec = call.inputs[0]
    category = {spec.dtype.category}
    categories = INTEGERS if category & INTEGERS else frozenset(category)
    check_category("input", spec, ANY - QUANTIZED)
    target = declared_output(call, 0)
    if target is None:
        refuse_shape("the dtype to cast to must be given")
    check_category("the output", target, categories)
    return (TensorSpec(spec.shape, target.dtype),)


def _into(sources: Categories, targets: Categories, default: DType) -> Rule:
    def rule(call: Call) -> Outputs:
        spec = call.inputs[0]
        check_category("input", spec, sources)
        target = declared_output(call, 0) or TensorSpec(spec.shape, default)
        check_category("the output", target, targets)
        return (TensorSpec(spec.shape, target.dtype),)

    return rule


def into_float(sources: Categories) -> Rule:
    """Keep the shape; use the declared floating-point dtype, by default ``F32``."""
    return _into(sources, FLOATS, F32)


def into_int(sources: Categories) -> Rule:
    """Keep the shape; use the declared integer dtype, by default ``I64``."""
    return _into(sources, INTEGERS, I64)
