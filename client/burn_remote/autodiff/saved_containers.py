"""Containers that are kept for the backward pass, with placeholders instead of their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burn_remote.arguments.containers import rebuilt
from burn_remote.autodiff.nodes import plain
from burn_remote.runner.interface import TensorHandle

__all__ = ["Saved", "restored", "saved_tree", "tensors_in"]


class Saved(int):
    """A placeholder for a tensor: its index in a list of tensors that is kept elsewhere."""

    __slots__ = ()


def tensors_in(tree: Any) -> list[Any]:
    """Return the tensors in nested containers, in order."""
    found: list[Any] = []

    def look(leaf: Any) -> None:
        if isinstance(getattr(leaf, "handle", None), TensorHandle):
            found.append(leaf)

    rebuilt(tree, look)
    return found


def saved_tree(tree: Any, handles: list[TensorHandle]) -> Any:
    """Return a copy of containers with placeholders for tensors; append the tensors' handles."""

    def replaced(leaf: Any) -> Any:
        handle = getattr(leaf, "handle", None)
        if not isinstance(handle, TensorHandle):
            return leaf
        handles.append(plain(handle))
        return Saved(len(handles) - 1)

    return rebuilt(tree, replaced)


def restored(tree: Any, tensors: Sequence[Any]) -> Any:
    """Return a copy of containers with tensors instead of their placeholders."""
    return rebuilt(tree, lambda leaf: tensors[leaf] if type(leaf) is Saved else leaf)
