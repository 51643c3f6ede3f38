"""The table of aten operations: from an overload to a function of ``burn_remote`` tensors.

A function has the arguments of the overload's schema, in their order and with their defaults.
Tensors are ``burn_remote.Tensor`` and never change; a ``device`` is a ``burn_remote`` device;
dtypes are PyTorch's. Operations that write to their arguments (``add_``, ``add.out``) have no rows
of their own: eager calls and ``torch.compile`` both derive them from the functional overload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

__all__ = ["TABLE", "aten", "implement", "overload"]

Function = TypeVar("Function", bound=Callable[..., Any])

# Overload -> function. The modules of this folder fill it.
TABLE: Final[dict[Any, Callable[..., Any]]] = {}


def overload(name: str) -> Any:
    """Return the overload with a name such as ``add.Tensor``; ``exp`` is ``exp.default``.

    Returns ``None`` if this version of PyTorch does not have it.
    """
    packet_name, _, overload_name = name.partition(".")
    packet = getattr(torch.ops.aten, packet_name, None)
    if packet is None or (overload_name or "default") not in packet.overloads():
        return None
    return getattr(packet, overload_name or "default")


def implement(name: str, function: Callable[..., Any]) -> None:
    """Register a function under the name of an overload."""
    found = overload(name)
    if found is None:
        return
    if found in TABLE:
        raise AssertionError(f"aten.{name} is in the table twice")
    TABLE[found] = function


def aten(*names: str) -> Callable[[Function], Function]:
    """Register the decorated function under the names of overloads."""

    def enter(function: Function) -> Function:
        for name in names:
            implement(name, function)
        return function

    return enter
