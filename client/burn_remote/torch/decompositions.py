"""Operations outside of the table: PyTorch's decompositions, the CPU on request, or a refusal."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

from burn_remote.sessions.source_locations import caller_and_depth
from burn_remote.torch.argument_checks import checked
from burn_remote.torch.burn_tensor import BurnTensor, to_cpu, upload, wrap
from burn_remote.torch.device_registry import index_of
from burn_remote.torch.errors import UnsupportedOperation
from burn_remote.torch.value_conversion import Handler

__all__ = ["allow_fallback", "decomposed", "refusal"]

_CORE: Final = core_aten_decompositions()

# A decomposition may call the operation that it decomposes, and so recurse without end. For
# example, some call it with ``out=``, and the handler of that overload calls it without ``out=``.
# Decompositions that end are nested less deeply than this.
_DEEPEST: Final = 8

_is_fallback_allowed = False
_active = threading.local()


def allow_fallback(allowed: bool) -> None:
    """Permit operations that the device lacks to run on the CPU, or forbid it."""
    global _is_fallback_allowed
    _is_fallback_allowed = allowed


def decomposed(func: Any) -> Handler:
    """Return the handler of an overload that the table lacks."""
    decomposition = _decomposition(func)
    missing = _on_cpu(func) if _is_fallback_allowed else refusal(func)
    if decomposition is None:
        return missing
    check = checked(func)

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        depths: dict[Any, int] = _active.__dict__
        depth = depths.get(name, 0)
        if depth == _DEEPEST:
            return missing(args, kwargs)
        if check is not None:
            check(args, kwargs)
        depths[name] = depth + 1
        try:
            return decomposition(*args, **kwargs)
        except ZeroDivisionError:
            # The gradient of a mean of no elements has no elements either.
            if len(args) > 1 and isinstance(args[1], BurnTensor) and not args[1].numel():
                return torch.empty_like(args[1])
            raise
        finally:
            depths[name] = depth

    name = func.name() + func._overloadname
    return handle


def refusal(func: Any) -> Handler:
    """Return a handler that raises ``UnsupportedOperation`` with the operation's name."""

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        raise UnsupportedOperation(
            f"{func.name()} ({func._overloadname}) is not available on burn devices; "
            'burn_remote.torch.fallback("cpu") runs such operations on the CPU, through copies'
        )

    return handle


def _decomposition(func: Any) -> Callable[..., Any] | None:
    if func in _CORE:
        return _CORE[func]
    if func._can_decompose():
        return lambda *args, **kwargs: func.decompose(*args, **kwargs)
    if func in decomposition_table:
        return decomposition_table[func]
    keys = torch._C.DispatchKey
    for key in (keys.CompositeExplicitAutograd, keys.CompositeExplicitAutogradNonFunctional):
        if func.has_kernel_for_dispatch_key(key):
            return functools.partial(func._op_dk, key)
    return None


def _on_cpu(func: Any) -> Handler:
    warned = False

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        nonlocal warned
        if not warned:
            warned = True
            warnings.warn(
                f"{func.name()} runs on the CPU: its tensors are copied there and back",
                stacklevel=caller_and_depth(1)[2],
            )
        place = None

        def down(x: Any) -> Any:
            nonlocal place
            if type(x) is BurnTensor:
                place = place or x._place
                return to_cpu(x)
            if type(x) is torch.device:
                place = torch.device("burn", index_of(x))
                return torch.device("cpu")
            return [down(one) for one in x] if type(x) in (list, tuple) else x

        def up(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                return wrap(upload(x, place), place)
            return type(x)([up(one) for one in x]) if type(x) in (list, tuple) else x

        lowered = [down(x) for x in args]
        return up(func(*lowered, **{name: down(x) for name, x in kwargs.items()}))

    return handle
