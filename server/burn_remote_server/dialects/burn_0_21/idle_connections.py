"""A limit on the connections of peers that are idle: no request of the peer is in progress.

A Burn server keeps its connections to ``/data`` forever, and cannot open one again that was closed.
So they have no time limit. Only when too many are idle, one of them is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from burn_remote_protocol.errors import LimitExceeded

__all__ = ["IdleConnections"]


class IdleConnections:
    """The idle connections of one process. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        # By host. A host's connections are in the order in which they became idle.
        self._by_host: Final[dict[str, dict[object, Callable[[LimitExceeded], None]]]] = {}
        self._count = 0

    @contextlib.contextmanager
    def waiting(
        self, host: str, end: Callable[[LimitExceeded], None], allowed: int
    ) -> Iterator[None]:
        """Count a connection as idle during the block.

        If more than ``allowed`` are, ``end(error)`` is called for the one that has been idle
        longest, among those of the host that has most of them.
        """
        key = object()
        self._by_host.setdefault(host, {})[key] = end
        self._count += 1
        if self._count > allowed:
            self._end_one(allowed)
        try:
            yield
        finally:
            self._forget(host, key)

    def _end_one(self, allowed: int) -> None:
        host = max(self._by_host, key=lambda each: len(self._by_host[each]))
        key, end = next(iter(self._by_host[host].items()))
        error = LimitExceeded("idle connections of peers", seen=self._count, allowed=allowed)
        self._forget(host, key)
        end(error)

    def _forget(self, host: str, key: object) -> None:
        connections = self._by_host.get(host, {})
        if connections.pop(key, None) is not None:
            self._count -= 1
            if not connections:
                del self._by_host[host]
