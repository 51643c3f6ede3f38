"""Detection of calls that a thread makes inside of another call of its own to the same session.

A finalizer, a callback of the garbage collector or a signal handler may run in any thread between
two instructions, also while this thread holds a lock of the session. There are two kinds of locks:

- The session's lock. If the thread holds it, another task would come between the parts of the
  present one.
- What a thread takes without the session's lock: the right to send, for a chunk of an upload, an
  acknowledgement, or a resume; and the right to receive. Another thread, such as the flusher, may
  hold the session's lock and wait for it. Then both threads would wait for each other for good.

The second kind matters only while some thread sends. So ``check`` looks at it only then, which
saves each operation a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["NestedCalls"]


class NestedCalls:
    """Tells whether the present call was made inside of another one."""

    __slots__ = ("check", "inside", "while_sending")

    def __init__(self, holds_session: Callable[[], bool]) -> None:
        """``holds_session`` tells whether this thread holds the session's lock."""
        self.inside: Final = holds_session
        self.while_sending = holds_session
        # Assigned, not called, by those who send, because no interrupt comes before an assignment:
        # ``while_sending`` as soon as a thread has the right to send, ``inside`` before it ends.
        self.check: Callable[[], bool] = holds_session

    def add(self, *holds_others: Callable[[], bool]) -> None:
        """Add functions that tell whether this thread has the right to send, or to receive."""
        rights = (self.inside, *holds_others)
        self.while_sending = lambda: any(holds() for holds in rights)
