"""A fake connection that behaves like a socket: what was sent before a close still arrives."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

__all__ = ["END", "BufferedPair"]

# What ``receive`` returns once the other end has closed and its buffer is empty.
END: Final = object()


class BufferedPair:
    """Two ends, 0 and 1. Frames wait in a buffer until the other end receives them.

    ``close`` is an orderly close: the other end receives what is buffered, then ``END``. ``reset``
    drops everything that has not been received, in both directions.
    """

    def __init__(self) -> None:
        self._waiting: Final[tuple[deque[Any], deque[Any]]] = (deque(), deque())
        self._closed: Final = [False, False]

    def is_closed(self, end: int) -> bool:
        """Whether this end was closed."""
        return self._closed[end]

    def send(self, end: int, frame: Any) -> bool:
        """Send from one end. ``False``: the connection is dead."""
        if self._closed[0] or self._closed[1]:
            return False
        self._waiting[1 - end].append(frame)
        return True

    def is_readable(self, end: int) -> bool:
        """Whether ``receive`` would return something. Also after this end was closed."""
        return bool(self._waiting[end]) or self._closed[1 - end]

    def receive(self, end: int) -> Any:
        """Return the next frame at one end, or ``END``."""
        return self._waiting[end].popleft() if self._waiting[end] else END

    def close(self, end: int) -> None:
        """Close one end."""
        self._closed[end] = True

    def reset(self) -> None:
        """Break the connection at both ends and lose what is on its way."""
        for waiting in self._waiting:
            waiting.clear()
        self._closed[:] = [True, True]
