"""Rules of Fourier transforms along several axes."""

from __future__ import annotations

from burn_remote_protocol.dtypes import REAL_DTYPES
from burn_remote_protocol.operations.row import Call
from burn_remote_protocol.operations.shape_rules.checks import (
    COMPLEX,
    check_axis,
    check_category,
    refuse_shape,
    result,
)
from burn_remote_protocol.operations.shape_rules.complex_rules import complex_dtype
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["inverse_real_transform", "real_transform", "transform"]

Outputs = tuple[TensorSpec, ...]


def _resized(call: Call) -> list[int]:
    """Return the input's shape with the sizes of the transform along its axes."""
    (spec,) = call.inputs
    axes, sizes = call.parameters["axes"], call.parameters["sizes"]
    if not axes or len(set(axes)) != len(axes) or len(sizes) != len(axes):
        refuse_shape(f"axes={list(axes)} must be different, with one of sizes={list(sizes)} each")
    shape = list(spec.shape)
    for axis, size in zip(axes, sizes, strict=True):
        check_axis("axes", axis, spec.shape)
        if size < 1 or spec.shape[axis] < 1:
            refuse_shape(
                f"{spec} cannot be transformed to {size} samples along axis {axis}: the axis and "
                "the number of samples must be 1 or more"
            )
        shape[axis] = size
    return shape


def transform(call: Call) -> Outputs:
    """Keep the dtype; the axes have the sizes of the transform."""
    (spec,) = call.inputs
    check_category("input", spec, COMPLEX)
    return (result(_resized(call), spec.dtype),)


def real_transform(call: Call) -> Outputs:
    """Transform real samples to frequencies, ``n // 2 + 1`` of them along the last axis."""
    (spec,) = call.inputs
    dtype = complex_dtype("input", spec)
    shape = _resized(call)
    last = call.parameters["axes"][-1]
    shape[last] = shape[last] // 2 + 1
    return (result(shape, dtype),)


def inverse_real_transform(call: Call) -> Outputs:
    """Transform frequencies, of which the last axis has half, to real samples."""
    (spec,) = call.inputs
    check_category("input", spec, COMPLEX)
    return (result(_resized(call), REAL_DTYPES[spec.dtype]),)
