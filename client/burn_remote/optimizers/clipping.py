"""Clipping of gradients by their common norm or by value, without waiting.

All raise ``UsageError`` for a bound below 0, and ``ArgumentMismatch`` for a bound that is no number
or a gradient that is no floating-point tensor. Those that compute a norm raise ``UsageError`` if
there are no gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burn_remote.arguments.containers import leaves, mapped
from burn_remote.arguments.numbers import real_number
from burn_remote.arguments.traced_numbers import untraced
from burn_remote.autodiff.nodes import Leaf, TrackedHandle
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import with_rank
from burn_remote.functions.arithmetic import divide, multiply
from burn_remote.functions.casting import astype, at_least_float32
from burn_remote.functions.elementwise import (
    abs,
    isfinite,
    norm_of_powers,
    norm_of_squares,
    norm_powers,
)
from burn_remote.functions.selection import clip, maximum
from burn_remote.functions.statistics import max, sum
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.functions.tracked_tensors import assign_gradients
from burn_remote.graphs.compiled import compile
from burn_remote_protocol.dtypes import F32, F64
from burn_remote_protocol.errors import ArgumentMismatch, UsageError, shown

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["clip_by_norm", "clip_by_value", "clip_grad_norm_", "clip_grad_value_", "global_norm"]

# Added to the norm, as PyTorch does, so that gradients of zeros are not divided by zero.
SMALL = 1e-6


@explained
def global_norm(grads: Any, norm_type: float = 2.0) -> Tensor:
    """Return the norm ``[]`` of all gradients in containers, as if they were one vector.

    It is computed in float64 if one of them is float64, otherwise in float32. ``norm_type`` is 2,
    another number p above 0 for ``sum(abs(g)**p)**(1/p)``, or infinity. The result is on the device
    of the first gradient. Does not wait.
    """
    return _common_norm(_by_device(_tensors(grads)), _checked_type(norm_type))


@explained
def clip_by_norm(grads: Any, max_norm: float, norm_type: float = 2.0) -> tuple[Any, Tensor]:
    """Scale gradients so that their common norm is at most ``max_norm``; return them and the norm.

    ``grads`` are nested containers; ``None`` stays ``None``. All are multiplied by
    ``min(1, max_norm / (norm + 1e-6))``, PyTorch's formula, in one task; if they are on several
    devices, in two tasks on each, between which the norms move. The norm ``[]`` is that of the
    given gradients (see ``global_norm``). Does not wait.
    """
    _check_bound("max_norm", max_norm)
    found, kind = _tensors(grads), _checked_type(norm_type)
    parts = _by_device(found)
    if len(parts) == 1:
        clipped, norm = _compiled_clipping(found, max_norm, kind)
        following = [iter(clipped)] * len(found)
    else:
        norm = _common_norm(parts, kind)
        scaled = {
            key: iter(_compiled_scaling(part, norm.to(part[0].device), max_norm))
            for key, part in parts.items()
        }
        following = [scaled[_session_of(grad)] for grad in found]
    places = iter(following)
    return mapped(lambda _: next(next(places)), grads), norm


@explained
def clip_by_value(grads: Any, clip_value: float) -> Any:
    """Return gradients in nested containers with elements from -``clip_value`` to ``clip_value``.

    ``None`` stays ``None``.
    """
    _check_bound("clip_value", clip_value)
    return mapped(lambda grad: clip(_checked(grad), -clip_value, clip_value), grads)


@explained
def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the ``grad`` of all parameters so that their common norm is at most ``max_norm``.

    Arguments and formula are those of ``torch.nn.utils.clip_grad_norm_``; ``foreach`` is ignored,
    because all gradients are scaled in one task. Returns the norm ``[]`` before scaling. Waits only
    if ``error_if_nonfinite`` is true: then it reads whether the norm is finite, and raises
    ``UsageError`` if not. Raises ``UsageError`` also if no parameter has a gradient.
    """
    owners = [one for one in _parameters(parameters) if one.grad is not None]
    if not owners:
        raise UsageError("no parameter has a gradient; call loss.backward() before clip_grad_norm_")
    grads = [one.grad for one in owners]
    clipped, norm = clip_by_norm(grads, max_norm, norm_type)
    if error_if_nonfinite and not isfinite(norm).item():
        raise UsageError("the norm of the gradients is not finite; they are unchanged")
    _assign(owners, clipped)
    return norm


@explained
def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Clip the elements of each ``grad`` to the range from -``clip_value`` to ``clip_value``.

    Arguments are those of ``torch.nn.utils.clip_grad_value_``; ``foreach`` is ignored.
    """
    owners = [one for one in _parameters(parameters) if one.grad is not None]
    grads = [one.grad for one in owners]
    _assign(owners, clip_by_value(grads, clip_value))


def _assign(owners: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Replace the gradients of parameters, which the caller holds; see ``assign_gradients``."""
    leaves = [owner.handle.source for owner in owners if isinstance(owner.handle, TrackedHandle)]
    if all(type(leaf) is Leaf for leaf in leaves):
        assign_gradients(leaves, grads)  # type: ignore[arg-type]
        return
    for owner, grad in zip(owners, grads, strict=True):  # results that retain their gradient
        owner.grad = grad


def _norm(grads: Sequence[Tensor], norm_type: float) -> Tensor:
    dtype = F64 if any(grad.dtype is F64 for grad in grads) else F32
    total = None
    for grad in grads:
        wide = astype(at_least_float32(grad), dtype)
        if math.isinf(norm_type):
            part = max(abs(wide))
            total = part if total is None else maximum(total, part)
            continue
        part = sum(wide * wide if norm_type == 2 else norm_powers(abs(wide), p=norm_type))
        total = part if total is None else total + part
    if total is None:
        raise UsageError("there are no gradients")
    if math.isinf(norm_type):
        return total
    return norm_of_squares(total) if norm_type == 2 else norm_of_powers(total, p=norm_type)


def _clipped(
    grads: Sequence[Tensor], max_norm: float, norm_type: float
) -> tuple[list[Tensor], Tensor]:
    norm = _norm(grads, norm_type)
    return _scaled(grads, norm, max_norm), norm


def _scaled(grads: Sequence[Tensor], norm: Tensor, max_norm: float) -> list[Tensor]:
    factor = clip(divide(max_norm, norm + SMALL), max=1.0)
    # The factor for each rank and dtype: operations broadcast axes of length 1, but add none.
    factors: dict[Any, Tensor] = {}
    clipped = []
    for grad in grads:
        key = (grad.ndim, grad.dtype)
        if key not in factors:
            factors[key] = with_rank(astype(factor, grad.dtype), grad.ndim)
        clipped.append(multiply(grad, factors[key]))
    return clipped


_compiled_norm = compile(_norm)
_compiled_clipping = compile(_clipped)
_compiled_scaling = compile(_scaled)


def _common_norm(parts: Mapping[int, Sequence[Tensor]], norm_type: float) -> Tensor:
    """Return the common norm of the gradients of all devices, on the first device."""
    norms = [_compiled_norm(part, norm_type) for part in parts.values()]
    if len(norms) == 1:
        return norms[0]
    first = norms[0].device
    return _compiled_norm([norm.to(first) for norm in norms], norm_type)


def _by_device(grads: Sequence[Tensor]) -> dict[int, list[Tensor]]:
    """Return the gradients of each device, in order."""
    found: dict[int, list[Tensor]] = {}
    for grad in grads:
        found.setdefault(_session_of(grad), []).append(grad)
    return found


def _session_of(grad: Tensor) -> int:
    return id(grad.handle.client.session)


def _tensors(grads: Any) -> list[Tensor]:
    found = leaves(grads)
    if not found:
        raise UsageError("there are no gradients; all are None, or the containers are empty")
    return [_checked(one) for one in found]


def _checked(grad: Any) -> Tensor:
    if not is_tensor(grad) or not grad.dtype.is_floating:
        raise ArgumentMismatch(f"a gradient is a floating-point tensor, not {shown(grad)}")
    return grad


def _parameters(parameters: Any) -> list[Any]:
    if isinstance(parameters, Iterable) and not is_tensor(parameters):
        parameters = [*parameters.values()] if isinstance(parameters, dict) else [*parameters]
    return leaves(parameters)


def _checked_type(norm_type: float) -> float:
    value = real_number("norm_type", norm_type)
    if not value > 0:
        raise UsageError(f"norm_type must be above 0, not {norm_type}")
    return value


def _check_bound(name: str, bound: float) -> None:
    if not real_number(name, untraced(bound)) >= 0:
        raise UsageError(f"{name} must be a number of at least 0, not {bound}")
