"""Rules of reshaping, permuting, slicing, repeating and concatenating."""

from __future__ import annotations

import math

from burn_remote_protocol.operations.row import Call, Rule
from burn_remote_protocol.operations.shape_rules.checks import (
    ANY,
    Categories,
    check_axis,
    check_category,
    check_same_dtype,
    check_shape,
    declared,
    refuse_shape,
    result,
)
from burn_remote_protocol.tensors import Shape, Slice, TensorSpec

__all__ = [
    "cat",
    "expand",
    "flip",
    "padded",
    "permute",
    "repeat_dim",
    "reshape",
    "slice_assign",
    "slice_ranges",
    "slice_tensor",
    "swap_dims",
    "unfold",
]

Outputs = tuple[TensorSpec, ...]


def reshape(call: Call) -> Outputs:
    """Use the declared shape, which must have the same number of elements."""
    (spec,) = call.inputs
    target = declared(call, ANY).shape
    if math.prod(target) != spec.size:
        refuse_shape(
            f"{spec} has {spec.size:,} elements, but shape {list(target)} has {math.prod(target):,}"
        )
    return (TensorSpec(target, spec.dtype),)


def expand(call: Call) -> Outputs:
    """Use the declared shape, to which the input must broadcast."""
    (spec,) = call.inputs
    target = declared(call, ANY).shape
    leading = len(target) - len(spec.shape)
    pairs = zip(spec.shape, target[max(leading, 0) :], strict=False)
    if leading < 0 or any(size not in (1, stretched) for size, stretched in pairs):
        refuse_shape(f"{spec} does not expand to shape {list(target)}")
    return (TensorSpec(target, spec.dtype),)


def padded(categories: Categories) -> Rule:
    """Add elements before and after those of each axis."""

    def rule(call: Call) -> Outputs:
        (spec,) = call.inputs
        check_category("input", spec, categories)
        padding, (mode, *_) = call.parameters["padding"], call.parameters["mode"]
        if len(padding) != len(spec.shape):
            refuse_shape(f"padding has {len(padding)} pairs, but must have one per axis of {spec}")
        for axis, (size, pair) in enumerate(zip(spec.shape, padding, strict=True)):
            if mode == "Reflect" and max(pair) >= max(size, 1):
                refuse_shape(f"axis {axis} of {spec} is too short to reflect {max(pair)} elements")
            if mode == "Edge" and max(pair) and not size:
                refuse_shape(f"axis {axis} of {spec} is empty, so it has no edge to repeat")
        sizes = [
            before + size + after for size, (before, after) in zip(spec.shape, padding, strict=True)
        ]
        return (result(sizes, spec.dtype),)

    return rule


def swap_dims(call: Call) -> Outputs:
    """Exchange two axes."""
    (spec,) = call.inputs
    dim1, dim2 = call.parameters["dim1"], call.parameters["dim2"]
    check_axis("dim1", dim1, spec.shape)
    check_axis("dim2", dim2, spec.shape)
    shape = list(spec.shape)
    shape[dim1], shape[dim2] = shape[dim2], shape[dim1]
    return (TensorSpec(tuple(shape), spec.dtype),)


def permute(call: Call) -> Outputs:
    """Reorder the axes; each must be named once."""
    (spec,) = call.inputs
    axes = call.parameters["axes"]
    if sorted(axes) != list(range(len(spec.shape))):
        refuse_shape(f"axes={list(axes)} do not name each axis of {spec} once")
    return (TensorSpec(tuple([spec.shape[axis] for axis in axes]), spec.dtype),)


def flip(call: Call) -> Outputs:
    """Keep the shape; the flipped axes must exist."""
    (spec,) = call.inputs
    for axis in call.parameters["axes"]:
        check_axis("axes", axis, spec.shape)
    return (spec,)


def unfold(call: Call) -> Outputs:
    """Replace an axis by the number of its complete windows; append an axis for their elements."""
    (spec,) = call.inputs
    dim, size, step = (call.parameters[name] for name in ("dim", "size", "step"))
    check_axis("dim", dim, spec.shape)
    if step == 0:
        refuse_shape("step=0 does not move a window; it must be 1 or more")
    # As in Burn, an axis of ``n`` elements has ``n + 1`` windows of zero elements at step 1.
    windows = max(0, (spec.shape[dim] + step - size) // step)
    shape = (*spec.shape[:dim], windows, *spec.shape[dim + 1 :], size)
    return (result(shape, spec.dtype),)


def slice_ranges(shape: Shape, ranges: tuple[Slice, ...]) -> tuple[range, ...]:
    """Return the indices that slices select from the leading axes, in order.

    Burn's rule: ``start`` and ``end`` count from the end when negative and are clamped to the
    axis; a negative ``step`` walks ``start..end`` from its last element to its first.
    """
    if len(ranges) > len(shape):
        refuse_shape(f"ranges has {len(ranges)} slices for the {len(shape)} axes of {list(shape)}")
    return tuple([_slice_range(size, item) for size, item in zip(shape, ranges, strict=False)])


def _slice_range(size: int, item: Slice) -> range:
    start = _clamped(item.start, size)
    end = size if item.end is None else _clamped(item.end, size)
    if item.step == 0:
        refuse_shape("a slice with step 0 takes nothing; the step must be 1 or more, or negative")
    end = max(start, end)
    return range(start, end, item.step) if item.step > 0 else range(end - 1, start - 1, item.step)


def _clamped(index: int, size: int) -> int:
    return min(index, size) if index >= 0 else max(index + size, 0)


def _sliced(spec: TensorSpec, ranges: tuple[Slice, ...]) -> Shape:
    sizes = [len(taken) for taken in slice_ranges(spec.shape, ranges)]
    return (*sizes, *spec.shape[len(sizes) :])


def slice_tensor(call: Call) -> Outputs:
    """Take slices of the leading axes and all of the others."""
    (spec,) = call.inputs
    return (TensorSpec(_sliced(spec, call.parameters["ranges"]), spec.dtype),)


def slice_assign(call: Call) -> Outputs:
    """Keep the shape; the value must have that of the slices it replaces."""
    tensor, value = call.inputs
    check_same_dtype(tensor, value=value)
    check_shape("value", value, _sliced(tensor, call.parameters["ranges"]))
    return (tensor,)


def repeat_dim(call: Call) -> Outputs:
    """Multiply the size of one axis."""
    (spec,) = call.inputs
    dim, times = call.parameters["dim"], call.parameters["times"]
    check_axis("dim", dim, spec.shape)
    shape = (*spec.shape[:dim], spec.shape[dim] * times, *spec.shape[dim + 1 :])
    return (result(shape, spec.dtype),)


def cat(call: Call) -> Outputs:
    """Add the sizes along one axis; all other sizes must be equal."""
    (specs,) = call.inputs
    if not specs:
        refuse_shape("there is no tensor to concatenate; at least one must be given")
    first, dim = specs[0], call.parameters["dim"]
    check_axis("dim", dim, first.shape)
    tail = first.shape[dim + 1 :]
    for position, spec in enumerate(specs):
        check_same_dtype(first, **{f"tensor {position}": spec})
        alike = spec.shape[:dim] == first.shape[:dim] and spec.shape[dim + 1 :] == tail
        if not alike or len(spec.shape) != len(first.shape):
            refuse_shape(f"tensor {position} is {spec}, but must be like {first} except in {dim=}")
    total = sum(spec.shape[dim] for spec in specs)
    return (result((*first.shape[:dim], total, *tail), first.dtype),)
