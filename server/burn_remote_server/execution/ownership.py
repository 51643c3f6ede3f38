"""Does anything but a session's table of tensors refer to an array?

Views, memory that is being sent, tensors that were exposed or handed over in memory, the same array
under a second id: all of them refer to the array whose memory they show, and CPython counts that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["held_once"]


def held_once(arrays: Sequence[Any], position: int) -> bool:
    """Whether the array at ``position`` is referred to by this sequence, by one other place and by
    nothing else."""
    return _references(arrays, position) <= _HELD_ONCE


def _references(arrays: Sequence[Any], position: int) -> int:
    return sys.getrefcount(arrays[position])


def _measured() -> int:
    # How many a call itself adds differs between versions of Python.
    table = {0: object()}
    return _references([table[0]], 0)


_HELD_ONCE: Final = _measured()
