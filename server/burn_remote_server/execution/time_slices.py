"""Time slices of threads: how long the system lets a thread run before others of its core.

A thread with a shorter slice takes the core as soon as it wakes; over time, all threads still get
equal shares. A thread that computes for its clients loses nothing by a long slice: the threads of
a client on the same machine then send their next messages, and receive replies, without waiting
for it, and it finds more messages at once.

Linux has slices of single threads since version 6.12, and earlier ones ignore them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import Final

__all__ = ["LONG_SLICE_SECONDS", "lengthen_slice", "restore_slice"]

# Linux gives other threads 0.7 to 3 ms, depending on the number of cores, and allows up to 0.1 s.
# Slices of 3, 10, 20 and 100 ms gave a client of Burn the same speed.
LONG_SLICE_SECONDS: Final = 0.01

# The number of the system call ``sched_setattr``.
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
# ``struct sched_attr``: its size, the policy, flags, nice value, priority, and three times in
# nanoseconds, the first of which is the slice.
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")


def lengthen_slice() -> bool:
    """Give the calling thread a long time slice; return whether the system accepted it.

    The thread keeps its nice value. A thread whose scheduling policy was changed keeps its slice.
    """
    return _set_slice(round(LONG_SLICE_SECONDS * 1e9))


def restore_slice() -> bool:
    """Give the calling thread a slice of the usual length; return whether the system accepted it.

    The same as ``lengthen_slice`` in everything else.
    """
    return _set_slice(0)


def _set_slice(nanoseconds: int) -> bool:
    """Set the slice of the calling thread; 0 is the usual one."""
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    try:
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = _ATTRIBUTES.pack(
            _ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, nanoseconds, 0, 0
        )
        return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
    except OSError:  # a container may forbid these calls
        return False
