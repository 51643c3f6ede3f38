"""Rules of selecting and writing elements by indices."""

from __future__ import annotations

from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.operations.row import Call
from burn_remote_protocol.operations.shape_rules.checks import (
    INTEGERS,
    check_axis,
    check_category,
    check_rank,
    check_same_dtype,
    check_shape,
    refuse_shape,
    result,
)
from burn_remote_protocol.tensors import Shape, TensorSpec

__all__ = [
    "gather",
    "gather_nd",
    "scatter",
    "scatter_nd",
    "select",
    "select_assign",
]

Outputs = tuple[TensorSpec, ...]


def _selected(tensor: TensorSpec, dim: int, indices: TensorSpec) -> Shape:
    check_category("indices", indices, INTEGERS)
    check_rank("indices", indices, 1)
    check_axis("dim", dim, tensor.shape)
    return (*tensor.shape[:dim], indices.shape[0], *tensor.shape[dim + 1 :])


def select(call: Call) -> Outputs:
    """Replace an axis by the elements that a list of indices selects from it."""
    tensor, indices = call.inputs
    return (result(_selected(tensor, call.parameters["dim"], indices), tensor.dtype),)


def _check_update(tensor: TensorSpec, update: str | None) -> None:
    if update in ("Min", "Max") and tensor.dtype.is_complex:
        raise DTypeMismatch(f"{tensor} has no order, so the update {update} is not defined for it")


def select_assign(call: Call) -> Outputs:
    """Keep the shape; the value has the shape of the selection."""
    tensor, indices, value = call.inputs
    _check_update(tensor, call.parameters.get("update"))
    check_same_dtype(tensor, value=value)
    check_shape("value", value, _selected(tensor, call.parameters["dim"], indices))
    return (tensor,)


def _check_indices_along(tensor: TensorSpec, dim: int, indices: TensorSpec) -> None:
    check_category("indices", indices, INTEGERS)
    check_axis("dim", dim, tensor.shape)
    check_rank("indices", indices, len(tensor.shape))
    for axis, (size, there) in enumerate(zip(indices.shape, tensor.shape, strict=True)):
        if axis != dim and size > there:
            refuse_shape(f"indices is {indices}, which exceeds {tensor} in axis {axis}")


def gather(call: Call) -> Outputs:
    """Select along one axis, one element for each index."""
    tensor, indices = call.inputs
    _check_indices_along(tensor, call.parameters["dim"], indices)
    return (TensorSpec(indices.shape, tensor.dtype),)


def scatter(call: Call) -> Outputs:
    """Keep the shape; the value has one element for each index."""
    tensor, indices, value = call.inputs
    _check_indices_along(tensor, call.parameters["dim"], indices)
    _check_update(tensor, call.parameters.get("update"))
    check_same_dtype(tensor, value=value)
    check_shape("value", value, indices.shape)
    return (tensor,)


def _picked(data: TensorSpec, indices: TensorSpec) -> Shape:
    check_category("indices", indices, INTEGERS)
    if not indices.shape:
        refuse_shape(f"indices is {indices}, but must have a last axis of coordinates")
    depth = indices.shape[-1]
    if depth > len(data.shape):
        refuse_shape(
            f"indices is {indices}, with {depth} coordinates in its last axis, but {data} has "
            f"{len(data.shape)} axes"
        )
    return (*indices.shape[:-1], *data.shape[depth:])


def gather_nd(call: Call) -> Outputs:
    """Select an element or a sub-tensor for each row of coordinates, like ONNX's GatherND."""
    data, indices = call.inputs
    return (result(_picked(data, indices), data.dtype),)


def scatter_nd(call: Call) -> Outputs:
    """Keep the shape; the values have the shape of the selection."""
    data, indices, values = call.inputs
    _check_update(data, call.parameters.get("reduction"))
    check_same_dtype(data, values=values)
    check_shape("values", values, _picked(data, indices))
    return (data,)
