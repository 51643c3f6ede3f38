"""Throughput watchdog: ends a transfer whose peer sends or reads too slowly.

A fetch has no time limit while its connection reaches the minimum throughput. The throughput is
measured per connection, so tensors that share a connection are not penalized.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import TransferFailed
from burn_remote_protocol.links.checksummed_links import AnyAsyncLink
from burn_remote_protocol.links.interface import AsyncLink

__all__ = [
    "FairShare",
    "ThroughputSample",
    "receive_watched",
    "receive_within",
    "wait_while_running",
    "watch_reader",
    "watch_throughput",
]

# A wait consists of this many shorter ones. If this process is suspended, or gets no processor
# time, only one of them ends meanwhile. More of them would cost more time while thousands of
# fetches wait.
WAITS: Final = 4

# Minimum throughput of a connection after a response has begun, averaged over each stall time
# (``stall_seconds``). It is low enough for slow networks, and ends fetches from peers that send
# almost nothing.
MIN_BYTES_PER_SECOND: Final = 64 * 2**10

# The number of bytes by which one tensor may lag behind its fair share of the connection. The
# buffers of a fast network can hold that many bytes of other tensors, including abandoned ones. A
# larger lag means that the source no longer sends this tensor.
MAX_LAG_BYTES: Final = 16 * 2**20


async def wait_while_running(done: asyncio.Future[Any], seconds: float) -> None:
    """Wait for ``done``, at most for ``seconds`` in which this process is not suspended.

    What arrived, or was due, while it was suspended is handled before the time is over.
    """
    for _ in range(WAITS):
        await asyncio.wait([done], timeout=seconds / WAITS)
        if done.done():
            return


async def watch_throughput(
    done: asyncio.Future[Any],
    peer: str,
    stall_seconds: float,
    *,
    has_begun: Callable[[], bool],
    arrived: Callable[[], int],
    allowed: Callable[[], int],
    reports: Callable[[], int] = lambda: 0,
) -> None:
    """Wait for ``done``, without a time limit while the peer sends fast enough.

    ``has_begun`` returns whether the response has begun, ``arrived`` the number of bytes received
    on the connection, and ``allowed`` the number that it may have received by now. ``reports``
    returns how often the peer has reported that it still works on the tensor.

    Raises ``TransferFailed`` if no response begins and no report arrives within a stall time, if
    the throughput falls below ``MIN_BYTES_PER_SECOND`` in a later stall time, or if more bytes
    arrive than allowed, because the peer then sends only pings or other tensors.
    """
    within = f"from {peer} within {stall_seconds:g} seconds"
    floor = MIN_BYTES_PER_SECOND * stall_seconds
    first = arrived()
    seen_reports = -1
    while seen_reports != reports():
        seen_reports = reports()
        await wait_while_running(done, stall_seconds)
        if done.done() or has_begun():
            break
    else:
        raise TransferFailed(f"nothing arrived {within}")
    while not done.done():
        seen = arrived()
        if seen > allowed():
            raise TransferFailed(
                f"{peer} sent {seen - first:,} bytes, but the tensor did not make progress"
            )
        # Measure a whole interval: the response may have begun late in the previous one.
        await wait_while_running(done, stall_seconds)
        came = arrived() - seen
        if done.done():
            return
        if not came:
            raise TransferFailed(f"nothing arrived {within}")
        if came < floor:
            raise TransferFailed(
                f"too little arrived {within}: {came:,} bytes, expected at least {floor:,.0f}"
            )


async def receive_watched(link: AsyncLink, stall_seconds: float, max_message_bytes: int) -> bytes:
    """Receive one message; fail if the peer is silent, too slow, or sends too much.

    This takes at most ``2 * max_message_bytes / MIN_BYTES_PER_SECOND`` plus three stall times.
    Raises ``TransferFailed``, and what ``receive`` raises.
    """
    first = link.received_bytes
    # Received bytes include pings and fragment headers, which the message limit does not.
    allowed = first + 2 * max_message_bytes
    async with _receiving(link) as receiving:
        await watch_throughput(
            receiving,
            link.peer,
            stall_seconds,
            has_begun=lambda: link.received_bytes > first,
            arrived=lambda: link.received_bytes,
            allowed=lambda: allowed,
        )
        received: bytes = receiving.result()
        return received


async def receive_within(link: AnyAsyncLink, seconds: float) -> bytes | memoryview:
    """Receive one message, within ``seconds`` in which this process is not suspended.

    Raises ``TimeoutError``, and what ``receive`` raises.
    """
    async with _receiving(link) as receiving:
        await wait_while_running(receiving, seconds)
        if not receiving.done():
            raise TimeoutError
        received: bytes | memoryview = receiving.result()
        return received


@contextlib.asynccontextmanager
async def _receiving(link: AnyAsyncLink) -> AsyncIterator[asyncio.Future[Any]]:
    """A task that receives one message; it has ended when the context is left."""
    receiving = asyncio.ensure_future(link.receive())
    try:
        yield receiving
    finally:
        receiving.cancel()
        await asyncio.wait([receiving])
        if not receiving.cancelled():
            receiving.exception()  # mark as retrieved; asyncio logs unretrieved exceptions


async def watch_reader(
    done: asyncio.Future[Any], peer: str, stall_seconds: float, sent: Callable[[], int]
) -> None:
    """Wait for ``done``, without a time limit while the peer reads fast enough.

    ``sent`` returns the number of bytes that the system has accepted for sending.

    Raises ``TransferFailed`` if it grows by less than ``MIN_BYTES_PER_SECOND`` in a stall time.
    """
    floor = MIN_BYTES_PER_SECOND * stall_seconds
    while not done.done():
        before = sent()
        await wait_while_running(done, stall_seconds)
        taken = sent() - before
        if not done.done() and taken < floor:
            raise TransferFailed(
                f"{peer} read {taken:,} bytes within {stall_seconds:g} seconds, expected at least "
                f"{floor:,.0f}"
            )


class ThroughputSample(NamedTuple):
    """The counters of a connection and of one of its tensors at one point in time."""

    arrived: int  # bytes received on the connection
    received: int  # bytes received of the tensor
    running: int  # fetches in progress
    begun: int  # fetches begun since the connection opened


class FairShare:
    """The number of bytes that a connection may receive while one tensor gets its fair share.

    A source sends the chunks of its tensors round robin, so each of ``n`` tensors receives an
    ``n``-th of the bytes. The check requires half of that, and allows a lag of ``MAX_LAG_BYTES``.
    """

    def __init__(self) -> None:
        self._since: ThroughputSample | None = None

    def allowed(self, now: ThroughputSample) -> int:
        """Return how many bytes the connection may have received by now."""
        since = self._since
        if since is None or now.received - since.received >= MAX_LAG_BYTES:
            self._since = since = now
        sharing = since.running + now.begun - since.begun
        return since.arrived + 2 * sharing * (now.received - since.received + MAX_LAG_BYTES)
