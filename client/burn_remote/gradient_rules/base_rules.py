"""Gradients of the rows for tensors of any dtype: views, indexing, masks and conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.autodiff.rule_table import joint, never, rule, uniform
from burn_remote.dispatch.operators import Operator, reshaped, upload
from burn_remote.functions.casting import NOT, astype
from burn_remote.functions.gathering import update_along
from burn_remote.functions.manipulation import flip, part, permute_dims
from burn_remote.functions.selection import mask_fill
from burn_remote.gradient_rules.spreading import scattered, summed, zeros
from burn_remote_protocol.operations.families import base, numeric

if TYPE_CHECKING:
    from burn_remote.autodiff.rule_table import PastCall
    from burn_remote.functions.tensor import Tensor
    from burn_remote_protocol.tensors import Slice, TensorSpec

SWAP_DIMS: Final = Operator(base.SWAP_DIMS)
SLICE: Final = Operator(base.SLICE)
SLICE_ASSIGN: Final = Operator(base.SLICE_ASSIGN)
SCATTER_ND: Final = Operator(base.SCATTER_ND)
SUM_DIM: Final = Operator(numeric.SUM_DIM)

# -- Views ----------------------------------------------------------------------------------------

rule(base.RESHAPE, input=lambda grad, input_spec: reshaped(grad, input_spec.shape))
rule(base.SWAP_DIMS, input=lambda grad, dim1, dim2: SWAP_DIMS.apply((grad,), (dim1, dim2)))
rule(base.PERMUTE, input=lambda grad, axes: permute_dims(grad, tuple(np.argsort(axes).tolist())))
rule(base.FLIP, input=lambda grad, axes: flip(grad, tuple(axes)))
# The backward pass sums the gradient over the axes along which the input was repeated.
rule(base.EXPAND, input=lambda grad: grad)

for _view in (base.RESHAPE, base.SWAP_DIMS, base.PERMUTE, base.FLIP):
    uniform(_view, input=lambda number: number)
uniform(
    base.EXPAND,
    input=lambda number, grad_spec, input_spec: summed(number, grad_spec, input_spec),
)


def _of_windows(grad: Tensor, dim: int, size: int, step: int, input_spec: TensorSpec) -> Tensor:
    """Add the windows ``[…, windows, …, size]`` at their places along an axis."""
    count, rank = grad.shape[dim], len(input_spec.shape)
    rows = permute_dims(grad, (*range(dim + 1), rank, *range(dim + 1, rank)))
    shape = input_spec.shape
    rows = reshaped(rows, (*shape[:dim], count * size, *shape[dim + 1 :]))
    places = upload(grad, (np.arange(count)[:, None] * step + np.arange(size)).reshape(-1))
    return update_along(zeros(grad, input_spec), dim, places, rows, update="add")


rule(base.UNFOLD, input=_of_windows)


def _of_slice(grad: Tensor, ranges: tuple[Slice, ...], tensor_spec: TensorSpec) -> Tensor:
    return SLICE_ASSIGN.apply((zeros(grad, tensor_spec), grad), (tuple(ranges),))


def _outside_slice(grad: Tensor, ranges: tuple[Slice, ...], value_spec: TensorSpec) -> Tensor:
    return SLICE_ASSIGN.apply((grad, zeros(grad, value_spec)), (tuple(ranges),))


rule(base.SLICE, tensor=_of_slice)
rule(
    base.SLICE_ASSIGN,
    tensor=_outside_slice,
    value=lambda grad, ranges: SLICE.apply((grad,), (tuple(ranges),)),
)


def _of_repetition(grad: Tensor, dim: int, times: int, tensor_spec: TensorSpec) -> Tensor:
    shape = tensor_spec.shape
    parts = reshaped(grad, (*shape[:dim], times, *shape[dim:]))
    return reshaped(SUM_DIM.apply((parts,), (dim, 1)), shape)


rule(base.REPEAT_DIM, tensor=_of_repetition)


@joint(base.CAT)
def _of_joined(call: PastCall) -> dict[str, list[Tensor | None]]:
    (grad,), axis = call.grads, call.parameters["dim"]
    start, found = 0, []
    for spec, is_needed in zip(call.spec("tensors"), call.needs("tensors"), strict=True):
        end = start + spec.shape[axis]
        found.append(part(grad, axis, start, end) if is_needed else None)
        start = end
    return {"tensors": found}


# A gradient has the dtype of its tensor. The derivative of rounding to a narrower dtype is taken
# as 1.
rule(base.CAST, input=lambda grad, input_spec: astype(grad, input_spec.dtype))

# -- Indexing -------------------------------------------------------------------------------------

rule(
    base.SELECT,
    tensor=lambda grad, dim, indices, tensor_spec: update_along(
        zeros(grad, tensor_spec), dim, indices, grad, update="add"
    ),
)
rule(
    base.GATHER,
    tensor=lambda grad, dim, indices, tensor_spec: scattered(grad, dim, indices, tensor_spec),
)
rule(
    base.GATHER_ND,
    data=lambda grad, indices, data_spec: SCATTER_ND.apply(
        (zeros(grad, data_spec), indices, grad), ("Add",)
    ),
)

# -- Masks ----------------------------------------------------------------------------------------

# Gradients of elements that the mask did not select are replaced by 0, not multiplied by it,
# because the product of infinity or NaN and 0 is NaN.
rule(
    base.MASK_WHERE,
    tensor=lambda grad, mask: mask_fill(grad, mask, 0),
    value=lambda grad, mask: mask_fill(grad, NOT.unary(mask), 0),
)
rule(base.MASK_FILL, tensor=lambda grad, mask: mask_fill(grad, mask, 0))

# -- Without gradients ----------------------------------------------------------------------------

never(
    "its result is a bool",
    *(base.EQUAL, base.EQUAL_ELEM, base.NOT_EQUAL, base.NOT_EQUAL_ELEM),
    *(base.ALL, base.ANY_, base.ALL_DIM, base.ANY_DIM),
)
never("it depends on no tensor", base.EMPTY, base.ONES, base.ZEROS)
