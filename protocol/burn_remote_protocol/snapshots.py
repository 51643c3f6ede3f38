"""Copies of dicts that other threads, finalizers and signal handlers change at any time.

A copy must be one step of the interpreter: no other Python code may run inside it. Neither a loop
nor a comprehension is one step, and ``[*mapping.items()]`` is not either: it creates a tuple per
entry, and any new tuple may start a garbage collection. That runs finalizers, and inside a
finalizer CPython may switch to another thread. ``[*mapping]``, ``[*mapping.values()]`` and
``{**mapping}`` create no object for an entry, so they are one step if the keys compare without
Python code.
"""

from __future__ import annotations

from collections.abc import ItemsView
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["items_of", "living_keys"]

K = TypeVar("K")
V = TypeVar("V")


def items_of(mapping: dict[K, V]) -> ItemsView[K, V]:
    """Return the present items of a dict; later changes do not affect them."""
    return {**mapping}.items()


def living_keys(mapping: WeakKeyDictionary[K, Any]) -> list[K]:
    """Return the present keys of a weak dict, for use in place of a ``WeakSet``.

    An iteration over a ``WeakSet`` raises ``RuntimeError`` if another thread adds a member.
    """
    found = (reference() for reference in mapping.keyrefs())
    return [key for key in found if key is not None]
