"""The operation that a session expects next, which the operators compare with those of the program.

A session that recognizes a repeated sequence of operations expects each of them: its signature, its
inputs, and the line of the program that issues it. An operator that issues the expected operation
gives its output the id that the session has assigned to it, and moves on to the next operation. It
calls nothing of the session, because a call, and taking the session's lock, would take longer than
the comparison.

So several threads may follow without a lock. CPython runs neither another thread nor a signal
handler between statements that call nothing. A thread therefore reads ``Follower.step`` again
after its last call, and then compares and moves on without a call.
"""

from __future__ import annotations

from typing import Any, final

__all__ = ["Follower"]


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
