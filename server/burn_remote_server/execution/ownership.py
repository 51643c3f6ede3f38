"""Checks that nothing but a session's table of tensors, or a kernel's caller, refers to an array.

Views, memory that is being sent, exposed tensors, and the same array under a second id all refer to
the array whose memory they show, and CPython counts these references.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["HELD_HERE", "held_once"]


def held_once(arrays: Sequence[Any], position: int) -> bool:
    """Whether the array at ``position`` is referred to by this sequence, by one other place and by
    nothing else."""
    return _references(arrays, position) <= _HELD_ONCE


def _references(arrays: Sequence[Any], position: int) -> int:
    return sys.getrefcount(arrays[position])


def _measured() -> int:
    # How many references a call itself adds differs between versions of Python.
    table = {0: object()}
    return _references([table[0]], 0)


def _measured_local() -> int:
    local = object()
    return sys.getrefcount(local)


_HELD_ONCE: Final = _measured()

# What ``sys.getrefcount`` returns for a local variable to whose object nothing else refers.
HELD_HERE: Final = _measured_local()
