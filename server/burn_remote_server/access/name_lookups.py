"""Lookups of host names, of which each party has one at a time.

A lookup that a name server does not answer takes 10 seconds or more, and cannot be stopped. A
client may name any host. So without turns, one client could occupy all threads for lookups, and no
other could reach a peer by name. Each lookup has a thread of its own, because event loops run few
lookups at a time: uvloop runs two.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import weakref
from typing import Final

from burn_remote_protocol.bounded_threads import BoundedThread

__all__ = ["MAX_LOOKUPS", "NameLookups", "addresses_of"]

# Lookups that run at a time, each in a thread. A party has one, so this many parties with names
# that no name server answers are needed to delay another one.
MAX_LOOKUPS: Final = 64


class NameLookups:
    """The lookups of one process. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        # Held as long as a lookup of the party runs or waits.
        self._turns: Final[weakref.WeakValueDictionary[str, asyncio.Lock]] = (
            weakref.WeakValueDictionary()
        )
        self._threads: Final = asyncio.Semaphore(MAX_LOOKUPS)

    async def find(self, host: str, port: int, party: str) -> list[str]:
        """Return the IP addresses of a host for TCP connections, as texts.

        ``party`` names those who share a turn, as ``Host.open_fetches`` describes. Raises
        ``OSError``, ``UnicodeError``.
        """
        if _is_numeric(host):
            return [host]
        turn = self._turns.get(party)
        if turn is None:
            turn = self._turns[party] = asyncio.Lock()
        await turn.acquire()
        try:
            await self._threads.acquire()
        except BaseException:
            turn.release()
            raise
        looking = _look_up(host, port)

        # A lookup cannot be stopped: it occupies its thread, and the turn, after a timeout too.
        def end(ended: asyncio.Future[list[str]]) -> None:
            self._threads.release()
            turn.release()
            if not ended.cancelled():
                ended.exception()  # mark as retrieved; asyncio logs unretrieved exceptions

        looking.add_done_callback(end)
        return await asyncio.shield(looking)


def addresses_of(host: str, port: int) -> list[str]:
    """Ask the system for a host's addresses. Raises ``OSError``, ``UnicodeError``."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(found[0]) for *_, found in answers]


def _look_up(host: str, port: int) -> asyncio.Future[list[str]]:
    """Look up a name in a thread, which does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[str]] = loop.create_future()

    def deliver(found: list[str] | Exception) -> None:
        if future.done():
            return
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)

    def look_up() -> None:
        found: list[str] | Exception
        try:
            found = addresses_of(host, port)
        except Exception as error:  # whatever the resolver raises
            found = error
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(deliver, found)

    try:
        BoundedThread(target=look_up, name="name lookup").start()
    except (RuntimeError, MemoryError) as error:
        deliver(OSError(str(error) or "the system has no memory for a thread"))
    return future


def _is_numeric(host: str) -> bool:
    """Whether a host is an address without a zone (``%eth0``)."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host
