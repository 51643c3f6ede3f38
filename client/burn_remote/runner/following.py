"""The operation that a session expects next, which the operators compare with those of the program.

A session that recognizes a repeated sequence of operations expects each of them: its signature, its
inputs, and the line of the program that issues it. An operator that issues the expected operation
gives its output the id that the session has assigned to it, and moves on to the next operation. It
calls nothing of the session, because a call, and taking the session's lock, would take longer than
the comparison.

So several threads may follow without a lock. CPython runs neither another thread nor a signal
handler between statements that call nothing. A thread therefore reads ``Follower.step`` again
after its last call, and then compares and moves on without a call.

A tracer, such as a debugger's, is called between two lines, and other threads may run meanwhile. So
a session follows no sequence that begins while ``is_traced`` is true, and issues its operations
under the lock. An operation cannot ask this, because the call would add 2 % to its instructions. So
two cases remain: a tracer that is set in the middle of a sequence, of at most 64 operations, and
``sys.settrace`` in a thread that only follows sequences which threads without a tracer begin.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Final, final

__all__ = ["Follower", "is_traced"]

# ``sys.monitoring`` exists since Python 3.12. It has this number of tools.
_monitoring: Final[Any] = getattr(sys, "monitoring", None)
TOOLS: Final = 6


def is_traced() -> bool:
    """Return whether a tracer may run between two lines of this thread, of new ones, or of all."""
    if sys.gettrace() is not None or threading.gettrace() is not None:
        return True
    if _monitoring is None:
        return False
    # Profilers ask for calls and returns only, and a thread that follows calls nothing.
    profiler, name_of = _monitoring.PROFILER_ID, _monitoring.get_tool
    return any(tool != profiler and name_of(tool) is not None for tool in range(TOOLS))


@final
class Follower:
    """The step that a session expects next; see the module's docstring.

    ``step`` is ``None`` while the session expects nothing, and while it changes ``ids`` or reads
    how far the program has come: then no operator follows. Otherwise, it has these attributes:
    ``signature``; the ``instruction`` of ``code`` that issues the operation; the places in ``ids``
    of the first and the last input, ``left`` and ``right``, and of the first output, ``output``;
    and the ``next`` step. The ``signature`` of a step after which nothing is expected is ``None``.

    ``ids`` has the ids of the outputs and of the inputs, as the same objects that the handles have;
    ``None`` for an input that is not known yet.
    """

    __slots__ = ("ids", "step")

    def __init__(self) -> None:
        self.step: Any = None
        self.ids: list[Any] = []
