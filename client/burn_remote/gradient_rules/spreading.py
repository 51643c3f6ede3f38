"""Tensors of a given shape for the rules: constants, and gradients spread along axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.dispatch.operators import ONES, ZEROS, Operator, filled, reshaped
from burn_remote.functions.casting import astype
from burn_remote.functions.gathering import scatter
from burn_remote.functions.manipulation import broadcast_to
from burn_remote_protocol.operations.families import base
from burn_remote_protocol.tensors import Slice, TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["as_numbers", "full", "ones", "resized", "scattered", "spread", "summed", "zeros"]

CAT: Final = Operator(base.CAT)
SLICE: Final = Operator(base.SLICE)


def zeros(like: Tensor, spec: TensorSpec) -> Tensor:
    """Return zeros on the device of ``like``."""
    return like.__class__(ZEROS.create(like.handle.client, spec))


def ones(like: Tensor, spec: TensorSpec) -> Tensor:
    """Return ones on the device of ``like``."""
    return like.__class__(ONES.create(like.handle.client, spec))


def full(like: Tensor, spec: TensorSpec, number: float) -> Tensor:
    """Return a tensor filled with a number on the device of ``like``."""
    return like.__class__(filled(like.handle.client, spec, number))


def spread(x: Tensor, spec: TensorSpec) -> Tensor:
    """Repeat a tensor of one element, or of size 1 along reduced axes, to the shape of ``spec``."""
    if x.size == 1 and len(x.shape) != len(spec.shape):
        x = reshaped(x, (1,) * len(spec.shape))
    return broadcast_to(x, spec.shape)


def summed(number: float, grad_spec: TensorSpec, spec: TensorSpec) -> float | None:
    """Return the sum of equal gradients for each element of an input that was broadcast."""
    return number * (grad_spec.size // spec.size) if spec.size else None


def as_numbers(mask: Tensor, like: Tensor) -> Tensor:
    """Return 1 where a bool tensor is true and 0 elsewhere, in the dtype of ``like``."""
    return astype(mask, like.dtype)


def scattered(grad: Tensor, axis: int, indices: Tensor, spec: TensorSpec) -> Tensor:
    """Return zeros with the gradient added at the indices along an axis."""
    return scatter(zeros(grad, spec), axis, indices, grad, update="add")


def resized(x: Tensor, axis: int, size: int) -> Tensor:
    """Cut an axis to a size, or append zeros to it."""
    present = x.shape[axis]
    if present == size:
        return x
    if present > size:
        everything = tuple([Slice(0, length, 1) for length in x.shape[:axis]])
        return SLICE.apply((x,), ((*everything, Slice(0, size, 1)),))
    missing = (*x.shape[:axis], size - present, *x.shape[axis + 1 :])
    return CAT.apply_to_list([x, zeros(x, TensorSpec(missing, x.dtype))], (axis,))
