"""A check of the room on the call stack, before a session sends or waits.

A ``RecursionError`` inside of these calls would leave a frame half sent, or a reply unread, and the
code that mends this would raise it again.
"""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["check_stack_room"]

# Sending, receiving, the start of a thread that resumes, and operations of a local device take up
# to 40 calls. The rest is for the array library and for logging.
ROOM_CALLS: Final = 100

_frame: Final = sys._getframe


def check_stack_room() -> None:
    """Raise ``RecursionError`` if less than ``ROOM_CALLS`` calls fit on the stack."""
    try:
        _frame(max(sys.getrecursionlimit() - ROOM_CALLS, 1))
    except ValueError:  # the stack is not as deep
        return
    raise RecursionError(
        f"a device needs {ROOM_CALLS} calls below the recursion limit, which is "
        f"{sys.getrecursionlimit()}: use fewer nested calls, or raise it by sys.setrecursionlimit()"
    )
