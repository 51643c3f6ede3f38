"""Ports of this machine that nobody listens on, or only a server that the test starts."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

__all__ = ["reserved_port"]


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port: the system gives it to no other program, and refuses connections to it.

    A server that is told this port can listen on it, because a socket that is bound but does not
    listen leaves the port to others that set ``SO_REUSEADDR`` too. A port that is only looked up
    and released may be taken by a test in another process.
    """
    with socket.socket() as reserving:
        reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserving.bind(("127.0.0.1", 0))
        yield reserving.getsockname()[1]
