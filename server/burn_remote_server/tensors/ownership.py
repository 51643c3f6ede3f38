"""Checks whether anything besides a session's tensor table or a kernel's caller uses an array.

Views, memory being sent, exposed tensors and the same array under a second id each hold a reference
to the array that owns the memory. CPython counts these references.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["HELD_HERE", "HELD_IN_LIST", "held_by_a_call", "held_once", "held_only_here"]


def held_once(arrays: Sequence[Any], position: int) -> bool:
    """Whether only this sequence and one other place reference the array at ``position``."""
    return _references(arrays, position) <= _HELD_ONCE


def held_only_here(arrays: Sequence[Any], position: int, others: Sequence[Any]) -> bool:
    """Whether only these two sequences reference the array at ``position`` of the first."""
    return _references(arrays, position) <= _HELD_ONCE


def held_by_a_call(arrays: Sequence[Any], position: int, others: Sequence[Any]) -> bool:
    """Whether only these two sequences, a call's inputs and a table reference the array."""
    return _references(arrays, position) <= _HELD_ONCE + 2


def _references(arrays: Sequence[Any], position: int) -> int:
    return sys.getrefcount(arrays[position])


def _measured() -> int:
    # Measured, because the number of references that a call adds depends on Python's version.
    table = {0: object()}
    return _references([table[0]], 0)


def _measured_local() -> int:
    local = object()
    return sys.getrefcount(local)


def _measured_listed() -> int:
    for _, item in zip((0,), [object()], strict=True):  # the pair holds a reference too
        return sys.getrefcount(item)
    raise AssertionError


_HELD_ONCE: Final = _measured()

# The result of ``sys.getrefcount`` for an object that only one local variable references.
HELD_HERE: Final = _measured_local()

# The result for the variable of a loop over pairs, for an object that one list references.
HELD_IN_LIST: Final = _measured_listed()
