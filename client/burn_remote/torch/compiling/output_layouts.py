"""Memory layouts of a graph's outputs: the strides that PyTorch traced, and shared elements.

PyTorch makes views of outputs with these strides. Outputs that are views of one tensor share its
elements, as they do without ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from burn_remote.torch.geometry import Geometry, order_of_dense

__all__ = ["Layout", "roots_of"]

# The most combinations of a graph's traced integers for which a layout is remembered.
_LIMIT: Final = 64


class Layout:
    """Size, strides and offset of an output. They may depend on integers that the graph takes."""

    def __init__(self, value: Any, inputs: Sequence[Any]) -> None:
        self.is_contiguous = not isinstance(value, torch.Tensor) or bool(value.is_contiguous())
        self._parts: tuple[tuple[Any, ...], ...] = ()
        self._symbols: dict[Any, Any] = {}
        self._known: dict[tuple[int, ...], Geometry] = {}
        if isinstance(value, torch.Tensor):
            self._parts = (
                tuple(value.shape),
                tuple(value.stride()),
                (value.storage_offset(),),
            )
            if any(type(one) is not int for part in self._parts for one in part):
                for node in inputs:
                    traced = node.meta.get("val")
                    if isinstance(traced, torch.SymInt):
                        self._symbols[node] = traced.node.expr

    @property
    def is_static(self) -> bool:
        """Whether it is the same in each call."""
        return not self._symbols

    def geometry(self, values: Mapping[Any, Any]) -> Geometry:
        """Return the layout for the values of a call's inputs."""
        key = tuple([int(values[node]) for node in self._symbols])
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            replaced = dict(zip(self._symbols.values(), key, strict=True))
            size, stride, (offset,) = (
                tuple([_number(one, replaced) for one in part]) for part in self._parts
            )
            found = self._known[key] = Geometry(size, stride, offset)
        return found


def _number(traced: Any, replaced: Mapping[Any, int]) -> int:
    return traced if type(traced) is int else int(traced.node.expr.xreplace(replaced))


def roots_of(outputs: Sequence[Any], steps: Sequence[Any]) -> dict[Any, Any]:
    """Map each output that shares elements with another output to the node that made them."""
    makers: dict[int, Any] = {}
    for node in steps:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            makers.setdefault(_storage_of(value), node)
    shown: dict[int, list[Any]] = {}
    for node in outputs:
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if isinstance(value, torch.Tensor) and _storage_of(value) in makers:
            shown.setdefault(_storage_of(value), []).append(node)
    return {
        node: makers[storage]
        for storage, nodes in shown.items()
        if len(nodes) > 1 and _is_whole(makers[storage].meta["val"])
        for node in nodes
    }


def _storage_of(value: Any) -> int:
    address: int = value.untyped_storage()._cdata
    return address


def _is_whole(value: Any) -> bool:
    size, stride = ([int(one) for one in part] for part in (value.shape, value.stride()))
    return int(value.storage_offset()) == 0 and order_of_dense(size, stride) is not None
