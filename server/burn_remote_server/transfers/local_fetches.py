"""Fetches of tensors that another session of the same process exposes.

Such a fetch is an entry in a few tables, not a task. A session may have thousands of fetches, and
the event loop spends no time on those that wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from burn_remote_protocol.errors import TransferFailed
from burn_remote_protocol.ids import exposing_session
from burn_remote_server.tensors.exposed_tensors import Exposed, Key, Transfers
from burn_remote_server.tensors.slots import InFlight
from burn_remote_server.transfers.event_loop_queues import BatchedCalls, Deadlines

__all__ = ["LocalFetches", "source_ended"]

# Waiting fetches that fail in one iteration of the event loop, about 1 ms.
FAILED_AT_ONCE: Final = 128


@dataclass(slots=True, eq=False)
class _Wait:
    """A fetch whose tensor has not yet been exposed."""

    owner: object
    key: Key
    slot: InFlight
    ticket: int | None = None
    since: float = field(default_factory=time.monotonic)

    @property
    def source(self) -> int | None:
        """The session that exposes the tensor, if the transfer id names it."""
        return exposing_session(self.key[1])


class LocalFetches:
    """The waiting fetches of all sessions of a process.

    ``begin`` is thread-safe; the other methods belong to the event loop's thread.
    """

    def __init__(
        self,
        transfers: Transfers,
        seconds: float,
        failure: Callable[[], TransferFailed],
        may_come: Callable[[float], bool] = lambda since: False,
        is_open: Callable[[int], bool] = lambda session: True,
    ) -> None:
        """Fail a fetch with ``failure()`` if its tensor is not exposed within ``seconds``.

        ``may_come(since)`` returns whether a session may still expose the tensor of a fetch that
        began at ``since``; while it is true, the fetch continues to wait. A fetch fails at once if
        its transfer id names a session for which ``is_open(session)`` is false.
        """
        self._is_open: Final = is_open
        self._by_source: Final[dict[int, dict[_Wait, None]]] = {}
        self._may_come: Final = may_come
        self._transfers: Final = transfers
        self._failure: Final = failure
        self._lock: Final = threading.Lock()
        self._waits: Final[dict[object, dict[_Wait, None]]] = {}
        self._deadlines: Final = Deadlines(seconds, self._expire, FAILED_AT_ONCE)
        self._failures: Final = BatchedCalls(asyncio.get_running_loop(), FAILED_AT_ONCE)

    def open(self, owner: object) -> None:
        """Allow a session to begin fetches."""
        with self._lock:
            self._waits[owner] = {}

    def begin(
        self,
        owner: object,
        slot: InFlight,
        key: Key,
        deliver: Callable[[Exposed], None],
        party: str = "",
    ) -> None:
        """Call ``deliver`` when a tensor is exposed: now, or later in the thread that exposes it.

        ``party`` is that of ``Host.open_fetches``.

        ``deliver`` must complete the slot or fail it. If the tensor is not exposed in time, this
        class fails the slot.
        """
        wait = _Wait(owner, key, slot)
        source = wait.source
        with self._lock:
            waits = self._waits.get(owner)
            if waits is not None:
                waits[wait] = None
                if source is not None:
                    self._by_source.setdefault(source, {})[wait] = None
        if waits is None:
            slot.fail(_session_ended())
            return

        def arrive(exposed: Exposed) -> None:
            if self._remove(wait):
                deliver(exposed)

        try:
            wait.ticket = self._transfers.fetch(key, arrive, party)
            self._deadlines.add(wait)
        except TransferFailed as error:
            self._fail(wait, error)
        except RuntimeError:  # the event loop has closed
            self._fail(wait, _session_ended())
        with self._lock:
            is_waiting = wait in self._waits.get(owner, ())
        if not is_waiting:  # the tensor arrived, or the session ended, before the entries existed
            self._forget(wait)
        elif source is not None and not self._is_open(source):
            self._fail(wait, source_ended())

    def end_source(self, session: int) -> None:
        """Fail the fetches whose source is a session that has ended."""
        with self._lock:
            waits = self._by_source.pop(session, {})
        self._failures.call(lambda wait: self._fail(wait, source_ended()), waits)

    def end(self, owner: object) -> None:
        """Fail the fetches that a session began before it ended."""
        with self._lock:
            waits = self._waits.pop(owner, {})
        self._failures.call(self._leave, waits)

    def close(self) -> None:
        """Fail the fetches of all sessions immediately."""
        for owner in [*self._waits]:
            self.end(owner)
        self._failures.finish()

    def _expire(self, wait: _Wait) -> None:
        if not self._may_come(wait.since):
            self._fail(wait, self._failure())
            return
        with self._lock:
            is_waiting = wait in self._waits.get(wait.owner, ())
        if is_waiting:
            self._deadlines.add(wait)

    def _leave(self, wait: _Wait) -> None:
        self._forget(wait)
        wait.slot.fail(_session_ended())

    def _fail(self, wait: _Wait, error: TransferFailed) -> None:
        if self._remove(wait):
            wait.slot.fail(error)

    def _remove(self, wait: _Wait) -> bool:
        """Remove a fetch; return ``False`` if it was removed before."""
        with self._lock:
            waits = self._waits.get(wait.owner)
            if waits is None or wait not in waits:
                return False
            del waits[wait]
        self._forget(wait)
        return True

    def _forget(self, wait: _Wait) -> None:
        self._deadlines.discard(wait)
        source = wait.source
        if source is not None:
            with self._lock:
                waits = self._by_source.get(source, {})
                waits.pop(wait, None)
                if not waits:
                    self._by_source.pop(source, None)
        if wait.ticket is not None:
            self._transfers.forget(wait.key, wait.ticket)


def source_ended() -> TransferFailed:
    """Return the error of a fetch from a session that cannot expose its tensor any more."""
    return TransferFailed(
        "the session that was to send the tensor has ended on its server, because the server was "
        "restarted, the connection was lost for longer than the lease, or the program closed the "
        "device; open the device again and create the tensor there"
    )


def _session_ended() -> TransferFailed:
    return TransferFailed("the session ended before the tensor arrived")
