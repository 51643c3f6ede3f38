"""Lookups of host names, of which each token has one at a time.

The event loop runs few lookups at a time (uvloop: two), and one that a name server does not answer
takes 10 seconds or more. A client may name any host, so without turns one client could occupy all
of them, and no other could reach a peer by name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import weakref
from typing import Any, Final

__all__ = ["NameLookups"]


class NameLookups:
    """The lookups of one process. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        # Held as long as a lookup of the token runs or waits.
        self._turns: Final[weakref.WeakValueDictionary[str, asyncio.Lock]] = (
            weakref.WeakValueDictionary()
        )

    async def find(self, host: str, port: int, token: str) -> list[str]:
        """Return the IP addresses of a host for TCP connections, as texts.

        ``token`` is the name of the token whose client asks. Raises ``OSError``, ``UnicodeError``.
        """
        if _is_numeric(host):
            return [host]
        turn = self._turns.get(token)
        if turn is None:
            turn = self._turns[token] = asyncio.Lock()
        await turn.acquire()
        loop = asyncio.get_running_loop()
        looking = loop.create_task(_look_up(loop, host, port))

        # A lookup cannot be stopped: it occupies its thread, and the turn, after a timeout too.
        def end(ended: asyncio.Task[list[str]]) -> None:
            turn.release()
            if not ended.cancelled():
                ended.exception()  # mark as retrieved; asyncio logs unretrieved exceptions

        looking.add_done_callback(end)
        return await asyncio.shield(looking)


async def _look_up(loop: Any, host: str, port: int) -> list[str]:
    answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(found[0]) for *_, found in answers]


def _is_numeric(host: str) -> bool:
    """Whether a host is an address without a zone (``%eth0``)."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host
