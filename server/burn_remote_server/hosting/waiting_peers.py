"""The fetches of peers that wait until a session of this process exposes a tensor.

While such a fetch waits, its peer gets a *progress report* after each fetch timeout, as long as a
session may still expose the tensor. A report has a number of hops: 0 from a session that works; one
that waits for another server passes on the report of that server, with one hop more. Beyond
``MAX_HOPS``, nobody in the chain makes progress, and the fetch ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Final

from burn_remote_protocol.errors import QuotaExceeded, TransferFailed
from burn_remote_protocol.ids import exposing_session
from burn_remote_protocol.messages import MAX_HOPS
from burn_remote_server.access.fair_places import FairPlaces
from burn_remote_server.hosting.open_sessions import OpenSessions
from burn_remote_server.tensors.exposed_tensors import MAX_WAITING, Exposed, Transfers
from burn_remote_server.tensors.slots import InFlight
from burn_remote_server.transfers.downloads import ignore_progress
from burn_remote_server.transfers.event_loop_queues import BatchedCalls, Deadlines
from burn_remote_server.transfers.local_fetches import source_ended
from burn_remote_server.transfers.outgoing_transfers import OutgoingTransfers

__all__ = ["WaitingPeers"]

# A progress report gets one more hop for each period of this many fetch timeouts since it arrived.
# A source sends a report in each timeout; with 1.0, a slightly late report would get another hop.
STALE_TIMEOUTS: Final = 1.25

# A progress report with more hops than the last one is passed on after the fetch timeout divided by
# this number. So reports that arrive in that time are passed on together, and in a cycle of servers
# the hops reach ``MAX_HOPS`` within a timeout.
REPORT_AGAIN_DIVISOR: Final = 20
REPORTED_AT_ONCE: Final = 64

# When a session ends, at most this many of the peers' fetches from it fail in one iteration of the
# event loop, about 3 ms.
FAILED_AT_ONCE: Final = 64

# Memory of a fetch that waits (measured: 2.7 KB, and 1 KB for its timeout and the frame of a
# progress report). No quota counts it, because it belongs to no session. So all of them may take
# the memory of the sessions divided by ``WAITING_DIVISOR``.
WAITING_FETCH_BYTES: Final = 4096
WAITING_DIVISOR: Final = 8
# A session of another server sends at most 64 fetches at a time.
LEAST_WAITING: Final = 1024


@dataclass(slots=True, eq=False)
class _PeerFetch:
    """A peer's fetch of a tensor that is not exposed yet."""

    exposed: asyncio.Future[Exposed]
    still_waiting: Callable[[int], None]
    source: int | None = None  # the session that exposes it, if the transfer id names it
    reported_hops: int | None = None  # the hops of the last progress report to the peer
    since: float = field(default_factory=time.monotonic)


def _fail_source_ended(fetch: _PeerFetch) -> None:
    if not fetch.exposed.done():
        fetch.exposed.set_exception(source_ended())


class WaitingPeers:
    """All fetches of peers that wait. Belongs to the event loop's thread."""

    def __init__(
        self,
        sessions: OpenSessions,
        transfers: Transfers,
        outgoing: Set[OutgoingTransfers],
        timeout_seconds: float,
        memory_bytes: int,
    ) -> None:
        """Create the registry of a process.

        ``outgoing`` are the transfers to peers, ``timeout_seconds`` is the fetch timeout, and
        ``memory_bytes`` the host memory of all sessions.
        """
        self._sessions: Final = sessions
        self._transfers: Final = transfers
        self._outgoing: Final = outgoing
        self._timeout_seconds: Final = timeout_seconds
        self._stale_seconds: Final = STALE_TIMEOUTS * timeout_seconds
        self._loop: Final = asyncio.get_running_loop()
        # The fetches whose transfer ids name a session, by that session.
        self._by_source: Final[dict[int, dict[_PeerFetch, None]]] = {}
        self._source_failures: Final = BatchedCalls(self._loop, FAILED_AT_ONCE)
        self._waiting: Final = Deadlines(timeout_seconds, self._give_up)
        most = memory_bytes // WAITING_DIVISOR // WAITING_FETCH_BYTES
        self.places: Final = FairPlaces(max(LEAST_WAITING, min(MAX_WAITING, most)))
        self._reports_again = False  # a call of ``_report_again`` is scheduled
        self._report_calls: Final = BatchedCalls(self._loop, REPORTED_AT_ONCE)

    async def exposed(
        self,
        key: tuple[str, bytes | int],
        still_waiting: Callable[[int], None] = ignore_progress,
        peer_host: str = "",
    ) -> Exposed:
        """Wait until a tensor is exposed, for a server at ``peer_host``.

        After each ``fetch_timeout_seconds``, this calls ``still_waiting(hops)`` if a session may
        still expose the tensor, and else raises ``TransferFailed``.

        If the caller is cancelled, the tensor remains exposed, so that its peer can fetch it over
        another connection.
        """
        future: asyncio.Future[Exposed] = self._loop.create_future()

        def arrive(exposed: Exposed) -> None:
            self._loop.call_soon_threadsafe(deliver, exposed)

        def deliver(exposed: Exposed) -> None:
            if future.done():
                self._expose_again(key, exposed)
            else:
                future.set_result(exposed)

        ticket = self._transfers.fetch(key, arrive, f"peer {peer_host}")
        fetch = _PeerFetch(future, still_waiting, exposing_session(key[1]))
        self._waiting.add(fetch)
        waits = False
        try:
            if self._transfers.is_waiting(key, ticket):
                self._take_place(peer_host)
                waits = True
                self._watch_source(fetch, key[1])
            return await future
        except asyncio.CancelledError:
            # The result may have arrived before this task could continue.
            if not future.cancelled() and future.exception() is None:
                self._expose_again(key, future.result())
            raise
        finally:
            if waits:
                self.places.give_back(peer_host)
            self._waiting.discard(fetch)
            self._transfers.forget(key, ticket)
            self._forget_source(fetch)
            future.cancel()  # a tensor that arrives now is exposed again

    def _take_place(self, peer_host: str) -> None:
        places = self.places
        if not places.take(peer_host):
            raise TransferFailed(
                f"{places.taken(peer_host):,} fetches of your server, and {places.total:,} of all "
                f"servers, already wait for their tensor; {places.allowed:,} may wait, half of "
                "them for one server; try again later"
            )

    def end_source(self, session: int) -> None:
        """Fail the fetches of tensors that a session would have exposed; it has ended."""
        self._source_failures.call(_fail_source_ended, self._by_source.pop(session, {}))

    def not_exposed(self) -> TransferFailed:
        """Return the error of a fetch whose tensor was not exposed in time."""
        return TransferFailed(
            "no tensor was exposed under this transfer id within "
            f"{self._timeout_seconds:g} seconds: its source may itself "
            "wait for a tensor (sync it before the move, or raise fetch_timeout_seconds on the "
            "servers), or the tensor was fetched before, or it has expired"
        )

    def may_come(self, since: float) -> bool:
        """Whether a session may still expose the tensor of a fetch that began at ``since``."""
        return self.hops(since) is not None

    def hops(self, since: float) -> int | None:
        """Return the hops for a progress report to a fetch that began at ``since``.

        The client sent the task to expose the tensor before the fetch, and this server received
        that task at most one timeout after the fetch. If a session has not executed the task yet,
        it has been busy without a pause since then. If no such session makes progress, the tensor
        will not be exposed any more, and this returns ``None``.
        """
        latest, now = since + self._timeout_seconds, time.monotonic()
        fewest = MAX_HOPS + 1
        for session in self._sessions:
            hops = session.hops_since(latest, now, self._stale_seconds)
            if hops == 0:
                return 0
            if hops is not None:
                fewest = min(fewest, hops)
        return fewest if fewest <= MAX_HOPS else None

    def note_progress(self, slot: InFlight, hops: int) -> None:
        """Record a progress report; if it has more hops than the last one, pass it on soon.

        In a cycle of servers that wait for each other, the hops grow with each server. If each
        server passed a report on only after a timeout, the hops would reach the limit after
        ``MAX_HOPS`` timeouts.
        """
        is_worse = slot.last_report is not None and hops > slot.last_report.hops
        slot.note_progress(hops)
        if is_worse and not self._reports_again:
            self._reports_again = True
            seconds = self._timeout_seconds / REPORT_AGAIN_DIVISOR
            self._loop.call_later(seconds, self._report_again)

    def _give_up(self, fetch: _PeerFetch) -> None:
        if fetch.exposed.done():
            return
        hops = self.hops(fetch.since)
        if hops is None:
            fetch.exposed.set_exception(self.not_exposed())
        else:
            self._waiting.add(fetch)
            fetch.reported_hops = hops
            fetch.still_waiting(hops)

    def _report_again(self) -> None:
        """Send another progress report to the fetches whose last one had fewer hops."""
        self._reports_again = False
        waiting = [fetch for fetch in self._waiting.items() if fetch.reported_hops is not None]
        self._report_calls.call(self._report_more_hops, waiting)

    def _report_more_hops(self, fetch: _PeerFetch) -> None:
        hops = None if fetch.exposed.done() else self.hops(fetch.since)
        if hops is not None and fetch.reported_hops is not None and hops > fetch.reported_hops:
            fetch.reported_hops = hops
            fetch.still_waiting(hops)

    def _watch_source(self, fetch: _PeerFetch, transfer: bytes | int) -> None:
        """Let a fetch fail when the session that exposes its tensor ends.

        Raises ``TransferFailed`` if that session has already ended.
        """
        if fetch.source is None:
            return
        if fetch.source in self._sessions:
            self._by_source.setdefault(fetch.source, {})[fetch] = None
        # A tensor that is being sent to a peer may have to be exposed again.
        elif not any(sending.holds(transfer) for sending in self._outgoing):
            raise source_ended()

    def _forget_source(self, fetch: _PeerFetch) -> None:
        if fetch.source is not None:
            fetches = self._by_source.get(fetch.source, {})
            fetches.pop(fetch, None)
            if not fetches:
                self._by_source.pop(fetch.source, None)

    def _expose_again(self, key: tuple[str, bytes | int], exposed: Exposed) -> None:
        """Expose a tensor again, because its fetch ended before it received the tensor."""
        with contextlib.suppress(QuotaExceeded):
            self._transfers.expose(
                key,
                exposed,
                owner=self,
                count=1,
                expires_seconds=self._timeout_seconds,
                is_secret=False,
            )
